"""A finished drawing: the figure, what it shows, and how it is written to a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from hookscope.files.atomic_files import replacement_file
from hookscope.files.output_path import JPEG_OPTIONS, MARK, picture_ending
from hookscope.specs.choices import DPI
from hookscope.views.images.figures.canvas import paper_style

# The program that made the file; the date that matplotlib would add is left out.
_METADATA: dict[str, dict[str, str | None]] = {
    ".png": {"Software": MARK},
    ".svg": {"Creator": MARK, "Date": None},
    ".pdf": {"Creator": MARK, "Producer": MARK, "CreationDate": None},
}

NOTEBOOK_DPI = 100  # of a drawing in a notebook


@dataclass(frozen=True)
class FigureOptions:
    """Which channels are drawn, and how: see ``hookscope.plot``."""

    channels: Sequence[int] | None
    by: str
    count: int
    seed: int
    dim: int | None
    each: bool
    dark: bool


@dataclass(frozen=True)
class Drawing:
    """A drawing."""

    figure: Figure
    kind: str
    shows: tuple[str, ...]
    dark: bool = False

    def save(self, path: str | os.PathLike[str], dpi: int = DPI) -> int:
        """Write the drawing to a file, completely or not at all; return the file's size in bytes.

        The same drawing gives the same bytes.
        """
        ending = picture_ending(Path(path))
        with replacement_file(path, "Choose another path with --output.") as scratch:
            self._write(scratch, ending, dpi)
            return scratch.stat().st_size

    def __repr__(self) -> str:
        shown = self.shows[0] if self.shows else "nothing"
        more = f" and {len(self.shows) - 1} more" if len(self.shows) > 1 else ""
        return f"<Drawing of {self.kind}: {shown}{more}>"

    def _repr_png_(self) -> bytes:
        """Return the drawing as a PNG; Jupyter calls this."""
        file = BytesIO()
        self._write(file, ".png", NOTEBOOK_DPI)
        return file.getvalue()

    def _write(self, file: Path | BytesIO, ending: str, dpi: int) -> None:
        how: dict[str, Any] = {"metadata": _METADATA.get(ending)}
        if ending in (".jpg", ".jpeg"):
            how = {"pil_kwargs": dict(JPEG_OPTIONS)}
        with paper_style(self.dark):
            self.figure.savefig(file, format=ending[1:], dpi=dpi, **how)
