"""A small CNN, really trained, that reads handwritten digits of 8x8 pixels.

train_digits.py trained it on scikit-learn's digits; of those it never saw it names 98.3% (354 of
360) rightly. The file offers all that hookscope looks for in a model file: a factory, an example
input, its own preprocessing and the names of the classes. Try, in this folder:

    hookscope tree digits.py:trained --shapes
    hookscope capture digits.py:trained --layer "conv*" --input five.png
    hookscope grads digits.py:trained --loss kl --target 5 --input five.png
    hookscope capture digits.py:DigitsCNN --model-arg width=4

The last one builds the untrained class with a quarter of the channels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent

categories = tuple("0123456789")


class DigitsCNN(nn.Module):
    """Two convolutions, one pooling and one linear layer: Bx1x8x8 in, Bx10 logits out.

    Args:
        width: channels of the first convolution; the second has twice as many.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.relu2 = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(2 * width * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the ten digits."""
        x = self.relu1(self.conv1(images))
        x = self.pool(self.relu2(self.conv2(x)))
        logits: Tensor = self.fc(x.flatten(1))
        return logits


def trained() -> DigitsCNN:
    """Return the model with the weights that lie beside this file."""
    model = DigitsCNN()
    model.load_state_dict(load_file(HERE / "digits.safetensors"))
    return model.eval()


def preprocess(image: Image.Image) -> Tensor:
    """Return an image of one light digit on a dark ground as 1x8x8 float32 from 0 to 1."""
    small = image.convert("L").resize((8, 8), Image.Resampling.BOX)
    return torch.from_numpy(np.asarray(small, dtype=np.float32) / 255).unsqueeze(0)


def example_input() -> Tensor:
    """Return the five of five.png as a batch of one: 1x1x8x8 float32."""
    with Image.open(HERE / "five.png") as image:
        return preprocess(image).unsqueeze(0)
