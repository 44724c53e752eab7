"""Models on the meta device: built without memory for parameters, or copied without values.

``torch.device("meta")`` would affect every new tensor, also widths that a model computes and reads.
Here it affects only the factory functions that layers use for parameters and buffers.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hookscope.files.signal_safety import signal_safe
from hookscope.tensors.input_clones import shared_storages
from hookscope.tensors.nested import walk
from hookscope.tensors.seeding import seeded_torch

_FACTORIES = frozenset(
    {
        torch.empty,
        torch.zeros,
        torch.ones,
        torch.full,
        torch.rand,
        torch.randn,
        torch.eye,
        torch.empty_strided,
    }
)


class ParametersOnMeta(TorchFunctionMode):
    """While active, parameters are created on the meta device, and other tensors are not."""

    drew = False

    def __enter__(self) -> ParametersOnMeta:
        """Note the random state and begin."""
        self._state = torch.default_generator.get_state()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """End, and set ``drew``."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.drew = not torch.equal(self._state, torch.default_generator.get_state())

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def build_model(
    make: Callable[[], nn.Module],
    *,
    seed: int,
    context: AbstractContextManager[Any] | None = None,
) -> nn.Module:
    """Return the model that ``make`` returns within ``context``, from ``seed``, in eval mode."""
    with seeded_torch(seed), signal_safe(warnings.catch_warnings()):
        warnings.simplefilter("ignore")  # warnings of a library about its own code
        with context or nullcontext():
            return make().eval()


def allocate_parameters(model: nn.Module) -> None:
    """Replace each tensor on meta by an uninitialised one on the CPU."""
    allocated: dict[int, Tensor] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            members = cast("dict[str, Tensor | None]", held)
            for name, placeholder in members.items():
                if placeholder is None or not placeholder.is_meta:
                    continue
                if id(placeholder) not in allocated:  # a shared tensor stays shared
                    allocated[id(placeholder)] = _empty_like(placeholder, "cpu")
                members[name] = allocated[id(placeholder)]


def _empty_like(tensor: Tensor, device: str) -> Tensor:
    """An uninitialised tensor; a parameter for a parameter."""
    empty = torch.empty_like(tensor, device=device)
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty


def has_other_meta_tensors(model: nn.Module) -> bool:
    """Whether a model has meta tensors in other attributes, or parameters that share a storage."""
    own = [t for t in chain(model.parameters(), model.buffers()) if t.is_meta]
    known = {id(held) for m in model.modules() for held in (m._parameters, m._buffers, m._modules)}
    others = (v for m in model.modules() for v in vars(m).values() if id(v) not in known)
    return bool(shared_storages(own)) or any(
        tensor.is_meta for value in others for _, tensor in walk(value)
    )


def meta_copy(model: nn.Module) -> nn.Module:
    """Return a copy of ``model`` on the meta device, which has shapes but no values."""
    if getattr(model, "_hookscope_computes_shapes", False):  # an ONNX file's, which has no state
        return model
    memo: dict[int, object] = {}
    for tensor in chain(model.parameters(), model.buffers()):
        memo[id(tensor)] = _empty_like(tensor, "meta")
    # The hooks of accelerate are left out: they would load the offloaded weights.
    for module in model.modules():
        if hook := getattr(module, "_hf_hook", None):
            memo[id(hook)] = hook
    copied = copy.deepcopy(model, memo)
    for module in copied.modules():
        members = vars(module)
        if members.pop("_hf_hook", None) is not None:
            members["forward"] = members.pop("_old_forward")
    return copied
