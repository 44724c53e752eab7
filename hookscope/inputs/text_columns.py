"""The columns of a table of texts: that of the texts, and those that are stored beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookscope.errors import InputError
from hookscope.files.input_files import TEXT_RESERVED
from hookscope.files.suggestions import did_you_mean
from hookscope.files.text_sources import DEFAULT_COLUMN, TextSource

_MAX_NAMES = 20  # names of columns in a message


def plain_label(value: Any) -> int | float | str | bool | None:
    """Return a label as a plain value; None if it is not a text or a single finite number.

    Example:
        >>> import torch
        >>> plain_label(torch.tensor(3)), plain_label("cat"), plain_label(torch.ones(2))
        (3, 'cat', None)
    """
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


def text_column(source: TextSource, names: Sequence[str]) -> str:
    """Return the column of the texts in a table with these columns."""
    column = source.column or DEFAULT_COLUMN
    if column not in names:
        raise InputError(f"{source.path!r} has no column {column!r}.", columns_hint(source, names))
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{source.path!r} has two columns named {twice!r}.", "Rename one of them.")
    return column


def columns_hint(source: TextSource, names: Sequence[str]) -> str:
    """Return which columns a table has, and how to name one."""
    near = did_you_mean(source.column, names) if source.column else ""
    example = f"Name one: {source.path}:{names[0]}." if names and not near else ""
    return " ".join(
        part for part in (near, f"It has {listed_names(names) or 'none'}.", example) if part
    )


def stored_columns(
    source: TextSource, names: Iterable[str], nested: Iterable[str] = ()
) -> tuple[tuple[str, ...], str]:
    """Return the columns that are stored beside the texts, and a note about the others."""
    others = list(nested)
    plain = [name for name in names if name and name not in others]
    reserved = [name for name in plain if name in TEXT_RESERVED]
    reasons = [f"{listed_names(others)} (neither texts nor numbers)"] if others else []
    reasons += [f"{listed_names(reserved)} (reserved names)"] if reserved else []
    note = f"columns of {source.path!r} that are not stored: {', '.join(reasons)}"
    return tuple(name for name in plain if name not in reserved), note if reasons else ""


def stored_values(values: Mapping[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    """Return the values of ``columns`` that are not missing: texts, booleans and finite numbers.

    Example:
        >>> stored_values({"a": 1, "b": None, "c": float("nan")}, ["a", "b", "c", "d"])
        {'a': 1}
    """
    found = ((name, plain_label(values.get(name))) for name in columns)
    return {name: value for name, value in found if value is not None}


def type_name(value: Any) -> str:
    """Return what a value of JSON is, for messages."""
    kinds = ((bool, "a boolean"), (int | float, "a number"), (list, "a list"), (dict, "an object"))
    found = (name for kind, name in kinds if isinstance(value, kind))
    return "null" if value is None else next(found, type(value).__name__)


def listed_names(names: Sequence[str]) -> str:
    """Return names for a message; of many the first."""
    return ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
