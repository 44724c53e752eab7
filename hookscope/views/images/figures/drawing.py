"""A finished picture: the figure, what it shows, and its way into a file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from hookscope.files.atomic_files import replacement_file
from hookscope.specs.output_path import MARK, picture_ending
from hookscope.views.images.figures.canvas import paper_style

# In each format, who made the file; the date that matplotlib would write is left out.
_METADATA: dict[str, dict[str, str | None]] = {
    ".png": {"Software": MARK},
    ".svg": {"Creator": MARK, "Date": None},
    ".pdf": {"Creator": MARK, "Producer": MARK, "CreationDate": None},
}


@dataclass(frozen=True)
class Drawing:
    """A picture.

    Attributes:
        figure: the matplotlib figure, to be changed at will.
        kind: ``maps``, ``hist``, ``flow``, ``heat``, ``attention`` or ``filters``.
        shows: what is in it, a line for each tensor.
        dark: whether it is drawn on dark paper.
    """

    figure: Figure
    kind: str
    shows: tuple[str, ...]
    dark: bool = False

    def save(self, path: str | os.PathLike[str], dpi: int = 150) -> int:
        """Write the picture as a whole; return the file's size in bytes.

        The same picture gives the same bytes.

        Args:
            path: its ending tells the format: ``.png``, ``.svg`` or ``.pdf``.
            dpi: pixels an inch, of what is made of pixels.

        Raises:
            RequestError: the ending is another one.
            StoreError: the file cannot be written. An earlier one is then as it was.
        """
        ending = picture_ending(Path(path))
        with (
            replacement_file(path, "Choose another place with --output.") as scratch,
            paper_style(self.dark),
        ):
            self.figure.savefig(scratch, format=ending[1:], dpi=dpi, metadata=_METADATA[ending])
            return scratch.stat().st_size
