"""What each command that runs a model does around it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from hookscope.cli.log import listen
from hookscope.cli.out import Out
from hookscope.errors import EnvironmentFault


@contextmanager
def running(out: Out, what: str) -> Iterator[None]:
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
        listen(out)
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
