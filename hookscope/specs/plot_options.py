"""The options of pictures of tensors, checked without torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hookscope.specs.choices import (
    CHANNEL_ORDERS,
    COLOR_SCALES,
    PLOT_KIND_SYNONYMS,
    PLOT_KINDS,
)
from hookscope.specs.patterns import as_texts
from hookscope.specs.settings import setting
from hookscope.specs.value_readers import read_indices


@dataclass(frozen=True)
class PlotKeys:
    """What is drawn, by an option instead of a KEY."""

    section = "Picture"

    layer: str | Iterable[str] = setting(
        (),
        "Layer, key or glob, like a KEY. Repeatable.",
        flags=("--layer", "-l"),
        metavar="KEY",
        many=True,
        complete="keys",
        python="the same as ``keys``, which it is added to.",
    )

    def after(self, keys: str | Iterable[str]) -> list[str]:
        """Return the keys, followed by these."""
        return [*as_texts(keys), *as_texts(self.layer)]


@dataclass(frozen=True)
class PlotOptions:
    """Which picture is drawn, of which channels, and how it looks."""

    section = "Channels"

    kind: str | None = setting(
        None,
        f"Kind of plot: {', '.join(PLOT_KINDS)}. flow shows statistics layer by layer, heat"
        " channels by position, scatter rows of features. Default: what fits the KEYs.",
        section="Picture",
        metavar="KIND",
        choices=PLOT_KINDS,
        synonyms=PLOT_KIND_SYNONYMS,
        python="``maps``, ``hist``, ``flow``, ``heat`` or ``attention``; of weights ``hist`` or"
        " ``flow``; of features ``scatter``. None: chosen by the keys (see docs/pictures.md).",
    )
    channels: Sequence[int] | None = setting(
        None,
        "Channels to draw, such as 0,3,8-11.",
        kind="list",
        parse=read_indices,
        python="channels to draw; for attention, heads.",
    )
    by: str = setting(
        CHANNEL_ORDERS[0],
        "First, strongest or random channels. Strength is the mean absolute value.",
        choices=CHANNEL_ORDERS,
        python="which channels, if ``channels`` is not given: the first (``index``), those with the"
        " largest mean absolute value (``strength``), or ``random`` ones.",
    )
    count: int = setting(
        16,
        "Maximum number of channels.",
        metavar="N",
        minimum=1,
        python="the maximum number of channels. ``heat`` draws all.",
    )
    seed: int = setting(
        0,
        "Seed for --by random, and for a scatter.",
        metavar="N",
        minimum=0,
        shared="HOOKSCOPE_SEED",
        python="of randomly selected channels, of drawn rows, and of ``umap`` and ``tsne``.",
    )
    dim: int | None = setting(
        None,
        "Channel dimension, if detected wrongly (-1: last).",
        flags=("--channel-dim",),
        metavar="N",
        python="the channel dimension, if it is detected wrongly (see docs/show.md).",
    )
    scale: str = setting(
        COLOR_SCALES[0],
        "One colour scale for the grid, or for each panel.",
        section="Appearance",
        choices=COLOR_SCALES,
        python="one colour scale for the whole ``grid``, or one for ``each`` channel.",
    )
    dark: bool = setting(False, "Use a dark background.", section="Appearance")

    @property
    def each(self) -> bool:
        """Whether each panel has a colour scale of its own."""
        return self.scale == "each"
