"""Tensors made on the spot: noise, zeros, ones and whole numbers, of a shape that is typed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hookscope.errors import InputError
from hookscope.inputs.reading import Asked
from hookscope.specs.input import InputWord

_MAKERS: dict[str, Callable[[InputWord, torch.Generator], Tensor]] = {
    "random": lambda word, source: torch.randn(word.shape, generator=source),
    "zeros": lambda word, source: torch.zeros(word.shape),
    "ones": lambda word, source: torch.ones(word.shape),
    "ints": lambda word, source: torch.randint(*word.bounds, word.shape, generator=source),
}


def open_one(asked: Asked, word: InputWord) -> tuple[Tensor, None]:
    """Return the tensor of a word: float32, or int64 for ``ints``.

    Raises:
        InputError: it does not fit into memory.
    """
    try:
        return _MAKERS[word.rest](word, asked.source), None
    except (RuntimeError, MemoryError) as exc:  # what torch raises where memory gives out
        raise InputError(
            f"{word.word} cannot be made: there is no memory for it.", "Give a smaller shape."
        ) from exc
