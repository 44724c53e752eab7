"""Which modules a model has, under which names; found again only after the model has changed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from operator import is_, itemgetter
from typing import Any, NamedTuple

from torch import nn

from hookscope.sources.torchscript.private import is_scripted
from hookscope.sources.wrappers import inner_name
from hookscope.specs.patterns import ROOT

_Reference = Callable[[], nn.Module | None]


class NamedModule(NamedTuple):
    """A module and the names that lead to it; those with the shortest way first."""

    name: str
    aliases: tuple[str, ...]
    module: _Reference


def modules_in(model: nn.Module) -> list[nn.Module]:
    """Return the modules of ``model`` in the order of ``model.modules()``, several times faster."""
    found: dict[nn.Module, None] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            children = module._modules
            if children:
                waiting += [child for _, child in children.items() if child is not None][::-1]
    return list(found)


class ModelStructure:
    """The modules of a model and their names, without wrappers, as ``layers_of`` returns them.

    It refers to them weakly. A module with the same children as before has the same names in it.
    """

    __slots__ = (
        "_children",
        "_is_optimized",
        "_modules",
        "_names",
        "chosen",
        "has_scripted",
        "layers",
    )

    def __init__(self, model: nn.Module) -> None:
        modules = modules_in(model)
        references = {module: weakref.ref(module) for module in modules}
        self.chosen: dict[object, tuple[int, ...]] = {}  # the layers of each request of ``select``
        self.has_scripted = any(map(is_scripted, modules))
        self._is_optimized = any(map(is_optimized, modules))
        self.layers = tuple(
            NamedModule(names[0], tuple(names[1:]), references[module])
            for module, names in _names(model).items()
        )
        # ``items`` is the only way to the children of a scripted module.
        children = {module: tuple(module._modules.items()) for module in modules}
        modules.sort(key=lambda module: not children[module])  # those with children come first
        self._modules = tuple(references[module] for module in modules)
        parents = [each for each in map(children.get, modules) if each]
        self._names = [tuple(name for name, _ in each) for each in parents]
        place = {module: number for number, module in enumerate((*modules, None))}
        places = [place[child] for each in parents for _, child in each]
        self._children = itemgetter(*places, place[None], place[None])  # two or more: a tuple

    def is_current(self, model: nn.Module) -> bool:
        """Whether this model has the same modules under the same names, in the same order."""
        modules: list[Any] = [reference() for reference in self._modules]
        if modules[0] is not model:  # another one, to which its class says it is equal
            return False
        try:
            children = [module._modules for module in modules]
        except AttributeError:  # a module is gone
            return False
        parents = children[: len(self._names)]
        if any(children[len(parents) :]) or list(map(tuple, parents)) != self._names:
            return False
        modules.append(None)  # in the place of a child that is None
        now = chain.from_iterable([each.values() for each in parents])
        return all(map(is_, now, self._children(modules)))

    def has_compiled(self) -> bool:
        """Whether a module runs compiled code."""
        calls = [module()._compiled_call_impl for module in self._modules]  # type: ignore[union-attr] # alive
        return self._is_optimized or any(calls)


def is_optimized(module: nn.Module) -> bool:
    """Whether a module is what ``torch.compile`` returned; its class takes long to import."""
    return type(module).__name__ == "OptimizedModule"


_known: weakref.WeakKeyDictionary[nn.Module, ModelStructure] = weakref.WeakKeyDictionary()


class _Unchanged(threading.local):
    """The structure of a model that cannot change now, on this thread."""

    model: object = None
    structure: ModelStructure


_unchanged = _Unchanged()


@contextmanager
def unchanged_structure(model: object) -> Iterator[None]:
    """Look for changes of a model once in the block, which must run no code of users."""
    if isinstance(model, nn.Module) and not (structure := structure_of(model)).has_scripted:
        _unchanged.structure, _unchanged.model = structure, model
    try:
        yield
    finally:
        _unchanged.model = None


def structure_of(model: nn.Module) -> ModelStructure:
    """Return the structure of a model as it is now."""
    if _unchanged.model is model:
        return _unchanged.structure
    structure = _known.get(model)
    if structure is None or not structure.is_current(model):
        structure = ModelStructure(model)
        if not structure.has_scripted:  # whose children are objects that PyTorch makes
            _known[model] = structure
    return structure


def _names(model: nn.Module) -> dict[nn.Module, list[str]]:
    """The names of every module but the wrappers, in definition order."""
    names: dict[nn.Module, list[str]] = {}
    waiting = [("", model)]
    while waiting:
        name, module = waiting.pop()
        inner = inner_name(module)
        if not inner:
            names.setdefault(module, []).append(name or ROOT)
        children = [(last, child) for last, child in module._modules.items() if child is not None]
        waiting += [
            (name if last == inner else f"{name}.{last}".lstrip("."), child)
            for last, child in reversed(children)
        ]
    return names
