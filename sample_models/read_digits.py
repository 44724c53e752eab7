"""Reads the digits in images: a program with arguments of its own, which names no layer.

python sample_models/read_digits.py sample_models/digits/*.png
"""

from __future__ import annotations

import argparse

import torch
from digits import preprocess, trained
from PIL import Image


class Reader:
    """A model and what is done before and after it."""

    def __init__(self) -> None:
        self.network = trained()

    @torch.no_grad()
    def read(self, path: str) -> tuple[int, float]:
        """Return the digit in an image and its probability."""
        with Image.open(path) as image:
            logits = self.network(preprocess(image).unsqueeze(0))
        probability, digit = logits.softmax(1)[0].max(0)
        return int(digit), float(probability)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("images", nargs="+")
    reader = Reader()
    for path in parser.parse_args().images:
        digit, probability = reader.read(path)
        print(f"{path}: {digit} ({probability:.1%})")
