"""A finished drawing: the figure, its style and caption, and how it is written to a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookscope.files.atomic_files import replacement_file
from hookscope.files.output_path import JPEG_OPTIONS, MARK, picture_ending
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.results.metadata import OWN_WEIGHTS, has_random_weights
from hookscope.specs.choices import DPI
from hookscope.specs.tensor_key import ATTENTION, PARAM_UPDATE, UNEDITED, WEIGHT, is_gradient

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The program that made the file; the date that matplotlib would add is left out.
_METADATA: dict[str, dict[str, str | None]] = {
    ".png": {"Software": MARK},
    ".svg": {"Creator": MARK, "Date": None},
    ".pdf": {"Creator": MARK, "Producer": MARK, "CreationDate": None},
}

NOTEBOOK_DPI = 100  # of a drawing in a notebook
PAPERS = ("white", "#16191d")  # light and dark
FONT_FAMILY = "DejaVu Sans"  # part of matplotlib: the same on every machine
TEXT, SMALL = 8.0, 7.0  # points


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


@signal_safe_contextmanager
def paper_style(dark: bool) -> Iterator[None]:
    """Set the style of figures while they are made and written, whatever the user's settings."""
    from matplotlib import style

    back, ink = PAPERS[dark], "#e4e6e8" if dark else "#1c1e21"
    line = "#8b9199" if dark else "#6b7178"
    colors = {"figure.facecolor": back, "axes.facecolor": back, "savefig.facecolor": back}
    colors |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), ink)
    colors |= dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), ink)
    colors |= dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), line)
    look = {
        "font.family": [FONT_FAMILY],
        "font.size": TEXT,
        "axes.titlesize": SMALL,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "legend.fontsize": SMALL,
        "axes.linewidth": 0.6,
        "axes.formatter.limits": [-2, 4],  # keeps the numbers beside a colour bar short
        "grid.alpha": 0.3,
        "grid.linewidth": 0.5,
        "svg.fonttype": "none",  # text stays text: it is small and can be searched
        "svg.hashsalt": "hookscope",  # otherwise ids in the file would be random
        "pdf.fonttype": 42,
    }
    with style.context(["default", colors | look]):
        yield


def quantity_name(kind: str) -> str:
    """Return the quantity in a record of this kind, for an axis."""
    if is_gradient(kind):
        return "gradient"
    names = {ATTENTION: "attention weight", PARAM_UPDATE: "update", WEIGHT: "weight"}
    return names.get(kind.removesuffix(UNEDITED), "value")


def recording_caption(metadata: dict[str, Any]) -> str:
    """Return the model and the input of a recording.

    >>> model = {"spec": "vgg11", "weights": "random"}
    >>> recording_caption({"model": model, "inputs": [{"spec": "noise"}]})
    'vgg11, random weights (untrained); input: noise'
    """
    model = metadata.get("model") or {}
    caption = os.path.basename(str(model.get("spec", "an unnamed model")))
    if "weights" in model:
        caption += f", {os.path.basename(str(model['weights']))}"
        caption += "" if model["weights"] in OWN_WEIGHTS else " weights"
        caption += " (untrained)" if has_random_weights(metadata) else ""
    inputs = metadata.get("inputs") or ()
    # One spec may give several tensors, such as the ids of a text and their mask.
    specs = dict.fromkeys(str(entry.get("spec", "")) for entry in inputs)
    names = [os.path.basename(spec) for spec in specs]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        caption += f"; input: {names[0]}{more}"
    return caption
