"""The file of a result with many runs, of which an interrupted command wrote only some."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hookscope.files import strict_json
from hookscope.files.output_path import is_hookscope_file

Entry = TypeVar("Entry")


def unfinished_entries(
    path: str | os.PathLike[str],
    expected: Mapping[str, Any],
    kind: type[Entry],
    name: str,
    numbers: Collection[str],
) -> list[Entry]:
    """Return the entries in a file of the same runs, if it was interrupted; else none."""
    if not is_hookscope_file(Path(path), ".json"):
        return []
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        expected = json.loads(strict_json.dumps(expected))
        made = [kind(**_parse_numbers(entry, numbers)) for entry in document[name]]
        invalid = any(strict_json.fields_type_error(vars(entry), kind) for entry in made)
        same = _without_entries(document, name) == _without_entries(expected, name)
        known = expected.get("fingerprint", "") is not None  # None for offloaded weights
        unfinished = len(made) < document["total"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []
    return made if known and same and not invalid and unfinished else []


def _without_entries(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {k: v for k, v in document.items() if k not in (name, "finished")}


def _parse_numbers(entry: Mapping[str, Any], numbers: Collection[str]) -> dict[str, Any]:
    """An entry of a file, with NaN and infinities parsed."""
    return {k: strict_json.parse_number(v) if k in numbers else v for k, v in entry.items()}
