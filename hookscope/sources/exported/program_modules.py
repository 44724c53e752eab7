"""The layers of an exported program as ordinary modules, which run the operators of its graph.

torch's own unflattening divides the graph among the modules it came from. It gives each call of a
module that differs from the first a module of its own, ``relu@1``. Here these are one module again,
which is told before each call which of its graphs to run: so hooks on it fire at every call.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import cache, partial
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.export._remove_effect_tokens_pass import _remove_effect_tokens
from torch.export.unflatten import UnflattenedModule
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from hookscope.errors import ModelError, RequestError
from hookscope.sources.exported.graph_passes import inline_grad_blocks, remove_alias_outputs
from hookscope.sources.exported.input_contract import InputContract
from hookscope.specs.model_spec import end_sentence

_CALL = re.compile(r"@\d+")


class CallGraph:
    """The operators of one call of a module, in order. They are never changed, so copies share it.

    Args:
        path: where unflattening put the call: ``layer3.0.relu@1``.
        graph: its operators.
        held: what the graph takes from its module that is no parameter and no buffer.
        home: the device that all of the program was exported on; None if there were several.
    """

    def __init__(
        self, path: str, graph: fx.Graph, held: dict[str, Any], home: torch.device | None
    ) -> None:
        self.path = path
        self.nodes = tuple(graph.nodes)
        self.held = held
        self.home = home
        self.names = [str(node.target) for node in self.nodes if node.op == "placeholder"]
        last = {used: node for node in self.nodes for used in node.all_input_nodes}
        self.done: dict[fx.Node, list[fx.Node]] = {}
        for used, node in last.items():
            self.done.setdefault(node, []).append(used)

    def __deepcopy__(self, memo: dict[int, Any]) -> CallGraph:
        return self

    def run(self, layer: ExportedLayer, args: tuple[Any, ...]) -> Any:
        """Run the operators on ``args``, with the parameters of ``layer``."""
        place = next((arg.device for arg in args if isinstance(arg, Tensor)), self.home)
        values: dict[fx.Node, Any] = {}
        given = iter(args)

        def fill_in(value: Any) -> Any:
            if isinstance(value, fx.Node):
                return values[value]
            return place if isinstance(value, torch.device) and value == self.home else value

        for node in self.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values[node] = self._fetch(layer, str(node.target), place)
            else:
                arguments = map_aggregate(node.args, fill_in)
                if node.op == "output":
                    return _thawed(arguments[0])
                keywords = map_aggregate(node.kwargs, fill_in)
                called: Any = node.target
                if node.op == "call_module":
                    called = partial(self._call, layer, called)
                values[node] = called(*arguments, **keywords)
            for used in self.done.get(node, ()):
                del values[used]  # so that no activation lives longer than it is needed
        return None

    def _call(self, layer: ExportedLayer, target: str, *args: Any, **kwargs: Any) -> Any:
        """Call the module that the graph calls ``target``, for the call of it that this is."""
        found = cast(ExportedLayer, layer.get_submodule(_CALL.sub("", target)))
        _due.steps[id(found)] = found._exported_calls[_join(self.path, target)]
        try:
            return found(*args, **kwargs)
        finally:
            _due.steps.pop(id(found), None)

    def _fetch(self, layer: ExportedLayer, name: str, place: torch.device | None) -> Any:
        if name not in self.held:
            owner, _, own = _CALL.sub("", name).rpartition(".")
            return getattr(layer.get_submodule(owner), own)
        value = self.held[name]
        moves = isinstance(value, Tensor) and self.home is not None
        return value.to(place) if moves else value


def _thawed(value: Any) -> Any:
    """The value with plain lists and dicts in place of those of a graph, which are read-only."""
    if isinstance(value, fx.immutable_collections.immutable_list):
        return [_thawed(item) for item in value]
    if isinstance(value, fx.immutable_collections.immutable_dict):
        return {key: _thawed(item) for key, item in value.items()}
    return tuple(map(_thawed, value)) if type(value) is tuple else value


class _Due(threading.local):
    """The steps that the next call of a layer is to run, by the layer's id; one set a thread."""

    def __init__(self) -> None:
        self.steps: dict[int, CallGraph] = {}


_due = _Due()


