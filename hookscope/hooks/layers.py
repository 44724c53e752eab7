"""The named modules of a model: their tree, their selection, and which of them ran.

The model itself is called ``.``, and the module in a wrapper has the wrapper's name. A module that
is reachable under several names is in the tree once, under the first of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import chain
from traceback import walk_tb
from types import TracebackType
from typing import Any
from weakref import ref

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookscope.errors import LayerError, RequestError
from hookscope.files.frame_variables import variables_of
from hookscope.files.shell_words import cite_command
from hookscope.files.suggestions import did_you_mean
from hookscope.results.module_tree import AbsentModule, ModuleNode, ModuleTree
from hookscope.results.records import Coverage, ExecutedModule, UnexecutedModule
from hookscope.sources.structure import NamedModule, modules_in, structure_of
from hookscope.sources.wrappers import class_name, type_names, unwrapped
from hookscope.specs import patterns
from hookscope.specs.module_names import ancestors
from hookscope.specs.patterns import MODEL, ROOT

# By name: a module from a scripted file is of another class of the same name.
CONTAINERS = {"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
OTHER_THREADS = "called only by threads that are not part of the recording"
NOT_CALLED = "the model was not called"
UNEXPLAINED = "a branch not taken"  # begins the reason if no other applies


@dataclass  # frozen, it would take three times as long to make
class Layer:
    """A module and the names that lead to it. It does not change."""

    name: str
    module: nn.Module
    aliases: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def key(self) -> Hashable:
        """What stands for the module in a dict."""
        return self.module

    @property  # a cached one takes longer to make than this
    def type(self) -> str:
        """Class name of the module."""
        return class_name(self.module)

    @property
    def title(self) -> str:
        """Its name in sentences; the model itself is ``(model)``."""
        return MODEL if self.name == ROOT else self.name

    @property
    def types(self) -> tuple[str, ...]:
        """Class names that the module is chosen by; see ``type_names``."""
        return type_names(self.module)

    @property
    def depth(self) -> int:
        """How many parts the name has; 0 for the model itself."""
        return 0 if self.name == ROOT else self.name.count(".") + 1

    @property
    def leaf(self) -> bool:
        """Whether the module has no children."""
        return not list(self.module.children())


GONE = nn.Module()  # stands for a module that the program has deleted


class WeakLayer(Layer):
    """A layer that does not keep its module alive; when that is gone, its module is ``GONE``."""

    def __init__(self, name: str, module: nn.Module, aliases: tuple[str, ...] = ()) -> None:
        self.name, self.aliases = name, aliases
        self._reference = ref(module)
        self._type = class_name(module)

    @property
    def key(self) -> Hashable:
        """The reference; two references to a module are equal."""
        return self._reference

    @property
    def module(self) -> nn.Module:  # type: ignore[override]
        """The module."""
        return self._reference() or GONE

    @property
    def type(self) -> str:
        """Class name of the module, also when that is gone."""
        return self._type


def weakly(layers: Iterable[Layer]) -> tuple[WeakLayer, ...]:
    """Return the same layers, which do not keep their modules alive."""
    return tuple(WeakLayer(layer.name, layer.module, layer.aliases) for layer in layers)


def is_of_file(model: nn.Module) -> bool:
    """Whether a model, or a part of it, is a scripted, exported or ONNX file, not Python code."""
    return any(hasattr(module, "_hookscope_format") for module in modules_in(model))


def layers_of(model: nn.Module) -> list[Layer]:
    """Return each distinct module of ``model`` in definition order, the model itself as ``.``.

    >>> shared = nn.Linear(2, 2)
    >>> [(x.name, x.aliases) for x in layers_of(nn.ModuleDict({"a": shared, "b": shared}))]
    [('.', ()), ('a', ('b',))]
    """
    return _made(structure_of(model).layers)


def _made(named: Iterable[NamedModule]) -> list[Layer]:
    return [Layer(name, module(), aliases) for name, aliases, module in named]  # type: ignore[arg-type] # it is alive


def names_in(model: nn.Module) -> set[str]:
    """Return every name of every module of ``model``."""
    return {name for layer in layers_of(model) for name in (layer.name, *layer.aliases)}


def submodule(model: nn.Module, name: str) -> nn.Module | None:
    """Return the module that ``layers_of`` calls ``name``; None if there is none."""
    module = unwrapped(model)
    for part in name.split(".") if name not in ("", ROOT) else ():
        child = module._modules.get(part)
        if child is None:
            return None
        module = unwrapped(child)
    return module


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return a module's own parameters; a user's class may override ``parameters()``."""
    return dict(nn.Module.named_parameters(module, recurse=False))


