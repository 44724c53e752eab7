"""The result of comparing layers of features folders: a matrix of similarities."""

from __future__ import annotations

import csv
import io
import math
import os
from dataclasses import asdict, dataclass
from typing import Any

from hookscope.files.atomic_files import write_text
from hookscope.results.result import Result
from hookscope.specs.features_options import MEASURES


@dataclass(frozen=True)
class ComparedLayer:
    """One layer of a matrix of similarities.

    Attributes:
        key: the name of its tensor in the folder.
        shape: of one row; a row of several dimensions was flattened.
        problem: why its similarities are not defined; empty if they are.
    """

    key: str
    shape: tuple[int, ...]
    problem: str = ""


@dataclass(frozen=True)
class ComparedFolder:
    """The layers of one features folder, and the model that they are of."""

    folder: str
    model: str
    layers: tuple[ComparedLayer, ...]


@dataclass(frozen=True)
class LayerSimilarity(Result):
    """How similar layers are, from the features of the same inputs.

    Attributes:
        measure: its name: ``cka``, ``rsa``, ...
        a: the folder of the rows of the matrix.
        b: the folder of the columns; None if the layers of ``a`` are compared with each other.
        values: a tuple for each layer of A, with a number for each layer of B; 1 for the same up to
            what the measure ignores, NaN if it is not defined.
        rows: the number of inputs that were used.
        options: distance, correlation and number of neighbours, as far as the measure has them.
        notes: what was left out or flattened, in sentences.
    """

    view = "layer_similarity"

    measure: str
    a: ComparedFolder
    b: ComparedFolder | None
    values: tuple[tuple[float, ...], ...]
    rows: int
    options: dict[str, Any]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        size = f"{len(self.values)} by {len(self.columns.layers)} layers"
        return f"<LayerSimilarity {self.measure}: {size}, {self.rows} rows>"

    @property
    def columns(self) -> ComparedFolder:
        """The folder of the columns."""
        return self.a if self.b is None else self.b

    @property
    def title(self) -> str:
        """The full name of the measure, with its options."""
        options = [f"{value}" for name, value in self.options.items() if name != "neighbors"]
        if "neighbors" in self.options:
            options.append(f"{self.options['neighbors']} neighbours")
        name = MEASURES[self.measure].name
        return f"{name}, {', '.join(options)}" if options else name

    def value(self, a: str, b: str) -> float:
        """Return the similarity of a layer of A and a layer of B, by their keys or layers' names.

        Raises:
            KeyError: there is no such layer.
        """
        row = _index_of(self.a, a)
        return self.values[row][_index_of(self.columns, b)]

    def best(self, row: int) -> int | None:
        """Return the layer of B that is most similar to a layer of A; None if none is defined.

        In one folder, the layer itself does not count.
        """
        values = self.values[row]
        others = [j for j, v in enumerate(values) if not math.isnan(v) and (self.b or j != row)]
        return max(others, key=lambda j: values[j]) if others else None

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        return {
            "measure": self.measure,
            "options": self.options,
            "rows": self.rows,
            "a": asdict(self.a),
            "b": None if self.b is None else asdict(self.b),
            "values": [list(row) for row in self.values],
            "notes": list(self.notes),
        }

    def to_csv(self) -> str:
        """Return the matrix as CSV: a line for each layer of A, a column for each of B."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["layer", *(layer.key for layer in self.columns.layers)])
        for layer, values in zip(self.a.layers, self.values, strict=True):
            table.writerow([layer.key, *("" if math.isnan(v) else repr(v) for v in values)])
        return text.getvalue().rstrip("\n")  # a file gets the last line end when it is written

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the result as ``.csv``, or else as JSON, atomically; return the size in bytes.

        Raises:
            StoreError: the file cannot be written. An earlier file is not changed.
        """
        if os.fspath(path).lower().endswith(".csv"):
            return write_text(path, self.to_csv())
        return super().save(path)


def _index_of(folder: ComparedFolder, name: str) -> int:
    for index, layer in enumerate(folder.layers):
        if name in (layer.key, layer.key.rpartition("/")[0]):
            return index
    raise KeyError(name)
