"""The context in which a command runs a model: torch imported, logs and warnings on the console."""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TextIO

from hookscope.cli.console import Console
from hookscope.errors import EnvironmentFault
from hookscope.files.garbage import without_collection


class _Handler(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self.out = console

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            self.out.warning(text)
        elif record.levelno >= logging.INFO:
            self.out.note(text)
        else:
            self.out.step(text)


def show_logs(console: Console) -> None:
    """Show all further logs and warnings on ``console``."""
    logger = logging.getLogger("hookscope")
    logger.handlers = [_Handler(console)]
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
        logger.warning("%s (%s, %s:%d)", text, category.__name__, filename, lineno)

    warnings.showwarning = show


class _NoteList(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.notes: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.notes.append((record.levelno, record.getMessage()))


@contextmanager
def recorded_notes() -> Iterator[list[tuple[int, str]]]:
    """Yield a list that gets the level and the text of all notes and warnings of the block."""
    handler = _NoteList()
    logger = logging.getLogger("hookscope")
    logger.addHandler(handler)
    try:
        yield handler.notes
    finally:
        logger.removeHandler(handler)


@contextmanager
def running(console: Console, step: str) -> Iterator[None]:
    """Import torch, show the logs of the library, and show ``step`` as the current step."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        # Its mathematics library would end the process without an exception.
        raise EnvironmentFault(
            "The working folder was deleted; torch cannot be loaded.",
            "Change to a folder that exists.",
        ) from error
    with console.status("Loading torch ..."):
        show_logs(console)
        _import_torch()
        console.step(step)
        yield


def reading(console: Console, step: str, trust: bool) -> AbstractContextManager[None]:
    """Return the context of a command that reads weights: with torch only for ``--trust``."""
    return running(console, step) if trust else console.status(step)


def _import_torch() -> None:
    """Import torch without looking for garbage."""
    with without_collection():
        import torch  # noqa: F401
    gc.freeze()
