"""Hooks of one's own: functions with PyTorch's signatures, for ``--hook``.

- ``mute`` sets one channel of an output to zero (kind ``forward``).
- ``brighten`` adds to a module's input (``forward_pre``).
- ``sparsity`` changes nothing and records the share of zeros, as ``hookscope.emit`` lets it.
- ``clip`` limits every entry of a gradient (``tensor``), ``reverse`` turns round what flows back
  through a module (``backward``).
- ``keep_small`` limits every parameter after an optimizer's step (``step_post``).
- ``nothing_below`` raises when it sees a negative number: what that does to a recording.

Try, in this folder:

    hookscope capture digits.py:trained --layer "relu*" --hook own_hook.py:sparsity
    hookscope capture digits_scripted.pt --hook "conv1=own_hook.py:mute" --hook-arg channel=3
    hookscope capture digits.py:trained --hook "conv1=own_hook.py:brighten" --hook-kind forward_pre
    hookscope grads digits.py:trained --target 3 --hook "conv*=own_hook.py:clip" --hook-kind tensor
    hookscope grads digits_exported.pt2 --hook "conv2=own_hook.py:reverse" --hook-kind backward
    hookscope step digits.py:trained --hook own_hook.py:keep_small --hook-kind step_post
    hookscope trace digits_exported.pt2

With ``--hook "fc=own_hook.py:nothing_below"`` a capture ends with status 1, names the line, and
keeps what had been recorded before.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import hookscope


def mute(module: nn.Module, input: tuple[Tensor, ...], output: Tensor, channel: int = 0) -> Tensor:
    """Return BxCx... with zeros in one channel."""
    muted = output.clone()
    muted[:, channel] = 0
    return muted


def brighten(module: nn.Module, input: tuple[Tensor, ...], by: float = 0.1) -> Tensor:
    """Return the one input with ``by`` added to every entry."""
    return input[0] + by


def sparsity(module: nn.Module, input: tuple[Tensor, ...], output: Tensor) -> None:
    """Record the share of zeros in the output, from 0 to 1, and how often each channel is zero."""
    zeros = output == 0
    hookscope.emit("zeros", float(zeros.double().mean()))
    hookscope.emit("zeros.by_channel", zeros.double().mean((0, 2, 3)))


def clip(grad: Tensor, largest: float = 0.01) -> Tensor:
    """Return the gradient with every entry between ``-largest`` and ``largest``."""
    return grad.clamp(-largest, largest)


def reverse(
    module: nn.Module, grad_input: tuple[Tensor | None, ...], grad_output: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """Return the gradients at the inputs with their signs turned, as domain adaptation does.

    None stands where nothing further back asks for a gradient.
    """
    return tuple(None if grad is None else -grad for grad in grad_input)


def keep_small(
    optimizer: torch.optim.Optimizer, args: object, kwargs: object, largest: float = 0.1
) -> None:
    """Bring every parameter between ``-largest`` and ``largest``, as weight clipping does."""
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.clamp_(-largest, largest)


def nothing_below(module: nn.Module, input: tuple[Tensor, ...], output: Tensor) -> None:
    """Raise if any entry is negative."""
    if output.min() < 0:
        raise ValueError(f"{output.min():.3f} is negative")
