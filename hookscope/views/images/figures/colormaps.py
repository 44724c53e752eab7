"""The colour maps of matplotlib, by name."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps

from hookscope.errors import RequestError
from hookscope.files.suggestions import did_you_mean
from hookscope.views.images.colors import RGB


def color_table(name: str) -> RGB:
    """Return 256 colours of a colour map, uint8 (256, 3), from its lowest to its highest.

    Example:
        >>> color_table("gray")[[0, 128, 255]].tolist()
        [[0, 0, 0], [128, 128, 128], [255, 255, 255]]
    """
    if name not in colormaps:
        near = did_you_mean(name, list(colormaps)) or "Some are viridis, magma, turbo and jet."
        raise RequestError(
            f"matplotlib has no colour map called {name!r}.",
            f"{near} matplotlib.colormaps lists all.",
        )
    return np.asarray(colormaps[name](np.linspace(0, 1, 256), bytes=True))[:, :3]
