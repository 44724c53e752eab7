"""Images in a grid with colour bars: panels of one size, positioned in inches.

There is no layout engine: those of matplotlib need seconds for hundreds of panels and leave gaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hookscope.views.images.colors import ColorScale, color_scale
from hookscope.views.images.figures.canvas import draw_image

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE = 0.16  # inches of a line of small text
_GAP, _BAR, _BAR_TEXT = 0.08, 0.12, 0.72  # inches


@dataclass(frozen=True)
class Grid:
    """Panels of one size."""

    panels: int
    columns: int
    width: float
    height: float
    each: bool = False
    lines: int = 1
    left: float = 0.0
    below: float = 0.0
    bar: bool = True

    @property
    def rows(self) -> int:
        """Number of panels below each other."""
        return math.ceil(self.panels / self.columns)

    @property
    def cell(self) -> tuple[float, float]:
        """Width and height of a panel with its labels and its colour bar, in inches."""
        bar = _BAR + 0.42 if self.each and self.bar else 0.0
        wide = self.left + self.width + bar + _GAP
        return wide, self.lines * LINE + self.height + self.below + _GAP

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the whole grid, in inches."""
        bar = _BAR + _BAR_TEXT if self.bar and not self.each else 0.0
        return self.columns * self.cell[0] + bar + _GAP, self.rows * self.cell[1]

    @property
    def start(self) -> float:
        """Left edge of the first panel, in inches from that of the grid."""
        return _GAP + self.left

    def filling(self, width: float) -> Grid:
        """Return the grid with larger panels if it is narrower than ``width``, in inches.

        >>> round(Grid(4, 2, 1.0, 1.0).filling(4.5).size[0], 6)
        4.5
        """
        wider = self.width + max(width - self.size[0], 0.0) / self.columns
        return replace(self, width=wider, height=self.height * wider / self.width)

    def add_bar(self, figure: Figure, left: float, top: float) -> Axes:
        """Return a new panel for the colour bar of the grid, from its first row to its last."""
        tall = self.size[1] - self.lines * LINE - self.below - _GAP
        x = left + self.columns * self.cell[0] + _GAP * 1.5
        return add_panel(figure, x, top - self.lines * LINE - tall, _BAR, tall)

    def add_panels(self, figure: Figure, left: float, top: float) -> Iterator[Axes]:
        """Yield the panels, row by row; the upper left corner is given in inches."""
        wide, tall = self.cell
        for i in range(self.panels):
            row, column = divmod(i, self.columns)
            x = left + _GAP + column * wide + self.left
            y = top - row * tall - self.lines * LINE - self.height
            yield add_panel(figure, x, y, self.width, self.height)


def columns_for(count: int, share: float) -> int:
    """Return the columns of a grid about as wide as high, with few empty cells in the last row.

    >>> columns_for(16, 1.0), columns_for(3, 1.0)
    (4, 3)
    """
    columns = min(math.ceil(math.sqrt(count / share)), count)
    return min((columns, min(columns + 1, count)), key=lambda n: -count % n)


def add_panel(figure: Figure, x: float, y: float, width: float, height: float) -> Axes:
    """Return a new panel at a position in inches from the figure's lower left corner."""
    whole_width, whole_height = figure.get_size_inches()
    box = (x / whole_width, y / whole_height, width / whole_width, height / whole_height)
    panel = figure.add_axes(box)
    panel.set_xticks([])
    panel.set_yticks([])
    return panel


def draw_grid(
    figure: Figure,
    grid: Grid,
    images: Sequence[NDArray[Any]],
    labels: Sequence[str],
    quantity: str,
    left: float,
    top: float,
    scale_of: Callable[[NDArray[Any]], ColorScale] = color_scale,
) -> list[Axes]:
    """Draw images in a grid, row by row, with one colour bar or one for each."""
    from matplotlib.ticker import MaxNLocator

    panels = list(grid.add_panels(figure, left, top))
    common = scale_of(np.concatenate([image.ravel() for image in images]))
    wide, _ = grid.cell
    for i, (panel, image, label) in enumerate(zip(panels, images, labels, strict=True)):
        shown = draw_image(panel, image, scale_of(image) if grid.each else common)
        # Entries are squares, unless the image would then be very narrow.
        if not 0.4 < image.shape[1] / image.shape[0] / (grid.width / grid.height) < 2.5:
            panel.set_aspect("auto")
        panel.set_title(label, pad=2)
        if grid.each:
            row, column = divmod(i, grid.columns)
            x = left + _GAP + column * wide + grid.left + grid.width + _GAP / 2
            y = top - row * grid.cell[1] - grid.lines * LINE - grid.height
            bar = add_panel(figure, x, y, _BAR / 2, grid.height)
            figure.colorbar(shown, cax=bar, ticks=MaxNLocator(3))
    if not grid.each:
        bar = grid.add_bar(figure, left, top)
        figure.colorbar(shown, cax=bar, label=quantity, ticks=_ticks_to_ends(*shown.get_clim()))
    return panels


def _ticks_to_ends(low: float, high: float) -> list[float]:
    """Both ends of a scale, and round numbers between that are not near them."""
    from matplotlib.ticker import MaxNLocator

    margin = 0.07 * (high - low)
    between = MaxNLocator(6).tick_values(low, high)
    return [low, *(float(x) for x in between if low + margin < x < high - margin), high]
