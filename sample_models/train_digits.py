"""Trains the model of digits.py; with a FOLDER, writes its weights and the image of a five there.

Needs scikit-learn, which brings the data: 1797 digits of 8x8 pixels, the test part
of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998, UCI repository).
Runs for some seconds on a CPU and does the same every time:

    python sample_models/train_digits.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from digits import DigitsCNN
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.nn import functional as F

EPOCHS = 40
BATCH = 32


def split() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and labels, then those held out: 1437 and 360, the same every time.

    Images are Nx1x8x8 float32 from 0 to 1, labels N int64.
    """
    data = load_digits()
    images = (data.images / 16).astype(np.float32)[:, None]
    seen, unseen, seen_labels, unseen_labels = map(
        torch.from_numpy,
        train_test_split(images, data.target, test_size=360, stratify=data.target, random_state=0),
    )
    return seen, seen_labels, unseen, unseen_labels


def train(images: Tensor, labels: Tensor) -> DigitsCNN:
    """Return a model fitted to ``images`` by Adam, its step shrinking along half a cosine."""
    torch.manual_seed(0)
    model = DigitsCNN()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def correct(model: DigitsCNN, images: Tensor, labels: Tensor) -> Tensor:
    """Return for each image whether the model names it rightly, as N bool."""
    named: Tensor = model(images).argmax(1)
    return named == labels


def draw(digit: Tensor) -> Image.Image:
    """Return a 1x8x8 digit as a grey image of 128x128 pixels, each pixel a square of 16."""
    pixels = (digit[0] * 255).round().to(torch.uint8).numpy()
    return Image.fromarray(pixels).resize((128, 128), Image.Resampling.NEAREST)


@torch.no_grad()
def surest_five(model: DigitsCNN, images: Tensor, labels: Tensor) -> Tensor:
    """Return the five that the model is surest of, as 1x8x8."""
    fives = images[labels == 5]
    return fives[model(fives).log_softmax(1)[:, 5].argmax()]


def main() -> None:
    """Train and report the accuracy; write digits.safetensors and five.png if a folder is named."""
    torch.set_num_threads(1)  # sums then run in one order, whatever the machine
    images, labels, unseen, unseen_labels = split()
    model = train(images, labels)
    right = correct(model, unseen, unseen_labels)
    print(f"{int(right.sum())} of {len(right)} held-out digits right: {right.float().mean():.1%}")
    for folder in map(Path, sys.argv[1:2]):
        save_file(model.state_dict(), folder / "digits.safetensors")
        draw(surest_five(model, unseen, unseen_labels)).save(folder / "five.png", optimize=True)


if __name__ == "__main__":
    main()
