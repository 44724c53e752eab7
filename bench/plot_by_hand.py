"""What ``hookscope plot`` is measured against: the same grid of maps by hand.

``plot_by_hand.py FILE KEY PICTURE``.
"""

import sys

from matplotlib.figure import Figure
from safetensors.numpy import load_file

maps = load_file(sys.argv[1])[sys.argv[2]][0, :16]
bound = abs(maps).max()
low = -bound if maps.min() < 0 else 0
figure = Figure(figsize=(6, 6), layout="constrained")
panels = figure.subplots(4, 4)
for i, (axes, one) in enumerate(zip(panels.flat, maps, strict=True)):
    shown = axes.imshow(one, vmin=low, vmax=bound)
    axes.set_title(f"channel {i}", fontsize=7)
    axes.set_xticks([])
    axes.set_yticks([])
figure.colorbar(shown, ax=panels, label="value")
figure.savefig(sys.argv[3], dpi=150)
