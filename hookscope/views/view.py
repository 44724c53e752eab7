"""How a result is shown: as text, as a JSON document, as a page and as a picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hookscope.views.images.figures.drawing import Drawing

if TYPE_CHECKING:
    from rich.text import Text

    from hookscope.views.text.table import Column
    from hookscope.views.text.text_table import TextOptions

R = TypeVar("R")
SCHEMA = 1


@dataclass(frozen=True)
class View(Generic[R]):
    """How results of one class are shown.

    Each file of ``hookscope.views`` ends with the views that it defines, as constants. A result
    names its view: ``"lens"`` is ``VIEW`` in ``lens.py``, ``"training_run.CURVES"`` another one.

    Attributes:
        text: returns the lines that the command prints.
        document: returns what ``--json`` prints, from the result and the file that was written;
            None if there is none.
        page: writes a page of HTML and returns its size in bytes; None if there is none.
        picture: draws the result with a number of dots per inch; None if there is none.
        columns: those by which ``--sort`` can order the table; empty if they vary.
    """

    text: Callable[[R, TextOptions], list[Text]]
    document: Callable[[R, str | None], dict[str, Any]] | None = None
    page: Callable[[R, Path], int] | None = None
    picture: Callable[[R, int], Drawing] | None = None
    columns: tuple[Column, ...] = ()


def make_document(command: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return ``content`` with the schema version and the command before its keys.

    Example:
        >>> make_document("config", {"values": []})
        {'schema': 1, 'command': 'config', 'values': []}
    """
    rest = {key: value for key, value in content.items() if key not in ("schema", "command")}
    return {"schema": SCHEMA, "command": command, **rest}


def json_document(command: str) -> Callable[[Any, str | None], dict[str, Any]]:
    """Return what makes the document of a result from its ``to_json``."""
    return lambda result, file: make_document(command, result.to_json())


def filed_document(command: str) -> Callable[[Any, str | None], dict[str, Any]]:
    """Return what makes the document of a result and of the file that was written."""
    return lambda result, file: make_document(command, {**result.to_json(), "file": file})
