"""Carries what the library logs, and what Python warns of, to the sink.

The library prints nothing: it logs to ``hookscope``, where INFO is a note, WARNING a warning, and
DEBUG a step with its time.
"""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from hookscope.cli.console import Console
from hookscope.errors import EnvironmentFault


class _Handler(logging.Handler):
    def __init__(self, out: Console) -> None:
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


def show_logs(out: Console) -> None:
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


@contextmanager
def running(out: Console, what: str) -> Iterator[None]:
    """Bring torch in, say ``what`` is done now, and let ``out`` tell what the library logs."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        # Its mathematics library would end the process without an exception.
        raise EnvironmentFault(
            "The working folder was deleted, and torch does not load there.",
            "Change to a folder that exists.",
        ) from error
    with out.status("Loading torch ..."):
        show_logs(out)
        _import_torch()
        out.step(what)
        yield


def _import_torch() -> None:
    """Import torch without looking for garbage meanwhile.

    The import makes a million objects that stay. To look through them after every 700 new ones, as
    Python does by default, is a tenth of the time that a command takes.
    """
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.enable()
    gc.freeze()
