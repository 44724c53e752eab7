"""The labels of rows: from a column of a features folder, or from a CSV file."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError, cause
from hookscope.file_analysis.similarity.layer_rows import row_count
from hookscope.specs.probe_options import LOGISTIC, RIDGE
from hookscope.stores.features.features import Features


@dataclass(frozen=True)
class RowLabels:
    """Rows with their labels."""

    rows: NDArray[np.intp]
    values: NDArray[Any]
    method: str
    notes: tuple[str, ...]

    @property
    def classes(self) -> dict[str, int]:
        """The number of rows of each class, in order of the names; empty for numbers."""
        if self.method == RIDGE:
            return {}
        return dict(sorted(Counter(self.values.tolist()).items()))


def read_labels(features: Features, source: str, by: str | None) -> RowLabels:
    """Return the labels of the rows of a folder."""
    in_file = source not in features.columns and (
        os.path.isfile(source) or source.lower().endswith(".csv")
    )
    labels = _labels_in_file(source, features.rows) if in_file else features.column(source)
    skipped = set(features.inputs.skipped)
    rows = [i for i, label in enumerate(labels) if label not in (None, "") and i not in skipped]
    notes = []
    if skipped:
        notes.append(f"Left out because their input was skipped: {row_count(len(skipped))}.")
    if missing := features.rows - len(rows) - len(skipped):
        notes.append(f"Left out because they have no label: {row_count(missing)}.")
    if not rows:
        raise RequestError(
            f"No row of {features.folder} has a label in {source}.", "Name others with --labels."
        )
    values = [labels[i] for i in rows]
    numbers = _as_numbers(values)
    if by is None:
        whole = numbers is None or all(float(number).is_integer() for number in numbers)
        by = LOGISTIC if whole else RIDGE
    if by == RIDGE:
        if numbers is None:
            odd = next(value for value in values if _as_numbers([value]) is None)
            raise RequestError(
                f"The label {odd!r} is not a finite number, as ridge regression needs.",
                "Use --by logistic for classes.",
            )
        targets: NDArray[Any] = np.array(numbers)
    else:
        targets = np.array([str(value) for value in values])
    if len(set(targets.tolist())) < 2:
        raise RequestError(
            f"All {len(rows)} labels are {values[0]!r}, and a probe needs at least two different"
            " ones.",
            "Name other labels with --labels.",
        )
    return RowLabels(np.array(rows, np.intp), targets, by, tuple(notes))


def _as_numbers(values: Sequence[Any]) -> list[float] | None:
    """The labels as finite numbers; None if one is not."""
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        return None
    return numbers if np.isfinite(numbers).all() else None


def _labels_in_file(path: str, rows: int) -> list[str]:
    """The labels in a file: one a line, with or without a first line that is their name."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = [line for line in csv.reader(file, strict=True) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RequestError(
            f"The labels in {path} cannot be read: {cause(error)}.",
            "Give a column of the folder, or a CSV file with one label in each line.",
        ) from error
    wide = next((number for number, line in enumerate(lines, 1) if len(line) > 1), None)
    if wide:
        raise RequestError(
            f"Line {wide} of {path} has {len(lines[wide - 1])} cells.",
            "Write one label in each line, in the order of the rows.",
        )
    if len(lines) not in (rows, rows + 1):
        raise RequestError(
            f"{path} has {len(lines)} labels, and the folder has {rows} rows.",
            "Write one label in each line, in the order of the rows.",
        )
    return [line[0].strip() for line in lines[len(lines) - rows :]]
