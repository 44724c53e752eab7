"""Which modules a model has, under which names; found again only after the model has changed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter, is_
from typing import NamedTuple

from torch import nn

from hookscope.sources.torchscript.private import is_scripted
from hookscope.sources.wrappers import inner_name
from hookscope.specs.patterns import ROOT

_Reference = Callable[[], nn.Module | None]  # a weak one, or that to no module


class NamedModule(NamedTuple):
    """A module and the names that lead to it; those with the shortest way first."""

    name: str
    aliases: tuple[str, ...]
    module: _Reference


class _Parent(NamedTuple):
    """A module with children, as it was when the structure was found."""

    module: _Reference
    names: tuple[str, ...]
    children: tuple[_Reference, ...]
    empty: int  # how many of the names have no module


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

    __slots__ = ("_is_optimized", "_leaves", "_parents", "chosen", "has_scripted", "layers")

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
        parents: list[_Parent] = []
        leaves: list[_Reference] = []
        for module, reference in references.items():
            children = dict(module._modules.items())  # the only way into those of a scripted one
            if children:
                each = [_no_module if x is None else references[x] for x in children.values()]
                empty = each.count(_no_module)
                parents.append(_Parent(reference, tuple(children), tuple(each), empty))
            else:
                leaves.append(reference)
        self._parents, self._leaves = tuple(parents), tuple(leaves)

    def is_current(self) -> bool:
        """Whether the model has the same modules under the same names, in the same order."""
        for parent, names, children, empty in self._parents:
            now = parent()._modules  # type: ignore[union-attr] # alive, because its parent has it
            before = [child() for child in children]
            if tuple(now) != names or not all(map(is_, now.values(), before)):
                return False
            if before.count(None) != empty:  # one that is gone was replaced by None
                return False
        new = [leaf()._modules for leaf in self._leaves]  # type: ignore[union-attr]
        return not any(new)

    def has_compiled(self) -> bool:
        """Whether a module runs compiled code."""
        if self._is_optimized:
            return True
        modules = [x.module() for x in self._parents] + [leaf() for leaf in self._leaves]
        return any(map(_compiled_call, modules))


def is_optimized(module: nn.Module) -> bool:
    """Whether a module is what ``torch.compile`` returned; its class takes long to import."""
    return type(module).__name__ == "OptimizedModule"


_compiled_call = attrgetter("_compiled_call_impl")
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
    if structure is None or not structure.is_current():
        structure = ModelStructure(model)
        if not structure.has_scripted:  # whose children are objects that PyTorch makes
            _known[model] = structure
    return structure


def _no_module() -> None:
    """Stands for a child that is None."""


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
