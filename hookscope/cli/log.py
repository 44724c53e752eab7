"""Carries what the library logs, and what Python warns of, to the sink.

The library prints nothing: it logs to ``hookscope``, where INFO is a note, WARNING a warning, and
DEBUG a step with its time.
"""

from __future__ import annotations

import logging
import warnings
from typing import TextIO

from hookscope.cli.out import Out


class _Handler(logging.Handler):
    def __init__(self, out: Out) -> None:
        super().__init__()
        self.out = out

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            self.out.warning(text)
        elif record.levelno >= logging.INFO:
            self.out.note(text)
        else:
            self.out.step(text)


def listen(out: Out) -> None:
    """Send everything logged and warned of from here on to ``out``."""
    logger = logging.getLogger("hookscope")
    logger.handlers = [_Handler(out)]
    logger.propagate = False
    logger.setLevel(logging.DEBUG)

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = " ".join(str(message).split())
        out.warning(f"{text} ({category.__name__}, {filename}:{lineno})")

    warnings.showwarning = show
