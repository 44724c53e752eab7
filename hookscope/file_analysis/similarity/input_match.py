"""Whether the rows of two features folders are of the same inputs, by their tables of inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.file_analysis.similarity.layer_rows import row_count
from hookscope.stores.features.features import Features

_SAME = "Extract both folders from the same inputs, in the same order."
UNVERIFIED = (
    "The inputs are items of a Dataset: their numbers agree, but their contents cannot be compared."
)


def usable_rows(a: Features, b: Features | None, every: int) -> tuple[NDArray[np.intp], list[str]]:
    """Return the rows to use, after checking that both folders are of the same inputs.

    Rows whose input was skipped in either folder are left out, with a note.
    """
    notes = [] if b is None else check_same_inputs(a, b)
    skipped = {*a.inputs.skipped, *(() if b is None else b.inputs.skipped)}
    numbers = np.arange(0, a.rows, every)
    if skipped:
        numbers = numbers[~np.isin(numbers, list(skipped))]
        notes.append(f"Left out because their input was skipped: {row_count(len(skipped))}.")
    return numbers, notes


def check_same_inputs(a: Features, b: Features) -> list[str]:
    """Check that the rows of two folders are of the same inputs; return notes on what is unknown.

    Files are the same if their SHA-256 is; a file that was moved is the same file. Items of a
    Dataset are the same if their numbers are, which a note says. Inputs that were skipped in either
    folder are not compared.
    """
    if a.rows != b.rows:
        raise RequestError(
            f"{a.folder} has {a.rows} rows and {b.folder} has {b.rows}: they are of different"
            " inputs.",
            _SAME,
        )
    unverified = False
    for row, (one, other) in enumerate(zip(a.inputs, b.inputs, strict=True)):
        if "skipped" in one or "skipped" in other:
            continue
        name = "sha256" if "sha256" in one and "sha256" in other else "item"
        if one.get(name) is None or one.get(name) != other.get(name):
            raise RequestError(
                f"Row {row} of {a.folder} is {_named(one)}, and of {b.folder} it is"
                f" {_named(other)}: they are different inputs.",
                _SAME,
            )
        unverified |= name == "item"
    return [UNVERIFIED] if unverified else []


def _named(entry: dict[str, Any]) -> str:
    if "path" in entry:
        digest = str(entry.get("sha256", ""))[:8]
        return f"{entry['path']} (SHA-256 {digest}...)"
    return f"item {entry.get('item')} of a Dataset"
