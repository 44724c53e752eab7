"""Makes ``docs/images/run.png``, the picture of a training run's page, where there is a Chromium.

``python -m tools.run_picture`` trains a small network for 300 steps, which takes a minute, and
photographs the page of the run. The bytes depend on the browser, so nothing is compared.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image
from torch import nn

import hookscope
from tools.report_picture import BROWSERS

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "run.png"
STEPS, BATCH, SIZE, CLASSES = 300, 32, 16, 10
WINDOW = (1280, 1400)
TOP, BOTTOM = 316, 1344  # from the curves of the whole run to the first layers by depth


def network() -> nn.Module:
    """Return four blocks of convolution, normalization and ReLU, and a classifier."""
    model = nn.Sequential()
    for number in range(4):
        channels = 16 if number else 3
        model.add_module(f"conv{number + 1}", nn.Conv2d(channels, 16, 3, padding=1, bias=False))
        model.add_module(f"norm{number + 1}", nn.BatchNorm2d(16))
        model.add_module(f"relu{number + 1}", nn.ReLU())
    model.add_module("pool", nn.AdaptiveAvgPool2d(2))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", nn.Linear(64, CLASSES))
    return model


def train(folder: Path) -> None:
    """Train on noisy pictures of ten kinds, and write the run into an empty folder."""
    torch.manual_seed(0)
    kinds = torch.rand(CLASSES, 3, SIZE, SIZE)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    with hookscope.watch(model, optimizer, every=10, folder=folder):
        for _ in range(STEPS):
            labels = torch.randint(CLASSES, (BATCH,))
            images = kinds[labels] + 0.5 * torch.randn(BATCH, 3, SIZE, SIZE)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def main() -> int:
    """Make the picture, or say why not; return the exit status, which is 0 either way."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"{PICTURE.name} stays as it is: there is no Chromium.")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        page, photo = Path(scratch, "run.html"), Path(scratch, "run.png")
        train(Path(scratch, "run"))
        hookscope.report(Path(scratch, "run")).save(page)
        size = f"--window-size={WINDOW[0]},{WINDOW[1]}"
        words = ["--headless", "--no-sandbox", "--hide-scrollbars", size, f"--screenshot={photo}"]
        subprocess.run([browser, *words, page.as_uri()], check=True, capture_output=True)
        image = Image.open(io.BytesIO(photo.read_bytes()))
    part = image.crop((0, TOP, WINDOW[0], BOTTOM)).convert("RGB")
    part.quantize(128, dither=Image.Dither.NONE).save(PICTURE, optimize=True)  # a small file
    return 0


if __name__ == "__main__":
    sys.exit(main())
