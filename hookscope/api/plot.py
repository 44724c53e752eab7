"""Plot a capture, in a file or in memory, without torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hookscope.results.capture_arrays import InMemory, open_source
from hookscope.specs.choices import CHANNEL_ORDERS, COLOR_SCALES, check_choice
from hookscope.views.images import require_matplotlib
from hookscope.views.images.feature_maps import DEFAULT_COUNT
from hookscope.views.images.plot_choice import choose_plot

if TYPE_CHECKING:
    from hookscope.views.images.figures.drawing import Drawing

log = logging.getLogger("hookscope")


def plot(
    file: str | os.PathLike[str] | InMemory,
    keys: str | Iterable[str] = (),
    *,
    kind: str | None = None,
    channels: Sequence[int] | None = None,
    by: str = CHANNEL_ORDERS[0],
    count: int = DEFAULT_COUNT,
    seed: int = 0,
    dim: int | None = None,
    scale: str = COLOR_SCALES[0],
    dark: bool = False,
) -> Drawing:
    """Plot a capture.

    Args:
        file: a file that ``capture``, ``grads``, ``step`` or ``Capture.save`` wrote, or a capture
            in memory.
        keys: tensors, layers or globs of either, each with a slice behind it if a part is meant;
            none means all that is in the file.
        kind: ``maps``, ``hist``, ``flow``, ``heat`` or ``attention``; None for what fits the keys
            (see docs/pictures.md).
        channels: channels (of attention, heads) to draw.
        by: which, if ``channels`` names none: the first (``index``), those of the largest mean
            absolute value (``strength``), or some at random.
        count: how many at most. ``heat`` draws them all.
        seed: of randomly selected channels.
        dim: the channel dimension, if it is detected wrongly (see docs/show.md).
        scale: one scale of colours for the ``grid``, or ``each`` its own.
        dark: light on dark paper.

    Returns:
        The picture; ``save(path)`` writes it, and ``figure`` is matplotlib's own.

    Raises:
        ResultsFileError: the file cannot be read.
        RequestError: a key matches nothing, a word is wrong, or the kind does not fit.
        EnvironmentFault: matplotlib is not installed.

    Example:
        >>> import hookscope
        >>> picture = hookscope.plot("sample_models/five.safetensors", "conv1", count=4)
        >>> picture.kind, picture.shows
        ('maps', ('conv1/output (1x16x8x8): channels 0-3 of 16',))
    """
    check_choice("by", by, CHANNEL_ORDERS)
    check_choice("scale", scale, COLOR_SCALES)
    capture = open_source(file)
    choice = choose_plot(capture, [keys] if isinstance(keys, str) else list(keys), kind)
    if choice.why:
        log.info("kind: %s (%s)", choice.kind, choice.why)
    if choice.left_out:
        log.info("left out: %s, which --kind %s does not draw", choice.left_out, choice.kind)
    with require_matplotlib():
        from hookscope.views.images.figures.capture_figure import draw_capture
        from hookscope.views.images.figures.drawing import FigureOptions
    return draw_capture(
        capture, choice, FigureOptions(channels, by, count, seed, dim, scale == "each", dark)
    )
