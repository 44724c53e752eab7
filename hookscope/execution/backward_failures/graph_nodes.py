"""The nodes of autograd's graph: which tensors a backward pass begins with, and what was freed."""

from __future__ import annotations

from collections.abc import Iterator
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor

from hookscope.files.frame_variables import variables_of
from hookscope.tensors.torch_internals import has_unpack_hook

_FREED = "after they have already been freed"


def differentiated(error: BaseException) -> list[Tensor]:
    """Return the tensors that the innermost backward pass in a traceback was asked for."""
    codes = (torch.autograd.backward.__code__, torch.autograd.grad.__code__)
    for frame, _ in reversed(list(walk_tb(error.__traceback__))):
        value = None
        if frame.f_code in codes:
            variables = variables_of(frame)
            value = variables.get("tensors", variables.get("outputs"))
        elif frame.f_code is Tensor.backward.__code__:  # the pass itself has ended
            value = variables_of(frame).get("self")
        values = value if isinstance(value, list | tuple) else [value]
        if tensors := [one for one in values if isinstance(one, Tensor)]:
            return tensors
    return []


def nodes_from(roots: list[Tensor]) -> list[Any]:
    """Return the nodes that roots depend on, each once, the last made first.

    Those of parameters come at the end, in the order in which these nodes need them.
    """
    waiting = [root.grad_fn for root in roots if root.grad_fn is not None]
    found: dict[Any, None] = dict.fromkeys(waiting)
    while waiting:
        new = [one for one in _next(waiting.pop()) if one not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    made = sorted((one for one in found if not _is_leaf(one)), key=number_of, reverse=True)
    return [*made, *dict.fromkeys(one for node in made for one in _next(node) if _is_leaf(one))]


def _next(node: Any) -> Iterator[Any]:
    return (one for one, _ in node.next_functions if one is not None)


def _is_leaf(node: Any) -> bool:
    return hasattr(node, "variable")


def number_of(node: Any) -> int:
    """Return the sequence number of a node; those of parameters are -1."""
    number = int(node._sequence_nr())
    return number if number < 1 << 63 else -1


def is_freed(node: Any) -> bool:
    """Return whether a backward pass has freed the tensors that a node had saved."""
    return any(unreadable(node, _FREED))


def unreadable(node: Any, reason: str) -> Iterator[str]:
    """Yield the attributes with saved tensors of a node that PyTorch refuses to read for a reason.

    Those with hooks are not read: a hook may run a part of the forward pass again, as a checkpoint.
    """
    for raw in [name for name in dir(node) if name.startswith("_raw_saved_")]:
        name = "saved_tensors" if raw == "_raw_saved_tensors" else raw.removeprefix("_raw")
        try:
            if has_unpack_hook(node, raw) is False:
                getattr(node, name)
        except RuntimeError as error:
            if reason in " ".join(str(error).split()):
                yield name
        except AttributeError:
            continue
