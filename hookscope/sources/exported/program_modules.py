"""The layers of an exported program as ordinary modules, which run the operators of its graph.

torch's unflattening makes another module, ``relu@1``, of a later call that differs from the first.
Here they are one module, with a graph for each call, which the caller sets. So hooks always fire.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.export.unflatten import UnflattenedModule
from torch.fx.node import map_aggregate

from hookscope.errors import InputError, ModelError, RequestError
from hookscope.files.signal_safety import signal_safe
from hookscope.files.words import shape_text
from hookscope.sources.exported.graph_passes import inline_grad_blocks, remove_alias_outputs
from hookscope.specs.model_spec import end_sentence
from hookscope.tensors.torch_internals import pytree, remove_effect_tokens

_LETTERS = "NMKLPQRSTUVW"
_REPAIR = "Give it that shape{0}, or export the model again with dynamic_shapes."

_CALL = re.compile(r"@\d+")


class ProgramContract:
    """The inputs that a program was exported for. It is immutable: copies of a model share it."""

    def __init__(
        self, program: torch.export.ExportedProgram, placeholders: Sequence[fx.Node]
    ) -> None:
        signature = program.module_call_graph[0].signature
        assert signature is not None
        self._in_spec, self._out_spec = signature.in_spec, signature.out_spec
        self._names = [str(node.target) for node in placeholders]
        self._expected: list[Any] = [node.meta.get("val") for node in placeholders]
        self._ranges = {str(symbol): limits for symbol, limits in program.range_constraints.items()}
        symbols = dict.fromkeys(
            str(symbol)
            for length in self._lengths()
            for symbol in sorted(length.node.expr.free_symbols, key=str)
        )
        self._letters = dict(zip(symbols, (*_LETTERS, *symbols), strict=False))

    def __deepcopy__(self, memo: dict[int, Any]) -> ProgramContract:
        return self

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the program's inputs in order."""
        args_names, kwargs_names = pytree.tree_unflatten(self._names, self._in_spec)
        if kwargs.keys() == kwargs_names.keys():  # in the order of the export
            kwargs = {name: kwargs[name] for name in kwargs_names}
        flat: list[Any]
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec:
            actual = pytree.tree_map(_describe, (args, kwargs))
            raise InputError(
                f"The program was exported for the inputs {_list_inputs(args_names, kwargs_names)},"
                f" but got {_list_inputs(*actual)}.",
                "Leave out --input and --shape to run it on the inputs stored in its file, or"
                " call it from Python with inputs of that structure.",
            )
        sizes: dict[str, int] = {}
        for name, expected, value in zip(self._names, self._expected, flat, strict=True):
            if isinstance(expected, Tensor):
                self._check_tensor(name, expected, value, sizes)
            elif isinstance(expected, int | float | str) and expected != value:
                raise InputError(
                    f"The program was exported with {name} = {expected!r}, but got {value!r}.",
                    "Give that value, or export the model again.",
                )
        return flat

    def restore(self, flat: Any) -> Any:
        """Return the program's flat output in the structure of the exported model's output."""
        return pytree.tree_unflatten(flat, self._out_spec)

    def _lengths(self) -> Iterator[torch.SymInt]:
        """The dynamic lengths of all inputs."""
        for expected in self._expected:
            lengths: tuple[Any, ...] = tuple(expected.shape) if isinstance(expected, Tensor) else ()
            yield from (length for length in lengths if isinstance(length, torch.SymInt))

    def _check_tensor(self, name: str, expected: Tensor, value: Any, sizes: dict[str, int]) -> None:
        if not isinstance(value, Tensor):
            raise InputError(
                f"Input {name} of the program must be a tensor, but got {type(value).__name__}.",
                "Give a tensor of the shape " + self._text(expected) + ".",
            )
        if value.is_floating_point() != expected.is_floating_point():
            kinds = [str(t.dtype).removeprefix("torch.") for t in (expected, value)]
            raise InputError(
                f"Input {name} of the program must be {kinds[0]}, but got {kinds[1]}.",
                "Leave out --input and --shape to run it on the inputs stored in its file, or"
                " call it from Python with a tensor of that dtype.",
            )
        fits = value.ndim == expected.ndim and all(
            self._fits(length, size, sizes)
            for length, size in zip(expected.shape, value.shape, strict=True)
        )
        if not fits:
            alone = f" (--shape {self._text(expected)})" if len(self._expected) == 1 else ""
            fixed = not any(isinstance(length, torch.SymInt) for length in expected.shape)
            raise InputError(
                f"The program was exported for an input {name} of shape {self._text(expected)}"
                f"{self._limits(expected)}, but got"
                f" {shape_text(value.shape, 'a scalar')}.",
                _REPAIR.format(alone if fixed else " within its limits"),
            )

    def _fits(self, length: Any, size: int, sizes: dict[str, int]) -> bool:
        """Whether a length fits; the size of a free dimension is noted in ``sizes``."""
        if isinstance(length, int):
            return length == size
        expression = length.node.expr
        if expression.is_Symbol:
            limits = self._ranges.get(str(expression))
            within = limits is None or limits.lower <= size <= limits.upper
            return bool(within and sizes.setdefault(str(expression), size) == size)
        symbols = {symbol: sizes.get(str(symbol)) for symbol in expression.free_symbols}
        return None in symbols.values() or bool(expression.subs(symbols) == size)

    def _text(self, expected: Tensor) -> str:
        return "x".join(map(self._letter, expected.shape)) or "a scalar"

    def _letter(self, length: Any) -> str:
        text = str(length)
        for symbol, letter in self._letters.items():
            text = text.replace(symbol, letter)
        return text if text.isalnum() else f"({text})"

    def _limits(self, expected: Tensor) -> str:
        """A description of the limits of the dynamic lengths of a shape."""
        used = [s for s in self._letters if any(s in str(length) for length in expected.shape)]
        texts = []
        for symbol in used:
            limits = self._ranges.get(symbol)
            if limits is not None:
                least, most = limits.lower, limits.upper
                upper = f"from {least} to {most}" if most.is_Integer else f"{least} or more"
                texts.append(f"{self._letters[symbol]} {upper}")
        return f" ({', '.join(texts)})" if texts else ""


