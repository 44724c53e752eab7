"""The nodes of autograd's graph: which tensors a backward pass begins with, and what was freed."""

from __future__ import annotations

from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from hookscope.files.frame_variables import variables_of

_FREED = "after they have already been freed"


def differentiated(error: BaseException) -> list[Tensor]:
    """Return the tensors that the innermost backward pass in a traceback was asked for."""
    codes = (torch.autograd.backward.__code__, torch.autograd.grad.__code__)
    for frame, _ in reversed(list(walk_tb(error.__traceback__))):
        if frame.f_code in codes:
            variables = variables_of(frame)
            value = variables.get("tensors", variables.get("outputs"))
            values = value if isinstance(value, list | tuple) else [value]
            return [one for one in values if isinstance(one, Tensor)]
    return []


def nodes_from(roots: list[Tensor]) -> list[Any]:
    """Return the nodes that roots depend on, each once, the last made first."""
    waiting = [root.grad_fn for root in roots if root.grad_fn is not None]
    found: set[Any] = set(waiting)
    while waiting:
        node = waiting.pop()
        new = {one for one, _ in node.next_functions if one is not None} - found
        found |= new
        waiting += new
    return sorted(found, key=number_of, reverse=True)


def number_of(node: Any) -> int:
    """Return the sequence number of a node; those of parameters are -1."""
    number = int(node._sequence_nr())
    return number if number < 1 << 63 else -1


def is_freed(node: Any) -> bool:
    """Return whether a backward pass has freed the tensors that a node had saved."""
    names = [name for name in dir(node) if name.startswith("_saved_")]
    names += ["saved_tensors"] if isinstance(node, BackwardCFunction) else []
    for name in names:
        try:
            getattr(node, name)
        except RuntimeError as error:
            if _FREED in " ".join(str(error).split()):
                return True
        except AttributeError:
            continue
    return False
