"""Finds the models of a script among all objects of the process, and their names."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType

import torch
from torch import Tensor, nn

from hookscope.hooks.torch_state import is_compiled
from hookscope.sources.torchscript.private import is_scripted
from hookscope.sources.wrappers import class_name, inner_name, unwrapped

_PACKAGES = ("torch.", "hookscope.")  # frames of these are not the script's


@dataclass(frozen=True)
class FoundModel:
    """A model of the script."""

    name: str
    module: nn.Module

    @property
    def is_sharded(self) -> bool:
        """Whether each rank has a part of the parameters."""
        return any(map(_is_distributed, self.module.parameters()))


def find_models(
    parameters: Iterable[Tensor], names: Mapping[nn.Module, str], taken: Collection[str] = ()
) -> list[FoundModel]:
    """Return the models that own parameters, without wrappers, those of ``parameters`` first."""
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]
    inner = {id(child) for module in modules for child in module._modules.values()}
    roots = [unwrapped(module) for module in modules if id(module) not in inner]
    wanted = {id(parameter) for parameter in parameters}
    found: dict[int, tuple[bool, nn.Module]] = {}
    for root in roots:
        own = {id(parameter) for parameter in root.parameters()}
        if own and id(root) not in found:
            found[id(root)] = not own & wanted, root
    used = {*names.values(), *taken}
    for root in _doubles(root for _, root in found.values()):
        del found[id(root)]
    models = []
    for _, root in sorted(found.values(), key=lambda entry: entry[0]):
        name = names.get(root) or _unused(_name_of(root, modules), used)
        used.add(name)
        models.append(FoundModel(name, root))
    return models


def _doubles(roots: Iterable[nn.Module]) -> list[nn.Module]:
    """The scripted modules that a traced one is made of, which are objects of their own."""
    scripted = [root for root in roots if is_scripted(root)]
    # Those with most parameters first; of two with the same, the traced one.
    scripted.sort(key=lambda root: type(root).__name__ == "RecursiveScriptModule")
    scripted.sort(key=lambda root: -sum(1 for _ in root.parameters()))
    known: set[int] = set()
    doubles = []
    for root in scripted:
        own = {id(parameter) for parameter in root.parameters()}
        if own <= known:
            doubles.append(root)
        known |= own
    return doubles


def _unused(name: str, taken: set[str]) -> str:
    number = 2
    unused = name
    while unused in taken:
        unused, number = f"{name}{number}", number + 1
    return unused


def _name_of(model: nn.Module, modules: Iterable[nn.Module]) -> str:
    """The name that the script uses for a model or its wrapper, else its class name."""
    same = {id(model)}
    same |= {id(module) for module in modules if inner_name(module) and unwrapped(module) is model}
    for variables in _variables():
        for name, value in variables.items():
            if id(value) in same and name != "self" and not name.startswith("_"):
                return name
    return class_name(model)


def _variables() -> Iterator[dict[str, object]]:
    """The variables of the running functions and of their ``self``, those of the script first."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith(_PACKAGES):
            frames.append(frame)
        frame = frame.f_back
    for frame in sorted(frames, key=lambda frame: "-packages" in frame.f_code.co_filename):
        variables = _variables_of(frame)
        yield variables
        attributes = getattr(variables.get("self"), "__dict__", None)
        if type(attributes) is dict:
            yield attributes


def _variables_of(frame: FrameType) -> dict[str, object]:
    """The variables of a frame."""
    variables = frame.f_locals
    found = dict(variables)
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_function and sys.version_info < (3, 13):
        # The frame would keep this copy, and all values in it, until the function ends, even after
        # the script deletes a variable. The variables themselves stay as they are.
        variables.clear()
    return found


def compiled_parts(model: nn.Module) -> set[nn.Module]:
    """The modules of a model that run in compiled code, in which no hook may be."""
    return {
        inner
        for module in model.modules()
        if is_compiled(module)
        for inner in module.modules()
        if inner is not module or type(module).__name__ != "OptimizedModule"
    }


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a distributed tensor on this rank; other tensors as they are."""
    return tensor.to_local() if _is_distributed(tensor) else tensor  # type: ignore[attr-defined]


def _is_distributed(tensor: Tensor) -> bool:
    return type(tensor).__name__ == "DTensor"  # importing the class takes a second


def dense_values(gradient: Tensor) -> Tensor:
    """Return the values of a gradient: of a sparse one, those that are stored."""
    if gradient.layout is torch.strided:
        return gradient
    if gradient.layout is torch.sparse_coo:
        return gradient.coalesce().values()
    return gradient.to_dense()
