"""A folder of JPEG files such as a camera's, always the same ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def write(folder: Path, count: int, width: int = 500, height: int = 375, kinds: int = 64) -> Path:
    """Write ``count`` photographs' likenesses, of ``kinds`` different ones; return the folder."""
    random = np.random.default_rng(0)
    folder.mkdir()
    contents: list[bytes] = []
    for i in range(count):
        path = folder / f"{i:06d}.jpg"
        if i < kinds:
            coarse = random.integers(0, 255, (height // 12, width // 12, 3), dtype=np.uint8)
            picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
            picture.save(path, quality=90)
            contents.append(path.read_bytes())
        else:
            path.write_bytes(contents[i % kinds])
    return folder
