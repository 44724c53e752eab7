"""What a test demands of an error: its type, its texts, its exit status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hookscope.errors import HookscopeError


@contextmanager
def refused(
    error: type[HookscopeError],
    match: str | None = None,
    *,
    message: str = "",
    hint: str = "",
    status: int | None = None,
) -> Iterator[None]:
    """Demand an error that says what to do next.

    ``match`` is a pattern for the whole text; ``message`` and ``hint`` contain the given texts.
    """
    with pytest.raises(error, match=match) as caught:
        yield
    assert message in caught.value.message
    assert caught.value.hint and hint in caught.value.hint
    assert status is None or caught.value.exit_code == status
