"""Finds the models of a script among all objects of the process, and their names."""

from __future__ import annotations

import gc
import inspect
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from traceback import walk_stack
from types import FrameType, ModuleType

import torch
from torch import Tensor, nn

from hookscope.files.frame_variables import variables_of
from hookscope.hooks.torch_state import is_compiled
from hookscope.sources.torchscript.private import is_scripted
from hookscope.sources.wrappers import class_name, inner_name, unwrapped

_LIBRARY = os.path.dirname(inspect.__file__) + os.sep
_MOST_HELD = 1000  # entries of a list that are looked at
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
        name = names.get(root) or unused_name(_name_of(root, modules), used)
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


def unused_name(name: str, taken: set[str]) -> str:
    """Return a name, with a number from 2 if it is taken."""
    number = 2
    unused = name
    while unused in taken:
        unused, number = f"{name}{number}", number + 1
    return unused


def _name_of(model: nn.Module, modules: Iterable[nn.Module]) -> str:
    """The name that the script uses for a model or its wrapper, else its class name."""
    wrappers = [module for module in modules if inner_name(module) and unwrapped(module) is model]
    return name_in_script([model, *wrappers]) or class_name(model)


def name_in_script(same: Iterable[nn.Module]) -> str:
    """Return the variable or attribute that holds one of these modules; empty if none does."""
    ids = set(map(id, same))
    for variables in _variables():
        if name := _name_among(variables, ids):
            return name
    return ""


def name_in_program(same: Iterable[nn.Module]) -> str:
    """Return the name of one of these modules, by which the program knows it best.

    That is a variable of the program itself, else of a function that is running, which may have
    the same name for several models; else an attribute of an object that a variable holds, or its
    key or number in a list or dict.
    """
    modules, main = list(same), vars(sys.modules["__main__"])
    ids = set(map(id, modules))
    if name := _name_among(main, ids) or name_in_script(modules):
        return name
    for variables in (main, *_variables()):
        for holder, value in list(variables.items()):
            if not holder.startswith("_") and (name := _name_within(holder, value, ids)):
                return name
    return ""


def _name_within(holder: str, value: object, ids: set[int]) -> str:
    """The name of a module that a variable holds as an attribute, or in a list or dict."""
    if type(value) in (list, tuple, dict):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[arg-type]
        for key, one in list(pairs)[:_MOST_HELD]:
            if id(one) in ids:
                return key if isinstance(key, str) else f"{holder}.{key}"
        return ""
    if issubclass(type(value), ModuleType | type):
        return ""
    attributes = _attributes_of(value)
    inner = attributes.get("_modules") if issubclass(type(value), nn.Module) else attributes
    return _name_among(inner, ids) if type(inner) is dict else ""


def _name_among(variables: dict[str, object], ids: set[int]) -> str:
    for name, value in list(variables.items()):
        if id(value) in ids and name != "self" and not name.startswith("_"):
            return name
    return ""


def script_frames() -> list[FrameType]:
    """Return the frames that are not PyTorch's or hookscope's, the innermost first."""
    frames = (frame for frame, _ in walk_stack(sys._getframe(1)))
    names = ((frame, frame.f_globals.get("__name__", "")) for frame in frames)
    return [frame for frame, name in names if not name.startswith(_PACKAGES)]


def is_installed(frame: FrameType) -> bool:
    """Whether the code of a frame is of an installed package."""
    return "-packages" in frame.f_code.co_filename


def is_of_program(frame: FrameType) -> bool:
    """Whether the code of a frame is neither of a package nor of Python's own library."""
    path = frame.f_code.co_filename
    return not (is_installed(frame) or path.startswith((_LIBRARY, "<frozen ")))


def _variables() -> Iterator[dict[str, object]]:
    """The variables of the functions that are running, and the attributes of their ``self``."""
    # The innermost function first, but the script before packages that it uses, such as a trainer.
    for frame in sorted(script_frames(), key=is_installed):
        variables = variables_of(frame)
        yield variables
        attributes = _attributes_of(variables.get("self"))
        yield attributes
        modules = attributes.get("_modules")
        if type(modules) is dict:
            yield modules


def _attributes_of(value: object) -> dict[str, object]:
    """The attributes of an object, found without ``__getattr__`` or ``__getattribute__`` of it."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except Exception:  # it has none, or they are a property that failed
        return {}
    return attributes if type(attributes) is dict else {}


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