class ExportedLayer(nn.Module):
    """A module of an exported program. Its own names are such that no model's module has them."""

    _hookscope_source = (
        ""  # its code is the graph; where that came from stands there for each operator
    )

    def __init__(self) -> None:
        super().__init__()
        self._exported_calls: dict[str, CallGraph] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the call that is due, or the first when the layer is called by itself."""
        steps = _due.steps.pop(id(self), None) or next(iter(self._exported_calls.values()))
        named = (kwargs[name] for name in steps.names[len(args) :] if name in kwargs)
        return steps.run(self, (*args, *named))

    def extra_repr(self) -> str:
        """The shapes of its own parameters."""
        own = self.named_parameters(recurse=False)
        return ", ".join(f"{name}={'x'.join(map(str, p.shape)) or 1}" for name, p in own)


class ExportedProgramModule(ExportedLayer):
    """The whole of an exported program. Inputs are checked against what it was exported for."""

    _exported_contract: InputContract

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; the output has the structure that the exported model gave it."""
        flat = self._exported_contract.flatten(args, kwargs)
        with torch.set_grad_enabled(torch.is_grad_enabled()):  # an error may leave it switched
            output = self._exported_calls[""].run(self, tuple(flat))
        return self._exported_contract.restore(output)

    def train(self, mode: bool = True) -> ExportedProgramModule:
        """Refuse training mode: the graph holds what its layers did in the mode of the export."""
        if mode:
            raise RequestError(
                "An exported program keeps the mode it was exported in, and cannot be switched to"
                " training mode.",
                "Leave out --train; to see training mode, export the model while it is in it.",
            )
        super().train(False)
        return self


class _Unflattened(UnflattenedModule):
    """torch's unflattening, less its own way of putting the calls of a module together."""

    def _dispatch_modules(self, *args: Any) -> None:
        pass


def build_module(program: torch.export.ExportedProgram) -> nn.Module:
    """Return the program as a module; see ``hookscope.sources.exported.exported_source.to_module``."""
    try:
        flat = _Unflattened(
            _remove_effect_tokens(remove_alias_outputs(inline_grad_blocks(program)))
        )
    except Exception as exc:
        raise ModelError(
            f"The exported program cannot be taken apart into its layers: {end_sentence(str(exc))}",
            "Export it again, with the newest torch.",
        ) from exc
    home = _home(flat)
    parts = dict(_parts(flat))
    calls: dict[str, list[str]] = {}
    for path in parts:
        calls.setdefault(_CALL.sub("", path), []).append(path)
    kinds = _kinds(program.graph_module)
    root: ExportedProgramModule = _class_named(kinds.get(""), ExportedProgramModule)()
    root._exported_contract = InputContract(program, flat.input_placeholders)
    for name, paths in calls.items():
        layer = _add(root, name, kinds.get(name)) if name else root
        for path in paths:
            _share_tensors(parts[path], layer)
            if isinstance(getattr(parts[path], "graph", None), fx.Graph):
                layer._exported_calls[path] = _steps(path, parts[path], home)
    return root.eval()


def _parts(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Every module by its path, less the graphs that operators such as ``cond`` run."""
    yield path, module
    for name, inner in module._modules.items():
        if inner is not None and not isinstance(inner, fx.GraphModule):
            yield from _parts(inner, _join(path, name))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _kinds(graphs: nn.Module) -> dict[str, str]:
    """The class of each module that did something in the program, by the module's path.

    A program that was just made may have the class itself, one from a file its dotted name.
    """
    found = {}
    for inner in graphs.modules():
        for node in inner.graph.nodes if isinstance(inner, fx.GraphModule) else ():
            for path, kind in node.meta.get("nn_module_stack", {}).values():
                own = isinstance(kind, type)
                name = f"{kind.__module__}.{kind.__qualname__}" if own else str(kind)
                found[_CALL.sub("", path)] = name
    return found


@cache
def _class_named(name: str | None, base: type[Any]) -> Any:
    members = {"__module__": __name__, "__doc__": base.__doc__, "_hookscope_class": name or ""}
    return type((name or "Module").rpartition(".")[2], (base,), members)


def _add(root: nn.Module, path: str, kind: str | None) -> ExportedLayer:
    owner, _, name = path.rpartition(".")
    layer: ExportedLayer = _class_named(kind, ExportedLayer)()
    root.get_submodule(owner).add_module(name, layer)
    return layer


def _share_tensors(part: nn.Module, layer: nn.Module) -> None:
    for name, parameter in part._parameters.items():
        layer.register_parameter(name, parameter)
    for name, buffer in part._buffers.items():
        kept = name not in part._non_persistent_buffers_set
        layer.register_buffer(name, buffer, persistent=kept)


def _steps(path: str, part: nn.Module, home: torch.device | None) -> CallGraph:
    graph = cast(fx.Graph, part.graph)
    held = {}
    for node in graph.nodes:
        if node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            module = part.get_submodule(owner)
            if name not in module._parameters and name not in module._buffers:
                held[str(node.target)] = getattr(module, name)
    return CallGraph(path, graph, held, home)


def _home(flat: nn.Module) -> torch.device | None:
    """The one device that the tensors and the operators of the program are on."""
    found = {tensor.device for tensor in chain(flat.parameters(), flat.buffers())}
    for _, part in _parts(flat):
        for node in getattr(part, "graph", fx.Graph()).nodes:
            leaves = pytree.tree_leaves((node.args, node.kwargs))
            found |= {leaf for leaf in leaves if isinstance(leaf, torch.device)}
    return found.pop() if len(found) == 1 else None
