"""The result of ``plot`` of a features folder: its rows as points, their neighbours, outliers."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from hookscope.files.output_path import ANALYSES, PAGE, known_ending
from hookscope.files.words import plural
from hookscope.results.result import Result
from hookscope.specs.choices import DPI, SCATTER

OUTLIERS = 10


@dataclass(frozen=True)
class ScatterPoint:
    """A row as a point.

    Attributes:
        row: its number in the folder.
        name: the path of its input, or the number of an item of a Dataset.
        sha256: of the input; None if it is not a file.
        x: where it is on the first axis.
        y: where it is on the second axis.
        value: its value in the column that colours the points; None if it has none.
        neighbors: the nearest rows, by Euclidean distance of the features, the nearest first.
        distance: the distance to the last of them.
    """

    row: int
    name: str
    sha256: str | None
    x: float
    y: float
    value: Any
    neighbors: tuple[int, ...]
    distance: float


@dataclass(frozen=True)
class FeatureScatter(Result):
    """The rows of a layer in two dimensions.

    Attributes:
        folder: the features folder.
        model: the model that made the features.
        key: the tensor.
        shape: of one row, which is flattened.
        method: ``pca``, ``umap`` or ``tsne``.
        about: the method with its settings and seed, for a sentence.
        explained: the share of the variance along each axis; empty unless the method is ``pca``.
        color_by: the column that colours the points; None for one colour.
        rows: number of rows that could be used, among which neighbours are searched.
        points: those that are drawn.
        notes: what was left out or sampled, in sentences.
        dark: whether the picture has a dark background.
        places: folders or files from which inputs may be read again.
    """

    view = "feature_scatter"
    kind: ClassVar[str] = SCATTER

    folder: str
    model: str
    key: str
    shape: tuple[int, ...]
    method: str
    about: str
    explained: tuple[float, ...]
    color_by: str | None
    rows: int
    points: tuple[ScatterPoint, ...]
    notes: tuple[str, ...]
    dark: bool = False
    places: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<FeatureScatter of {self.key}: {plural(len(self.points), 'point')}, {self.method}>"

    @property
    def shows(self) -> tuple[str, ...]:
        """What the picture shows, as of other pictures."""
        return (f"{self.key}: {plural(len(self.points), 'row')}, {self.about}",)

    @property
    def outliers(self) -> tuple[ScatterPoint, ...]:
        """The points with the largest ``distance``, at most 10, the largest first."""
        ranked = sorted(self.points, key=lambda point: -point.distance)
        return tuple(ranked[:OUTLIERS])

    @property
    def figure(self) -> Any:
        """The picture as a matplotlib figure."""
        return self._shown("display", "draw_analysis", DPI).figure

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        names = [f.name for f in fields(self) if f.name not in ("dark", "places")]
        told = {name: getattr(self, name) for name in names}
        points = [{f.name: getattr(p, f.name) for f in fields(p)} for p in self.points]
        return {**told, "points": points, "outliers": [point.row for point in self.outliers]}

    def save(self, path: str | os.PathLike[str], dpi: int = DPI) -> int:
        """Write a picture, a page (``.html``), a table (``.csv``) or JSON; return the size.

        Raises:
            RequestError: the name has another ending.
            StoreError: the file cannot be written. An earlier file is not changed.
        """
        if known_ending(Path(path), (*ANALYSES, PAGE)) == ".json":
            return super().save(path)
        return int(self._shown("display", "write_analysis", Path(path), dpi))
