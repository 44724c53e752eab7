"""A language model small enough to read: it says which letter comes next, untrained.

Each letter becomes 16 numbers; the mean of all letters so far goes through two layers, which give a
score for each of the 95 printable characters of ASCII. The file says how a text becomes the model's
input, and the model how it goes on by itself: each step is a call of every layer. Try, in this
folder:

    hookscope capture letters.py:Letters --input "text:hello"
    hookscope capture letters.py:Letters --input "text:hello" --generate 3 --layer scores
    hookscope capture letters.py:Letters --input ints:2x8:0-95
    hookscope capture letters.py:Letters --input letters.py:batches
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

FIRST, COUNT = ord(" "), 95


class Letters(nn.Module):
    """Numbers of letters (N, L), int64 from 0 to 94, to scores of the next one (N, L, 95)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.letters = nn.Embedding(COUNT, width)
        self.hidden = nn.Linear(width, 2 * width)
        self.scores = nn.Linear(2 * width, COUNT)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of the letter after each."""
        known = self.letters(ids).cumsum(1)
        mean = known / torch.arange(1, ids.shape[1] + 1)[:, None]
        out: Tensor = self.scores(self.hidden(mean).relu())
        return out

    def generate(self, ids: Tensor, max_new_tokens: int) -> Tensor:
        """Return the letters with the likeliest ones after them."""
        for _ in range(max_new_tokens):
            ids = torch.cat([ids, self(ids)[:, -1:].argmax(-1)], 1)
        return ids


def tokenize(texts: list[str]) -> Tensor:
    """Return the numbers of the letters; shorter texts get spaces at their end."""
    longest = max(map(len, texts))
    rows = [[ord(letter) - FIRST for letter in text.ljust(longest)] for text in texts]
    return torch.tensor(rows)


def batches() -> Iterator[Tensor]:
    """Yield pangrams, one at a time."""
    for text in ("the quick brown fox jumps over the lazy dog", "pack my box"):
        yield tokenize([text])


def example_input() -> Tensor:
    """Return the numbers of "hello"."""
    return tokenize(["hello"])
