"""The package scikit-learn, which only probes need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hookscope.errors import EnvironmentFault


@contextmanager
def require_sklearn() -> Iterator[None]:
    """Turn a failed import of scikit-learn in the block into an error that says how to install
    it.
    """
    try:
        yield
    except ImportError as error:
        raise EnvironmentFault(
            f"Probes are fitted by scikit-learn, which cannot be imported: {error}.",
            'Install it: pip install "hookscope[probe]"',
        ) from error
