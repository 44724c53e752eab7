"""What a table of texts is: rows, each with a text and with values that are stored beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookscope.errors import InputError
from hookscope.files.input_files import TEXT_RESERVED
from hookscope.files.suggestions import did_you_mean
from hookscope.files.text_sources import DEFAULT_COLUMN, TextSource
from hookscope.files.words import list_first

MAX_NAMES = 20  # names of columns in a message


def plain_label(value: Any) -> int | float | str | bool | None:
    """Return a label as a plain value; None if it is not a text or a single finite number."""
    if getattr(value, "ndim", None) == 0:  # of torch and of numpy
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | int | str) else None


@dataclass(frozen=True)
class TextRow:
    """A line or a row of a table."""

    value: Any
    subject: str
    columns: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The text."""
        if not isinstance(self.value, str):
            raise InputError(f"{self.subject} is {type_name(self.value)}, not a text.")
        if not self.value.strip():
            raise InputError(f"{self.subject} is empty.")
        return self.value


class TextTable:
    """The texts of one file or folder. A subclass reads a format."""

    digest: str  # SHA-256 of the content, or another text that changes with it
    columns: tuple[str, ...] = ()  # that are stored beside the texts
    left_out = ""  # a note about other columns
    _unit = "Row"

    def __init__(self, source: TextSource) -> None:
        self._source = source
        self._column = source.column or DEFAULT_COLUMN

    def __len__(self) -> int:
        raise NotImplementedError

    def name(self, index: int) -> str:
        """Return the name of a text: the file and the number of the line or row, from 1."""
        return f"{self._source.path}:{index + 1}"

    def read(self, index: int) -> TextRow:
        """Return a text and the values of the other columns."""
        values = self._values(index)
        stored = stored_values(values, self.columns)
        return TextRow(values[self._column], self._where(index), stored)

    def _values(self, index: int) -> Mapping[str, Any]:
        """The values of a line or row by the names of their columns."""
        raise NotImplementedError

    def _where(self, index: int) -> str:
        return f"{self._unit} {index + 1} of {self._source.path!r}"

    def _choose_columns(self, names: Sequence[str], nested: Iterable[str] = ()) -> None:
        """Check that a table with these columns has that of the texts, and store the others."""
        path = self._source.path
        if self._column not in names:
            raise InputError(f"{path!r} has no column {self._column!r}.", self._hint(names))
        twice = next((name for name in names if name and names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"{path!r} has two columns named {twice!r}.", "Rename one of them.")
        self._store_columns(names, nested)

    def _store_columns(self, names: Iterable[str], nested: Iterable[str]) -> None:
        """Choose the columns that are stored beside the texts, and note the others."""
        others = [name for name in nested if name != self._column]
        plain = [name for name in names if name not in ("", self._column, *others)]
        reserved = [name for name in plain if name in TEXT_RESERVED]
        self.columns = tuple(name for name in plain if name not in reserved)
        reasons = [f"{list_first(others, MAX_NAMES)} (neither texts nor numbers)"] if others else []
        reasons += [f"{list_first(reserved, MAX_NAMES)} (reserved names)"] if reserved else []
        if reasons:
            where = f"columns of {self._source.path!r} that are not stored"
            self.left_out = f"{where}: {', '.join(reasons)}"

    def _hint(self, names: Sequence[str]) -> str:
        """Which columns a table has, and how to name one."""
        source = self._source
        near = did_you_mean(source.column, names) if source.column else ""
        example = f"Name one: {source.path}:{names[0]}." if names and not near else ""
        has = f"It has {list_first(names, MAX_NAMES) or 'none'}."
        return " ".join(filter(None, (near, has, example)))


def stored_values(values: Mapping[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    """Return the values of ``columns`` that are not missing: texts, booleans and finite numbers."""
    found = ((name, plain_label(values.get(name))) for name in columns)
    return {name: value for name, value in found if value is not None}


def type_name(value: Any) -> str:
    """Return what a value of JSON is, for messages."""
    kinds = ((bool, "a boolean"), (int | float, "a number"), (list, "a list"), (dict, "an object"))
    found = (name for kind, name in kinds if isinstance(value, kind))
    return "null" if value is None else next(found, type(value).__name__)
