"""Inputs that no memory holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

import hookscope
from hookscope.errors import InputError

SHAPES = [(999_999, 1, 9999, 9999), (10**9, 10**9, 10**9, 10**9), (10**20, 1, 8, 8)]


@pytest.mark.parametrize("shape", SHAPES)
def test_noise_that_does_not_fit_into_memory_is_an_error_of_the_input(
    shape: tuple[int, ...],
) -> None:
    model = nn.Conv2d(1, 1, 3)
    calls: list[Callable[[], object]] = [
        lambda: hookscope.capture(model, shape=shape),
        lambda: hookscope.tree(model, shapes=True, shape=shape),
        lambda: hookscope.capture(model, input="random:" + "x".join(map(str, shape))),
    ]
    for call in calls:
        with pytest.raises(InputError, match="does not fit into memory"):
            call()