def _list_inputs(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    parts = [*map(_plain, args), *(f"{name}={_plain(value)}" for name, value in kwargs.items())]
    return f"({', '.join(parts)})"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else repr(value).replace("'", "")


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor of {shape_text(value.shape, 'a scalar')}"
    return type(value).__name__


class CallGraph:
    """The operators of one call of a module, in order. Copies of a module share it."""

    def __init__(
        self, path: str, graph: fx.Graph, constants: dict[str, Any], home: torch.device | None
    ) -> None:
        self.path = path
        self.nodes = tuple(graph.nodes)
        self.constants = constants
        self.home = home
        self.names = [str(node.target) for node in self.nodes if node.op == "placeholder"]
        last_uses = {used: node for node in self.nodes for used in node.all_input_nodes}
        self.last_used_by: dict[fx.Node, list[fx.Node]] = {}
        for used, node in last_uses.items():
            self.last_used_by.setdefault(node, []).append(used)

    def __deepcopy__(self, memo: dict[int, Any]) -> CallGraph:
        return self

    def run(self, layer: ExportedLayer, args: tuple[Any, ...]) -> Any:
        """Run the operators on ``args``, with the parameters of ``layer``."""
        device = next((arg.device for arg in args if isinstance(arg, Tensor)), self.home)
        values: dict[fx.Node, Any] = {}
        inputs = iter(args)

        def fill_in(value: Any) -> Any:
            if isinstance(value, fx.Node):
                return values[value]
            return device if isinstance(value, torch.device) and value == self.home else value

        for node in self.nodes:
            if node.op == "placeholder":
                values[node] = next(inputs)
            elif node.op == "get_attr":
                values[node] = self._fetch(layer, str(node.target), device)
            else:
                arguments = map_aggregate(node.args, fill_in)
                if node.op == "output":
                    return _mutable(arguments[0])
                keywords = map_aggregate(node.kwargs, fill_in)
                function: Any = node.target
                if node.op == "call_module":
                    function = partial(self._call, layer, function)
                values[node] = function(*arguments, **keywords)
            for used in self.last_used_by.get(node, ()):
                del values[used]  # frees activations after their last use
        return None

    def _call(self, layer: ExportedLayer, target: str, *args: Any, **kwargs: Any) -> Any:
        """Call the module that the graph names ``target``, with the graph of this call."""
        module = cast(ExportedLayer, layer.get_submodule(_CALL.sub("", target)))
        _next_call.graphs[id(module)] = module._exported_calls[_join(self.path, target)]
        try:
            return module(*args, **kwargs)
        finally:
            _next_call.graphs.pop(id(module), None)

    def _fetch(self, layer: ExportedLayer, name: str, device: torch.device | None) -> Any:
        if name not in self.constants:
            owner, _, own = _CALL.sub("", name).rpartition(".")
            return getattr(layer.get_submodule(owner), own)
        value = self.constants[name]
        moves = isinstance(value, Tensor) and self.home is not None
        return value.to(device) if moves else value


def _mutable(value: Any) -> Any:
    """The value with plain lists and dicts in place of the immutable ones of a graph."""
    if isinstance(value, fx.immutable_collections.immutable_list):
        return [_mutable(item) for item in value]
    if isinstance(value, fx.immutable_collections.immutable_dict):
        return {key: _mutable(item) for key, item in value.items()}
    return tuple(map(_mutable, value)) if type(value) is tuple else value


class _NextProgramCall(threading.local):
    """The graph that the next call of a layer runs, by the layer's id, for each thread."""

    def __init__(self) -> None:
        self.graphs: dict[int, CallGraph] = {}


_next_call = _NextProgramCall()


class ExportedLayer(nn.Module):
    """A module of an exported program. Its own attributes have names that no model uses."""

    _hookscope_format = "exported"
    _hookscope_source = ""  # its code is the graph, which has the source of each operator

    def __init__(self) -> None:
        super().__init__()
        self._exported_calls: dict[str, CallGraph] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph that the caller has set, or the first call's."""
        graph = _next_call.graphs.pop(id(self), None) or next(iter(self._exported_calls.values()))
        named = (kwargs[name] for name in graph.names[len(args) :] if name in kwargs)
        return graph.run(self, (*args, *named))

    def extra_repr(self) -> str:
        """The shapes of its own parameters."""
        own = self.named_parameters(recurse=False)
        return ", ".join(f"{name}={shape_text(p.shape, '1')}" for name, p in own)


class ExportedProgramModule(ExportedLayer):
    """An exported program as a module. Its inputs are checked by its contract."""

    _exported_contract: ProgramContract

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; the output has the structure of the exported model's output."""
        flat = self._exported_contract.flatten(args, kwargs)
        # Restores the mode after an error.
        with signal_safe(torch.set_grad_enabled(torch.is_grad_enabled())):
            output = self._exported_calls[""].run(self, tuple(flat))
        return self._exported_contract.restore(output)

    def train(self, mode: bool = True) -> ExportedProgramModule:
        """Raise RequestError for training mode: the graph has the mode of the export."""
        if mode:
            raise RequestError(
                "An exported program stays in the mode it was exported in and cannot be switched to"
                " training mode.",
                "Leave out --train, or export the model in training mode.",
            )
        super().train(False)
        return self


class _Unflattened(UnflattenedModule):
    """torch's unflattening without its dispatch of the calls of a module."""

    def _dispatch_modules(self, *args: Any) -> None:
        pass


def build_module(program: torch.export.ExportedProgram) -> nn.Module:
    """Return the program as a module; see ``exported_source.to_module``."""
    try:
        flat = _Unflattened(remove_effect_tokens(remove_alias_outputs(inline_grad_blocks(program))))
    except Exception as exc:
        raise ModelError(
            f"The exported program cannot be split into its layers: {end_sentence(str(exc))}",
            "Export it again with the newest torch.",
        ) from exc
    home = _home(flat)
    modules = dict(_submodules(flat))
    calls: dict[str, list[str]] = {}
    for path in modules:
        calls.setdefault(_CALL.sub("", path), []).append(path)
    class_names = _class_names(program.graph_module)
    root: ExportedProgramModule = _class_of_name(class_names.get(""), ExportedProgramModule)()
    root._exported_contract = ProgramContract(program, flat.input_placeholders)
    for name, paths in calls.items():
        layer = _add(root, name, class_names.get(name)) if name else root
        for path in paths:
            _share_tensors(modules[path], layer)
            if isinstance(getattr(modules[path], "graph", None), fx.Graph):
                layer._exported_calls[path] = _call_graph(path, modules[path], home)
    return root.eval()


def _submodules(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Every module by its path, without the graphs that operators such as ``cond`` run."""
    yield path, module
    for name, inner in module._modules.items():
        if inner is not None and not isinstance(inner, fx.GraphModule):
            yield from _submodules(inner, _join(path, name))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _class_names(graphs: nn.Module) -> dict[str, str]:
    """The dotted name of the class of each module with operators, by the module's path."""
    names = {}
    for inner in graphs.modules():
        for node in inner.graph.nodes if isinstance(inner, fx.GraphModule) else ():
            for path, cls in node.meta.get("nn_module_stack", {}).values():
                is_class = isinstance(cls, type)
                name = f"{cls.__module__}.{cls.__qualname__}" if is_class else str(cls)
                names[_CALL.sub("", path)] = name
    return names


@cache
def _class_of_name(name: str | None, base: type[Any]) -> Any:
    members = {"__module__": __name__, "__doc__": base.__doc__, "_hookscope_class": name or ""}
    return type((name or "Module").rpartition(".")[2], (base,), members)


def _add(root: nn.Module, path: str, class_name: str | None) -> ExportedLayer:
    owner, _, name = path.rpartition(".")
    layer: ExportedLayer = _class_of_name(class_name, ExportedLayer)()
    root.get_submodule(owner).add_module(name, layer)
    return layer


def _share_tensors(module: nn.Module, layer: nn.Module) -> None:
    for name, parameter in module._parameters.items():
        layer.register_parameter(name, parameter)
    for name, buffer in module._buffers.items():
        persistent = name not in module._non_persistent_buffers_set
        layer.register_buffer(name, buffer, persistent=persistent)


def _call_graph(path: str, module: nn.Module, home: torch.device | None) -> CallGraph:
    graph = cast(fx.Graph, module.graph)
    constants = {}
    for node in graph.nodes:
        if node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            holder = module.get_submodule(owner)
            if name not in holder._parameters and name not in holder._buffers:
                constants[str(node.target)] = getattr(holder, name)
    return CallGraph(path, graph, constants, home)


def _home(flat: nn.Module) -> torch.device | None:
    """The device of all tensors and operators of the program; None if there are several."""
    devices = {tensor.device for tensor in chain(flat.parameters(), flat.buffers())}
    for _, module in _submodules(flat):
        for node in getattr(module, "graph", fx.Graph()).nodes:
            leaves = pytree.tree_leaves((node.args, node.kwargs))
            devices |= {leaf for leaf in leaves if isinstance(leaf, torch.device)}
    return devices.pop() if len(devices) == 1 else None
