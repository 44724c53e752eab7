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
    from hookscope.results.capture_file import CaptureFile
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

    A result of ``cam`` is drawn as the maps over their images, unless ``keys`` or ``kind`` are
    given. No other option applies to that picture.

    Args:
        file: the file of a capture, or a capture in memory.
        keys: tensors, layers or globs of either, optionally followed by a slice; none means all
            tensors in the file.
        kind: ``maps``, ``hist``, ``flow``, ``heat`` or ``attention``. None: chosen by the keys (see
            docs/pictures.md).
        channels: channels to draw; for attention, heads.
        by: which channels, if ``channels`` is not given: the first (``index``), those with the
            largest mean absolute value (``strength``), or ``random`` ones.
        count: the maximum number of channels. ``heat`` draws all.
        seed: of randomly selected channels.
        dim: the channel dimension, if it is detected wrongly (see docs/show.md).
        scale: one colour scale for the whole ``grid``, or one for ``each`` channel.
        dark: use a dark background.

    Returns:
        The picture; ``save(path)`` writes it, and ``figure`` is the matplotlib figure.

    Raises:
        ResultsFileError: the file cannot be read.
        RequestError: a key matches nothing, an option is wrong, or the kind does not fit the keys.
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
    patterns = [keys] if isinstance(keys, str) else list(keys)
    if "cam" in capture.metadata and not patterns and kind is None:
        return _plot_cam(capture)
    choice = choose_plot(capture, patterns, kind)
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


def _plot_cam(capture: CaptureFile) -> Drawing:
    log.info("kind: cam (no KEY is given, and the file is a result of cam)")
    with require_matplotlib():
        from hookscope.views.images.figures.cam_figure import draw_cam
    from hookscope.views.images.cam_sheet import OverlayStyle, heading, sheet_of

    return draw_cam(sheet_of(capture, OverlayStyle()), heading(capture.metadata["cam"]))
