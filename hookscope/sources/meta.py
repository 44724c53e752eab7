"""Building a model without memory for its parameters: factories are sent to the meta device.

``with torch.device("meta")`` would send every new tensor there, and models that compute their own
widths with ``torch.arange(...)`` and read them back as numbers then fail. Here only the factories
that layers make parameters and buffers with are sent there.
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

from hookscope.tensors.clones import shared_storages
from hookscope.tensors.interrupts import signal_safe
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
    """While active, what makes parameters makes them on the meta device.

    Attributes:
        drew: whether random numbers were drawn all the same; they are others than those that are
            drawn after the values of parameters.

    Example:
        >>> with ParametersOnMeta():
        ...     layer = torch.nn.Linear(4, 2)
        >>> layer.weight.is_meta, torch.arange(3).is_meta
        (True, False)
    """

    drew = False

    def __enter__(self) -> ParametersOnMeta:
        """Begin."""
        self._state = torch.default_generator.get_state()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """End, and find out whether random numbers were drawn."""
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
    """Return the model that ``make`` makes within ``context``, in eval mode.

    Its weights are drawn from ``seed``; the global random state is left as it was.
    """
    with seeded_torch(seed), signal_safe(warnings.catch_warnings()):
        warnings.simplefilter("ignore")  # remarks of a library about its own parts
        with context or nullcontext():
            return make().eval()


def allocate_parameters(model: nn.Module) -> None:
    """Put a tensor with memory, and whatever values, in the place of each that is on meta."""
    given: dict[int, Tensor] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            members = cast("dict[str, Tensor | None]", held)
            for name, ghost in members.items():
                if ghost is None or not ghost.is_meta:
                    continue
                if id(ghost) not in given:  # one that is under two names stays one
                    tensor = torch.empty_like(ghost, device="cpu")
                    given[id(ghost)] = (
                        nn.Parameter(tensor, ghost.requires_grad)
                        if isinstance(ghost, nn.Parameter)
                        else tensor
                    )
                members[name] = given[id(ghost)]


def has_other_meta_tensors(model: nn.Module) -> bool:
    """Whether tensors on meta are to be found in a model beside its parameters and buffers.

    Those that share memory count too: they would be given some each for itself.
    """
    own = [t for t in chain(model.parameters(), model.buffers()) if t.is_meta]
    known = {id(held) for m in model.modules() for held in (m._parameters, m._buffers, m._modules)}
    others = (v for m in model.modules() for v in vars(m).values() if id(v) not in known)
    return bool(shared_storages(own)) or any(
        tensor.is_meta for value in others for _, tensor in walk(value)
    )


def meta_copy(model: nn.Module) -> nn.Module:
    """Return a copy of ``model`` on the meta device: shapes without values, and no memory for them.

    Everything else is copied deeply, so that a pass through the copy leaves nothing in the model.
    Accelerate's hooks are left out: they would copy the weights they hold, and then bring them.
    """
    ghosts: dict[int, object] = {}
    for tensor in chain(model.parameters(), model.buffers()):
        ghost = torch.empty_like(tensor, device="meta")
        if isinstance(tensor, nn.Parameter):
            ghost = nn.Parameter(ghost, requires_grad=tensor.requires_grad)
        ghosts[id(tensor)] = ghost
    for module in model.modules():
        if hook := getattr(module, "_hf_hook", None):
            ghosts[id(hook)] = hook
    copied = copy.deepcopy(model, ghosts)
    for module in copied.modules():
        members = vars(module)
        if members.pop("_hf_hook", None) is not None:
            members["forward"] = members.pop("_old_forward")
    return copied
