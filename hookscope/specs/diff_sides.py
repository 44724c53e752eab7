"""The two sides of a comparison, by the names that messages give them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from hookscope.errors import HookscopeError

log = logging.getLogger("hookscope")

SIDES = ("A", "B")


@contextmanager
def label_errors(side: int) -> Iterator[None]:
    """Add the side that it concerns to an error and to the notes on weights from the block."""

    def label(record: logging.LogRecord) -> bool:
        record.msg = str(record.msg).replace("weights:", f"weights of {SIDES[side]}:", 1)
        return True

    log.addFilter(label)
    try:
        yield
    except HookscopeError as error:
        error.message = f"{SIDES[side]}: {error.message}"
        raise
    finally:
        log.removeFilter(label)