def check_not_lazy(model: nn.Module) -> None:
    """Raise RequestError if a parameter or buffer has no shape before the first run."""
    lazy = [
        module
        for module in modules_in(model)
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None and is_lazy(tensor)
    ]
    for layer in layers_of(model) if lazy else ():
        if layer.module is lazy[0]:
            raise RequestError(
                f"{layer.title} ({layer.type}) is lazy and has no shape yet.",
                "Run the model once on an input before you pass it.",
            )


def module_running(model: nn.Module, traceback: TracebackType | None) -> str:
    """Return the name of the innermost module of ``model`` with a method in ``traceback``."""
    names = {id(layer.module): layer.name for layer in layers_of(model)}
    name = ROOT
    for frame, _ in walk_tb(traceback):
        name = names.get(id(variables_of(frame).get("self")), name)
    return name


def tensors_in_traceback(module: nn.Module, traceback: TracebackType | None) -> list[Tensor]:
    """Return the tensors among the variables of the innermost method of ``module`` that ran."""
    tensors: list[Tensor] = []
    for frame, _ in walk_tb(traceback):
        variables = variables_of(frame)
        if variables.get("self") is module:
            tensors = [value for value in variables.values() if isinstance(value, Tensor)]
            tensors = [value for value in tensors if not value.is_nested]  # may have no shape
    return tensors


def describe_model(model: nn.Module, spec: str) -> ModuleTree:
    """Return the module tree of ``model``, which the user named by ``spec``; it may be on meta."""
    nodes = tuple(_describe_one(layer) for layer in layers_of(model))
    removed: Mapping[str, str] = getattr(model, "_hookscope_absent", {})
    absent = tuple(AbsentModule(name, reason) for name, reason in removed.items())
    return ModuleTree(spec, nodes, nodes[0], absent=absent)


def _describe_one(layer: Layer) -> ModuleNode:
    module = layer.module
    parameters = list(module.parameters())
    buffers = list(module.buffers())
    return ModuleNode(
        name=layer.name,
        type=layer.type,
        arguments=module.extra_repr(),
        depth=layer.depth,
        leaf=layer.leaf,
        own_parameters=sum(p.numel() for p in own_parameters(module).values()),
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in parameters if p.requires_grad),
        buffers=sum(b.numel() for b in buffers),
        bytes=sum(t.numel() * t.element_size() for t in chain(parameters, buffers)),
        aliases=layer.aliases,
        source=_source_of(module),
        note=getattr(module, "_hookscope_note", ""),
    )


def _source_of(module: nn.Module) -> str:
    source = getattr(module, "_hookscope_source", None)
    if isinstance(source, str):
        return source
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def select(
    model: nn.Module,
    layers: Iterable[str] = (),
    *,
    types: Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    spec: str = "MODEL",
) -> tuple[Layer, ...]:
    """Return the chosen layers of ``model`` in definition order.

    >>> net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> [layer.name for layer in select(net, ["*"], types=["Linear"])]
    ['0', '2']
    """
    structure, wanted = structure_of(model), list(types)
    request = (tuple(layers), depth, leaves)
    known = None if wanted else structure.chosen.get(request)  # a module's type may change
    if known is None:
        known = _choose(_made(structure.layers), request[0], wanted, depth, leaves, spec)
        if not wanted:
            structure.chosen[request] = known
    return tuple(_made([structure.layers[position] for position in known]))


def _choose(
    every: Sequence[Layer],
    patterns_: Sequence[str],
    types: Sequence[str],
    depth: int | None,
    leaves: bool,
    spec: str,
) -> tuple[int, ...]:
    """The positions of the chosen layers among all."""
    included, excluded = patterns.split_exclusions(patterns_)
    chosen = [_matched(every, pattern, spec) for pattern in included] or [set(every)]
    candidates = set.union(*chosen).difference(*(_matched(every, p, spec) for p in excluded))
    for name in types:
        _check_type(every, name)
    selected = tuple(
        position
        for position, layer in enumerate(every)
        if layer in candidates
        and (not types or any(fnmatchcase(kind, name) for kind in layer.types for name in types))
        and (depth is None or layer.depth <= depth)
        and (not leaves or layer.leaf)
    )
    if not selected:
        raise LayerError(
            "No layer matches all of the filters.",
            f"{cite_command('hookscope', 'tree', spec)} lists them all.",
        )
    return selected


