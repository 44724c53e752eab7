"""The result of ranking inputs by the activation of units."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from hookscope.files import strict_json
from hookscope.files.atomic_files import write_text
from hookscope.files.output_path import MARK
from hookscope.results.result import Result
from hookscope.stores.features.manifest import VisiblePart
from hookscope.version import __version__

SCHEMA = 1
QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)


@dataclass(frozen=True)
class RankedInput:
    """An input, and the activation of a unit for it."""

    row: int
    value: float
    position: tuple[int, ...] | None
    name: str
    sha256: str | None
    label: Any = None
    text: str | None = None
    token: str | None = None
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class RankedUnit:
    """A unit, channel or direction."""

    unit: int
    most: tuple[RankedInput, ...]
    least: tuple[RankedInput, ...]
    quantiles: tuple[float, ...]
    mean: float
    left_out: int


@dataclass(frozen=True)
class TopInputs(Result):
    """The inputs that excite units most and least.

    Attributes:
        folder: the features folder.
        model: the model that made the features.
        key: the tensor.
        shape: of one row.
        what: ``unit``, ``channel`` or ``direction``.
        by: how positions became one number; empty without positions.
        rows: number of inputs that were ranked.
        texts: whether the inputs are texts.
        grid: height and width of the positions, if they lie on the images; else None.
        visible_part: the part of an image that the grid covers; None if it is not known.
        units: the units.
        notes: what was left out or approximated, in sentences.
    """

    view = "top_inputs"

    folder: str
    model: str
    key: str
    shape: tuple[int, ...]
    what: str
    by: str
    rows: int
    texts: bool
    grid: tuple[int, int] | None
    visible_part: VisiblePart | None
    units: tuple[RankedUnit, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<TopInputs of {self.key}: {len(self.units)} {self.what}s, {self.rows} rows>"

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        return {**asdict(self), "quantiles": list(QUANTILES)}

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write ``to_json()`` to a file atomically; return its size in bytes.

        Raises:
            StoreError: the file cannot be written. An earlier file is not changed.
        """
        document = {MARK: __version__, "schema": SCHEMA, **self.to_json()}
        return write_text(path, strict_json.dumps(document))
