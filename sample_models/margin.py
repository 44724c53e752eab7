"""A loss of one's own: how far another class is ahead of the right one, or behind. Try:

    hookscope grads digits.py:trained --loss margin.py:margin --target 5
    hookscope grads digits.py:trained --loss margin.py:energy --layer "fc*"

It is negative where the model is right. The class is handed over as the number that was typed.
"""

from __future__ import annotations

from torch import Tensor


def margin(output: Tensor, target: int) -> Tensor:
    """Return the mean over a batch (BxC) of the highest other score minus that of the target."""
    others = [index for index in range(output.shape[1]) if index != target]
    return (output[:, others].amax(1) - output[:, target]).mean()


def energy(output: Tensor, input: Tensor) -> Tensor:
    """Return the mean square of the output over that of the input."""
    return output.square().mean() / input.square().mean()
