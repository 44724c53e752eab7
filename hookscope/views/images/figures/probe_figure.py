"""Probes as a picture: a curve of the held-out score over the layers."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter

from hookscope.results.layer_probes import LayerProbes
from hookscope.views.images.figures.canvas import (
    SERIES,
    escape_text,
    finish_figure,
    label_inches,
    new_figure,
    paper_style,
    shorten_middle,
)
from hookscope.views.images.figures.drawing import Drawing
from hookscope.views.text.probe import probe_title, probed_name

_STEP, _HEIGHT = 0.3, 2.6  # inches of a layer, and of the panel
_WIDEST = 14.0  # inches of all layers
_LEGEND = 1.6  # inches of the legend beside the panel
_LABELLED = 60  # layers up to which each has its name


def draw_probes(result: LayerProbes) -> Drawing:
    """Draw the mean of each layer with its deviation over the splits, and training scores."""
    names = [shorten_middle(probed_name(layer.key), 32) for layer in result.layers]
    positions = np.arange(len(names))
    step = min(_STEP, _WIDEST / len(names))
    labelled = len(names) <= _LABELLED
    below = label_inches(map(escape_text, names)) if labelled else 0.3
    with paper_style(dark=False):
        title = f"Held-out {result.score} of probes of {result.labels}"
        figure, _ = new_figure(
            len(names) * step + 1.0 + _LEGEND,
            _HEIGHT + below,
            title,
            f"{result.model}. {probe_title(result)}",
        )
        axes = figure.subplots()
        means = np.array([layer.mean for layer in result.layers])
        spread = np.nan_to_num(np.array([layer.spread for layer in result.layers]))
        train = np.array([layer.train_mean for layer in result.layers])
        axes.plot(
            *(positions, train),
            color=SERIES[1],
            marker="s",
            markersize=3,
            linewidth=0.8,
            linestyle="--",
            label="on training rows",
        )
        axes.errorbar(
            *(positions, means, spread),
            color=SERIES[0],
            marker="o",
            markersize=4,
            linewidth=1.2,
            capsize=2,
            label="held out (mean, std)",
        )
        axes.axhline(result.baseline, color="#6b7178", linewidth=0.8, label="without features")
        axes.set_ylabel(result.score.replace("R2", "R²"))
        if labelled:
            axes.xaxis.set_major_locator(FixedLocator(positions.tolist()))
            escaped = [escape_text(name) for name in names]
            axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: escaped[int(at)]))
            axes.tick_params(axis="x", rotation=90)
        else:
            axes.set_xlabel("number of the layer")
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        # Beside the panel: inside, it would cover a curve or a bar.
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, frameon=False)
        finish_figure(figure)
    return Drawing(figure, "probe", (f"{result.score} of {len(names)} layers",))
