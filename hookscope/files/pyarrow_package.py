"""The package pyarrow, which only Parquet files need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hookscope.errors import EnvironmentFault


@contextmanager
def require_pyarrow(action: str = "Writing") -> Iterator[None]:
    """Turn a failed import of pyarrow in the block into an error that says how to install it."""
    try:
        yield
    except ImportError as error:
        raise EnvironmentFault(
            f"{action} Parquet needs pyarrow, which cannot be imported: {error}.",
            'Install it: pip install "hookscope[parquet]"',
        ) from error
