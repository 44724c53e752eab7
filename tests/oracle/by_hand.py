"""Recording written by hand with nothing of hookscope's: what the tests compare it with.

Values are kept by cloning forward hooks. Gradients do not come from tensor hooks but from
``torch.autograd.grad`` with respect to tensors that hand-written hooks slip into the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def flat(value: Any, path: str = "") -> list[tuple[str, Tensor]]:
    """Tensors in nested tuples, lists and dicts with a path such as ``.1.out``."""
    if isinstance(value, Tensor):
        return [(path, value)]
    if isinstance(value, dict):
        return [pair for k, v in value.items() for pair in flat(v, f"{path}.{k}")]
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", range(len(value)))
        return [pair for n, v in zip(names, value, strict=True) for pair in flat(v, f"{path}.{n}")]
    return []


def opened(value: Any) -> Any:
    """A value with the caches of transformers in it as dicts by layer."""
    if "Cache" in type(value).__name__ and hasattr(value, "self_attention_cache"):
        names = ("self_attention_cache", "cross_attention_cache")
        return {name: opened(getattr(value, name)) for name in names}
    if "Cache" in type(value).__name__:
        return {str(n): vars(layer) for n, layer in enumerate(value.layers)}
    if isinstance(value, dict):
        return {name: opened(item) for name, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map(opened, value))
    return value


def first_names(model: nn.Module) -> dict[nn.Module, str]:
    return {module: name or "." for name, module in model.named_modules()}


@contextmanager
def at_each_call(model: nn.Module, act: Callable[[str, Any, Any], None]) -> Iterator[None]:
    """Call ``act(label, args, output)`` after every call of every module, such as ``fc:2``."""
    calls: dict[str, int] = {}
    handles = []
    for module, name in first_names(model).items():

        def hook(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            number = calls[name] = calls.get(name, 0) + 1
            act(name if number == 1 else f"{name}:{number}", args, output)

        handles.append(module.register_forward_hook(hook))
    with torch.no_grad():
        yield
    for handle in handles:
        handle.remove()


def outputs(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
    """Every output of every call of every module, by hookscope's key, cloned at once."""
    kept: dict[str, Tensor] = {}

    def keep(label: str, args: Any, output: Any) -> None:
        for path, tensor in flat(opened(output)):
            kept[f"{label}/output{path}"] = tensor.detach().clone()

    with at_each_call(model, keep):
        model(*args, **kwargs)
    return kept


def returned_inputs(model: nn.Module, *args: Any, **kwargs: Any) -> set[str]:
    """Keys of gradients at what a module returned as it came in.

    There one tensor is both, and its gradient that of all its later uses, under either name. What
    is slipped in between the two shows what uses one of the names alone.
    """
    found: set[str] = set()

    def look(label: str, args: Any, output: Any) -> None:
        given = {id(tensor): f"{label}/input{path}.grad" for path, tensor in flat(args)}
        for path, tensor in flat(output):
            if id(tensor) in given:
                found.update((given[id(tensor)], f"{label}/output{path}.grad"))

    with at_each_call(model, look):
        model(*args, **kwargs)
    return found


def laid_out_alike(tensor: Tensor) -> Tensor:
    """A copy with the strides of a tensor, by which kernels go; a plain clone closes its gaps."""
    if 0 in tensor.stride():
        return tensor.clone()
    empty = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return empty.copy_(tensor)


@contextmanager
def slipped_in(model: nn.Module, *, inputs: bool = True) -> Iterator[dict[str, Tensor]]:
    """Put a tensor that ``autograd.grad`` can be asked about at every output and input.

    Without ``inputs`` at outputs alone: each further tensor may change the order of a sum of three.
    """
    kept: dict[str, Tensor] = {}
    calls: dict[str, int] = {}
    handles = []

    def keep(key: str, tensor: Tensor) -> Tensor:
        if not (tensor.is_floating_point() and tensor.requires_grad):
            return tensor
        kept[key] = laid_out_alike(tensor)
        return laid_out_alike(kept[key])  # later in-place changes touch the copy of the copy

    def keep_all(key: str, value: Any, seen: dict[int, Tensor]) -> Any:
        if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
            return type(value)(keep_all(f"{key}.{i}", part, seen) for i, part in enumerate(value))
        if not isinstance(value, Tensor):
            return value
        if id(value) not in seen:  # what was one tensor stays one: attention asks `query is key`
            seen[id(value)] = keep(key, value)
        return seen[id(value)]

    for module, name in first_names(model).items():

        def before(module: nn.Module, args: tuple[Any, ...], name: str = name) -> tuple[Any, ...]:
            number = calls[name] = calls.get(name, 0) + 1
            label = name if number == 1 else f"{name}:{number}"
            if not inputs:
                return args
            return tuple(keep_all(f"{label}/input", args, {}))

        def after(module: nn.Module, args: Any, output: Any, name: str = name) -> Any:
            label = name if calls[name] == 1 else f"{name}:{calls[name]}"
            return keep_all(f"{label}/output", output, {})

        handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two dense tensors agree in shape, dtype and every bit."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    first, second = (
        t.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)
    )
    return torch.equal(first, second)
