"""What all figures share: escaped text, a title, labels of axes, numbers as colours."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.escapes import visible
from hookscope.files.suggestions import did_you_mean
from hookscope.views.images.colors import DIVERGING, INFINITE, NAN, RGB, SEQUENTIAL, ColorScale
from hookscope.views.images.figures.drawing import FONT_FAMILY, SMALL, TEXT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# Blue, orange, green, purple, light blue, pink and red: the seven colours with the largest distance
# from each other in all kinds of colour vision, among those with the contrast that WCAG 2 requires
# of graphics (3 to 1) on both backgrounds.
SERIES = ("#0E5BE4", "#F16B00", "#13A868", "#9B489F", "#4D93FB", "#BA83A4")
WARNING = "#CB0D2D"
MARKERS = ("o", "s", "^", "D", "v", "P", "h")  # series differ by more than colour
MAX_PANELS = 400
MIN_WIDTH = 4.5  # inches of a figure
_TOKEN_LETTERS = 16  # of the text of a token beside an axis
_TITLE = 11.0  # points
_LETTER = 0.62 / 72  # width of a letter in inches, for each point of its size


def new_figure(
    width: float,
    height: float,
    title: str,
    about: str,
    layout: str | None = "constrained",
    left: float = 0.06,
) -> tuple[Figure, float]:
    """Return an empty figure with a title, and the model and its input at its foot."""
    from matplotlib.figure import Figure

    width = max(width, MIN_WIDTH)
    above, below = (
        _wrapped(text, width - left, size) for text, size in ((title, _TITLE), (about, TEXT))
    )
    head, foot = 0.2 * len(above) + 0.12, 0.16 * len(below) + 0.08
    figure = Figure(figsize=(width, height + head + foot), layout=layout)  # type: ignore[arg-type]
    whole = height + head + foot
    # A layout engine positions title and foot itself.
    edges = ({}, {}) if layout else ({"y": 1 - 0.06 / whole}, {"y": 0.05 / whole})
    start = {"x": left / width, "ha": "left"}
    figure.suptitle("\n".join(above), fontsize=_TITLE, **start, **edges[0])
    figure.supxlabel("\n".join(below), fontsize=TEXT, **start, **edges[1])
    return figure, foot


def finish_figure(figure: Figure) -> Figure:
    """Return the figure with styled ticks: ticks made later would have the user's settings."""
    from matplotlib import rcParams

    for axes in figure.axes:
        axes.tick_params(
            which="both",
            color=rcParams["xtick.color"],
            labelcolor=rcParams["xtick.labelcolor"],
            labelsize=SMALL,
        )
    return figure


def escape_text(text: str) -> str:
    r"""Return ``text`` as matplotlib prints it literally; what the font lacks is escaped.

    >>> print(escape_text("a_1 $x$"))
    a_1 \$x\$
    """
    from matplotlib.font_manager import findfont, get_font

    font = get_font(findfont(FONT_FAMILY))
    shown = [
        sign
        if sign.isprintable() and font.get_char_index(ord(sign))
        else sign.encode("unicode_escape").decode()
        for sign in text
    ]
    return "".join(shown).replace("$", r"\$")


def shorten_middle(text: str, letters: int) -> str:
    """Return ``text``, with its middle left out if it is longer than ``letters``."""
    if len(text) <= letters:
        return text
    head = (letters - 1) // 3
    return f"{text[:head]}…{text[head + 1 - letters :]}"


def token_tick(text: str) -> str:
    """Return the text of a token as a label of an axis, shortened in the middle.

    >>> token_tick(" capital"), token_tick("incomprehensibilities")
    (' capital', 'incom…sibilities')
    """
    return escape_text(shorten_middle(visible(text), _TOKEN_LETTERS))


def label_inches(texts: Iterable[str], size: float = SMALL) -> float:
    """Return the width in inches of the widest of some small labels, as they are drawn."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font = FontProperties(family=[FONT_FAMILY], size=size)
    measure = TextToPath().get_text_width_height_descent
    return max((measure(text, font, False)[0] / 72 for text in texts), default=0.0)


def name_ticks(axis: Axis, names: Sequence[str]) -> None:
    """Label the first positions of an axis with these names."""
    from matplotlib.ticker import FixedLocator, FuncFormatter

    texts = list(map(escape_text, names))
    axis.set_major_locator(FixedLocator(list(range(len(texts)))))
    axis.set_major_formatter(FuncFormatter(lambda at, _: texts[int(at)]))


def draw_gridlines(axes: Axes, axis: Literal["x", "y"] = "y") -> None:
    """Draw the grid of an axis, below everything else."""
    axes.grid(axis=axis)
    axes.set_axisbelow(True)


def add_legend(axes: Axes) -> None:
    """Put a legend beside the panel: inside, it would cover a curve or a bar."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, frameon=False)


def _wrapped(text: str, width: float, size: float) -> list[str]:
    return textwrap.wrap(escape_text(text), max(int(width / (_LETTER * size)), 20))


def check_panel_count(panels: int) -> None:
    """Raise RequestError if there are too many panels for one figure."""
    if panels > MAX_PANELS:
        raise RequestError(
            f"That would be {panels} panels, and a figure has room for {MAX_PANELS}.",
            "Choose fewer keys or channels.",
        )


def draw_image(
    axes: Axes, image: NDArray[Any], scale: ColorScale, aspect: Literal["equal", "auto"] = "equal"
) -> AxesImage:
    """Draw numbers as colours; NaN and infinity have their own, others are cut to the scale."""
    from matplotlib.colors import ListedColormap

    plain_table = ListedColormap((DIVERGING if scale.diverging else SEQUENTIAL) / 255)
    nan, infinite = ("#{:02x}{:02x}{:02x}".format(*color) for color in (NAN, INFINITE))
    table = plain_table.with_extremes(bad=nan, over=infinite, under=infinite)
    # matplotlib treats infinite entries as missing, like NaN, but not numbers outside the scale.
    past = np.where(image > 0, scale.high + abs(scale.high) + 1, scale.low - abs(scale.low) - 1)
    inside = image.astype(np.float64)
    if scale.low < scale.high:
        inside = np.clip(inside, scale.low, scale.high)
    # With a span of zero, a colour bar would widen the scale of its panel.
    alone = scale.low == scale.high
    return axes.imshow(
        np.where(np.isinf(image), past, inside),
        cmap=table,
        vmin=scale.low,
        vmax=scale.low + (abs(scale.low) or 1) if alone else scale.high,
        aspect=aspect,
        # Smoothing would mix the values of neighbours, which need not have to do with each other.
        interpolation="nearest",
    )


def color_table(name: str) -> RGB:
    """Return 256 colours of a colour map, uint8 (256, 3), from its lowest to its highest."""
    from matplotlib import colormaps

    if name not in colormaps:
        near = did_you_mean(name, list(colormaps)) or "Some are viridis, magma, turbo and jet."
        raise RequestError(
            f"matplotlib has no colour map called {name!r}.",
            f"{near} matplotlib.colormaps lists all.",
        )
    return np.asarray(colormaps[name](np.linspace(0, 1, 256), bytes=True))[:, :3]