def _matched(every: Sequence[Layer], pattern: str, spec: str) -> set[Layer]:
    """The layers that one positive pattern names, by their first name or an alias."""
    name = patterns.root_named(pattern)
    if exact := {layer for layer in every if name in (layer.name, *layer.aliases)}:
        return exact
    test: Callable[[str], bool] = patterns.compile_pattern(pattern)
    matches = {layer for layer in every if any(map(test, (layer.name, *layer.aliases)))}
    if not matches:
        absent: Mapping[str, str] = getattr(every[0].module, "_hookscope_absent", {})
        for name in filter(test, absent):
            raise LayerError(
                f"{name} is not in {spec}: {absent[name]}.",
                f"{cite_command('hookscope', 'tree', spec)} lists what is.",
            )
        names = [name for layer in every for name in (layer.name, *layer.aliases)]
        globs = patterns.near_patterns(pattern, names)
        near = did_you_mean(pattern, globs or names)
        if "," in pattern and "{" not in pattern:
            near = "Give each pattern with a --layer of its own."
        raise LayerError(
            f"No layer of {spec} matches {pattern!r}.",
            f"{near} {cite_command('hookscope', 'tree', spec)} lists them all.".strip(),
        )
    return matches


def _check_type(every: Sequence[Layer], name: str) -> None:
    present = {kind for layer in every for kind in layer.types}
    if not any(fnmatchcase(kind, name) for kind in present):
        raise LayerError(
            f"No layer of the model is of type {name!r}.",
            did_you_mean(name, sorted(present)) or f"There are {', '.join(sorted(present))}.",
        )


def summarize_coverage(
    model: nn.Module,
    layers: Sequence[Layer],
    calls: Mapping[Any, int],
    elsewhere: Collection[nn.Module] = (),
    known: Mapping[str, str] | None = None,
) -> Coverage:
    """Divide ``layers`` into those that ran and those that did not.

    ``calls`` has the keys of layers. ``known`` has why layers had not run, by their names, when
    their modules were still there.
    """
    order = {key: i for i, key in enumerate(calls)}
    ran = sorted((x for x in layers if calls.get(x.key)), key=lambda x: order[x.key])
    unused = [x for x in layers if not calls.get(x.key)]
    unused_names = {x.name for x in unused}
    called = {x.module for x in ran}
    nothing_ran = len(unused) == len(layers) and any(x.module is model for x in layers)
    causes = (
        (known or {}).get(x.name, UNEXPLAINED)
        if x.module is GONE
        else OTHER_THREADS
        if x.module in elsewhere
        else NOT_CALLED
        if nothing_ran
        else _likely_cause(model, x, unused_names, called)
        for x in unused
    )
    return Coverage(
        tuple(ExecutedModule(x.name, x.type, calls[x.key]) for x in ran),
        tuple(
            UnexecutedModule(x.name, x.type, cause) for x, cause in zip(unused, causes, strict=True)
        ),
    )


def _likely_cause(
    model: nn.Module,
    layer: Layer,
    unused: set[str],
    called: Collection[nn.Module],
) -> str:
    module, parent_name = layer.module, layer.name.rpartition(".")[0]
    if reason := vars(module).get("_hookscope_unavailable"):  # a part of an ONNX file
        return str(reason)
    if _is_a(module, *CONTAINERS):
        return "a container: its parent calls its children, never the container itself"
    parent = submodule(model, parent_name)
    if _is_a(parent, "MultiheadAttention"):
        return "attention passes its weights to a fused kernel instead of calling it"
    above = [name for name in ancestors(layer.name) if name in unused]
    if above and not _is_a(submodule(model, above[0]), *CONTAINERS):
        return f"it belongs to {above[0]}, which never ran"
    if _is_a(module, "Sequential") and not list(module.children()):
        return "an empty container"
    if _is_a(module, "Sequential") and any(child in called for child in module.children()):
        return "a container: its parent calls its children one by one"
    if _is_a(parent, "TransformerEncoderLayer") and not model.training:
        return "the encoder layer used its fused fast path"
    if type(module).forward is nn.Module.forward:
        return "it has no forward: it only contains other modules, or tracing removed its code"
    mode = "train" if model.training else "eval"
    return (
        f"{UNEXPLAINED} in {mode} mode, or its parent calls .forward() or uses its weights directly"
    )


def _is_a(module: nn.Module | None, *names: str) -> bool:
    kind: Any = type(module)
    return not _base_names(kind).isdisjoint(names)


@lru_cache(maxsize=256)
def _base_names(kind: Any) -> frozenset[str]:
    return frozenset(base.__name__ for base in kind.__mro__)
