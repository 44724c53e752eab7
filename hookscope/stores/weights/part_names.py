"""Names of files that are written about weights, one for each part of a checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

from hookscope.stores.weights.open_weights import split_part


def default_stem(text: str) -> str:
    """Return the name of an output without its suffix, by what the user typed.

    Example:
        >>> default_stem("runs/ckpt.pth"), default_stem("runs/ckpt.pth#ema")
        ('ckpt', 'ckpt.ema')
    """
    path, part = split_part(text)
    source = Path(path)
    # A dot in the name of a folder begins no suffix.
    stem = source.resolve().name if source.is_dir() else source.stem
    part = re.sub(r"[^\w.-]+", "_", part)
    return f"{stem}.{part}" if part else stem
