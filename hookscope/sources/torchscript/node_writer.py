"""Single nodes of a graph as Python expressions, and the objects that they refer to by name.

``torch.jit.freeze`` inlines a model into one graph. So that it has hooks, each operator on tensors
becomes a module: ``conv2d_3`` is the third convolution, and its weights are parameters again.
"""

from __future__ import annotations

import keyword
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hookscope.sources.torchscript import private, runtime
from hookscope.sources.torchscript.graph import EnumMember, Method, Node, Schema, Type
from hookscope.sources.torchscript.operators import REFUSED, RETURNS_FIRST, TEMPLATES, is_fast
from hookscope.sources.torchscript.runtime import FORWARD, HELPERS, own_name


class OperatorModule(nn.Module):
    """One operator of a graph."""

    def __init__(
        self,
        operator: Callable[..., Any],
        weights: Mapping[int, tuple[str, Tensor]],
        shared: dict[Tensor, nn.Parameter],
    ) -> None:
        super().__init__()
        self._operator = operator
        self._weight_names = {position: name for position, (name, _) in weights.items()}
        for name, tensor in weights.values():
            if tensor.is_floating_point() or tensor.is_complex():
                parameter = shared.setdefault(tensor, nn.Parameter(tensor, requires_grad=False))
                self.register_parameter(name, parameter)
            else:
                self.register_buffer(name, tensor)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operator on these arguments and its weights."""
        inputs = list(args)
        for position, name in self._weight_names.items():
            inputs.insert(position, getattr(self, name))
        return self._operator(*inputs, **kwargs)


class OperatorModules:
    """Makes the operator modules of one model, and adds them to it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._count: Counter[str] = Counter()
        self._shared: dict[Tensor, nn.Parameter] = {}

    def add(
        self, kind: str, operator: Callable[..., Any], weights: Mapping[int, tuple[str, Tensor]]
    ) -> str:
        """Add a module for an operator such as ``aten::relu_`` and return its name."""
        operator_name = kind.partition("::")[2].strip("_")
        self._count[operator_name] += 1
        name = f"{operator_name}_{self._count[operator_name]}"
        module = type(operator_name, (OperatorModule,), {})(operator, weights, self._shared)
        self._model.add_module(name, module)
        return name


class _Symbols(Protocol):
    """What ``ModuleBuilder`` knows of the classes and functions that nodes refer to."""

    types: dict[str, Type]

    def is_module(self, static: Type) -> bool: ...
    def has_forward(self, static: Type) -> bool: ...
    def has_hook(self, static: Type, name: str) -> bool: ...
    def function(self, node: Node) -> Callable[..., Any]: ...
    def compiled(self, method: Method) -> Callable[..., Any]: ...
    def script_class(self, static: Type) -> type[runtime.Instance]: ...
    def class_method(self, static: Type, name: str, argument_types: tuple[Type, ...]) -> None: ...
    def interface_method(self, name: str, argument_types: tuple[Type, ...]) -> None: ...
    def enum_member(self, member: EnumMember) -> Any: ...
    def dispatches(self, static: Type) -> None: ...
    def reads(self, owner: Type, name: str, static: Type) -> None: ...


class NodeWriter:
    """Writes the nodes of one method as expressions."""

    def __init__(
        self, symbols: _Symbols, location: str, operator_modules: OperatorModules | None
    ) -> None:
        self.symbols = symbols
        self.location = location
        self.operator_modules = operator_modules
        self.names: dict[str, Any] = dict(HELPERS)
        self.tensors: dict[int, Tensor] = {}
        self.has_devices = False
        self._names_by_id: dict[int, str] = {}

    def name(self, value: Any) -> str:
        """Return the name of a global for ``value``."""
        if id(value) not in self._names_by_id:
            self._names_by_id[id(value)] = name = f"k{len(self._names_by_id)}"
            self.names[name] = value
        return self._names_by_id[id(value)]

    def constant(self, value: Any, id: int = -1) -> str:
        """Return a literal for the value, or else a name; ``id`` is its number in the graph."""
        if isinstance(value, Tensor) and value.ndim:
            self.tensors[id] = value
        if isinstance(value, EnumMember):
            return self.name(self.symbols.enum_member(value))
        cls = type(value)  # a member of an enum may be an instance of str or int
        if value is None or cls in (bool, str):
            return repr(value)
        if cls is int or (cls is float and math.isfinite(value)):
            return repr(value) if value >= 0 and repr(value)[0] != "-" else f"({value!r})"
        if isinstance(value, list):  # a new list each time, as code may change it
            return f"[{', '.join(self.constant(item) for item in value)}]"
        if isinstance(value, torch.device) or (isinstance(value, Tensor) and value.ndim):
            self.has_devices = True
            return f"placed(self, {self.name(value)})"
        return self.name(value)

    def expression(self, node: Node, inputs: Sequence[str]) -> str:
        """Return the expression for a node; one that cannot be interpreted raises when it runs."""
        writer = _WRITERS.get(node.kind)
        if writer is not None:
            return writer(self, node, inputs)
        if node.kind in REFUSED:
            return self._refusal(node, f"it {REFUSED[node.kind]}")
        template = TEMPLATES.get(node.operator)
        if template is None:
            return self._operator(node, inputs)
        if node.operator in ("aten::sort.any", "aten::sorted.any"):
            return self._sort(node, inputs)
        text = template.format(*map(_bracketed, inputs))
        if node.operator in RETURNS_FIRST and node.outputs:
            return f"({text}, {inputs[0]})[1]"
        return text

    def _operator(self, node: Node, inputs: Sequence[str]) -> str:
        """A call of PyTorch's operator."""
        if not node.schema:
            return self._refusal(node, "it is unknown to hookscope")
        schema = private.signature(node.schema)
        if schema.changes_container:
            return self._refusal(node, "it changes a container in a way hookscope does not know")
        if schema.generic:
            types = [value.type for value in node.inputs]
            if len(node.outputs) != 1 or any(map(_is_python_only, [*types, node.outputs[0].type])):
                return self._refusal(node, "its types are not supported")
            run = private.single_node_function(node.kind, types, node.outputs[0].type)
            return f"{self.name(run)}({', '.join(inputs)})"
        if any(map(keyword.iskeyword, schema.names[schema.positional :])):
            return self._refusal(node, "the name of an argument is a Python keyword")
        arguments = dict(enumerate(inputs))
        for index in range(len(inputs) - 1, -1, -1):  # a default that is left out is not converted
            if arguments[index] == _literal(schema.defaults[index]):
                del arguments[index]
            elif index < schema.positional:
                break
        operator = self._callable(node, [schema.names[index] for index in arguments])
        if operator is None:
            return self._refusal(node, "this release of PyTorch has no such operator")
        function, weights = self._runner(node, operator, schema)
        texts = [
            text if index < schema.positional else f"{schema.names[index]}={text}"
            for index, text in arguments.items()
            if index not in weights
        ]
        return f"{function}({', '.join(texts)})"

    def _callable(self, node: Node, arguments: Sequence[str]) -> Callable[..., Any] | None:
        """The function for an operator: PyTorch's function of its name, or a call by schema."""
        on_tensors = bool(node.inputs) and _has_tensor(node.inputs[0].type)
        if on_tensors and is_fast(node.operator, arguments):
            function = private.fast_function(node.kind.partition("::")[2])
            if function is not None:
                return function
        return private.operator(node.schema)

    def _runner(
        self, node: Node, operator: Callable[..., Any], schema: Schema
    ) -> tuple[str, Collection[int]]:
        """The expression that is called for an operator, and the positions of its own weights."""
        tensors = any(_has_tensor(value.type) for value in node.outputs)
        if self.operator_modules is None or not tensors:
            return self.name(operator), ()
        weights = {
            index: (schema.names[index], self.tensors[value.id])
            for index, value in enumerate(node.inputs[: schema.positional])
            if value.id in self.tensors
        }
        name = self.operator_modules.add(node.kind, operator, weights)
        return f"self._modules[{name!r}]", weights

    def _refusal(self, node: Node, reason: str) -> str:
        source = f" at {node.source}" if node.source else ""
        text = f"{node.operator} in {self.location}{source} cannot be interpreted: {reason}"
        return f"uninterpretable({text!r})"

    # Nodes without a schema, or with one that is not sufficient

    def _get_attribute(self, node: Node, inputs: Sequence[str]) -> str:
        name, (owner,) = node.attributes["name"], node.inputs
        if self.symbols.is_module(node.outputs[0].type):
            return f"{inputs[0]}._modules[{name!r}]"
        self.symbols.reads(owner.type, name, node.outputs[0].type)
        name = own_name(name)
        if name.isidentifier() and not keyword.iskeyword(name):
            return f"{inputs[0]}.{name}"
        return f"getattr({inputs[0]}, {name!r})"

    def _call_method(self, node: Node, inputs: Sequence[str]) -> str:
        name, (owner, *arguments) = node.attributes["name"], inputs
        static = node.inputs[0].type
        if static.kind == "Interface":  # of modules, or of script classes
            self.symbols.interface_method(name, tuple(value.type for value in node.inputs[1:]))
        if not self.symbols.is_module(static):
            if not static.text.startswith(private.CUSTOM):
                self.symbols.class_method(static, name, tuple(v.type for v in node.inputs[1:]))
            return f"{owner}.{name}({', '.join(arguments)})"
        # The method may be one of several parts of ``forward``, as in an LSTM.
        is_part = name.startswith("forward_") and not self.symbols.has_forward(static)
        if not (FORWARD.fullmatch(name) or (owner != "self" and is_part)):
            return f"{owner}.{own_name(name)}({', '.join(arguments)})"
        if name == "forward" and owner != "self":
            return f"{owner}({', '.join(arguments)})"
        self.symbols.dispatches(static)
        return f"call_as({', '.join([owner, repr(name), *arguments])})"

    def _call_function(self, node: Node, inputs: Sequence[str]) -> str:
        result = self._skipped_hook(node, inputs)
        if result:
            return result
        function = self.symbols.function(node)
        return f"{self.name(function)}({', '.join(['self', *inputs[1:]])})"

    def _skipped_hook(self, node: Node, inputs: Sequence[str]) -> str:
        """The value for a call of a scripted hook, which the module calls instead; else empty."""
        owner = node.inputs[1].type if len(node.inputs) > 1 else None
        if owner is None or not self.symbols.has_hook(owner, node.attributes["name"]):
            return ""
        if node.outputs[0].type.kind == "None":
            return "None"
        if len(inputs) == 4:  # module, arguments, output
            return inputs[3]
        return inputs[2] if node.outputs[0].type.kind == "Tuple" else f"{inputs[2]}[0]"

    def _fork(self, node: Node, inputs: Sequence[str]) -> str:
        function = self.symbols.compiled(node.attributes["graph"])
        return f"{self.name(function)}({', '.join(['self', *inputs])})"

    def _awaitable(self, node: Node, inputs: Sequence[str]) -> str:
        function = self.symbols.compiled(node.attributes["graph"])
        return f"Awaitable({', '.join([self.name(function), 'self', *inputs])})"

    def _python(self, node: Node, inputs: Sequence[str]) -> str:
        """A Python function, by ``torch.jit.ignore`` or a traced autograd function."""
        if any(self.symbols.is_module(value.type) for value in node.inputs):
            return self._refusal(node, "it is a method that torch.jit.ignore left out of the file")
        tensors, scalars = iter(inputs), iter(node.attributes["scalars"])
        kinds = node.attributes["kinds"]
        arguments = [
            next(tensors) if kind == "d" else self.constant(next(scalars)) for kind in kinds
        ]
        return f"{self.name(node.attributes['function'])}({', '.join(arguments)})"

    def _tuple(self, node: Node, inputs: Sequence[str]) -> str:
        static = node.outputs[0].type
        if static.fields:
            name = self.name(runtime.tuple_type(static.text, static.fields))
            return f"{name}({', '.join(inputs)})"
        return f"({', '.join(inputs)}{',' if len(inputs) == 1 else ''})"

    def _dict(self, node: Node, inputs: Sequence[str]) -> str:
        pairs = zip(inputs[0::2], inputs[1::2], strict=True)
        return "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}"

    def _is_instance(self, node: Node, inputs: Sequence[str]) -> str:
        arguments = (node.inputs[0].type, node.attributes["types"], self.symbols.types)
        return f"is_instance({', '.join([inputs[0], *map(self.name, arguments)])})"

    def _is(self, node: Node, inputs: Sequence[str]) -> str:
        """Identity. TorchScript's numbers have none, and its strings' is undefined."""
        sign = "is not" if node.kind == "aten::__isnot__" else "is"
        kinds = {kind for value in node.inputs for kind in _kinds(value.type)}
        if "None" in {value.type.kind for value in node.inputs} or not kinds & _VALUES:
            return f"{inputs[0]} {sign} {inputs[1]}"
        if kinds <= _NUMBERS:
            return f"{inputs[0]} {'!=' if sign == 'is not' else '=='} {inputs[1]}"
        return self._refusal(node, "it asks whether two values are one that can only be equal")

    def _sort(self, node: Node, inputs: Sequence[str]) -> str:
        for static in node.inputs[0].type.inner:
            if static.kind == "Class":
                self.symbols.class_method(static, "__lt__", (static,))
        return TEMPLATES[node.operator].format(*inputs)

    def _print(self, node: Node, inputs: Sequence[str]) -> str:
        """Python's ``print`` with TorchScript's text; its own does not use ``sys.stdout``."""
        types = [value.type for value in node.inputs]
        texts = (
            "str"
            if _is_python_only(static)
            else self.name(private.single_node_function("aten::str", [static], private.STR))
            for static in types
        )
        parts = [f"{text}({value})" for text, value in zip(texts, inputs, strict=True)]
        return f"print({', '.join(parts)})"


def _is_python_only(static: Type) -> bool:
    """Whether PyTorch cannot convert a value of the type, as its class exists only in Python."""
    return static.kind in ("Class", "Interface", "Enum", "Any", "Future") or any(
        map(_is_python_only, static.inner)
    )


_NUMBERS = {"Int", "Float", "Bool", "Complex", "Number", "None"}
_VALUES = _NUMBERS - {"None"} | {"String", "Enum", "Any", "DeviceObj", "Tuple"}


def _kinds(static: Type) -> set[str]:
    """The kind of a type, or of each of its members."""
    if static.kind in ("Optional", "Union"):
        return {"None"}.union(*map(_kinds, static.inner))
    return {static.kind}


def _has_tensor(static: Type) -> bool:
    return static.kind == "Tensor" or any(map(_has_tensor, static.inner))


def _literal(value: Any) -> str:
    return repr(value) if value is None or type(value) in (bool, int, float, str) else ""


def _bracketed(text: str) -> str:
    plain = text.isidentifier() or text.isdigit() or text[:1] in "([{'\""
    return text if plain else f"({text})"


_WRITERS: dict[str, Callable[[NodeWriter, Node, Sequence[str]], str]] = {
    "prim::GetAttr": NodeWriter._get_attribute,
    "prim::SetAttr": lambda self, node, inputs: (
        f"setattr({inputs[0]}, {own_name(node.attributes['name'])!r}, {inputs[1]})"
    ),
    "prim::CallMethod": NodeWriter._call_method,
    "prim::CallFunction": NodeWriter._call_function,
    "prim::fork": NodeWriter._fork,
    "prim::awaitable": NodeWriter._awaitable,
    "prim::awaitable_nowait": lambda self, node, inputs: f"Awaitable(None, {inputs[0]})",
    "prim::awaitable_wait": lambda self, node, inputs: f"{inputs[0]}.wait()",
    "prim::PythonOp": NodeWriter._python,
    "prim::CreateObject": lambda self, node, inputs: (
        f"new({self.name(self.symbols.script_class(node.outputs[0].type))})"
    ),
    "prim::TupleConstruct": NodeWriter._tuple,
    "prim::TupleUnpack": lambda self, node, inputs: inputs[0],
    "prim::TupleIndex": lambda self, node, inputs: f"{inputs[0]}[{inputs[1]}]",
    "prim::TupleSlice": lambda self, node, inputs: (
        f"{inputs[0]}[{node.attributes['begin']}:{node.attributes['end']}]"
    ),
    "prim::ListConstruct": lambda self, node, inputs: f"[{', '.join(inputs)}]",
    "prim::ListUnpack": lambda self, node, inputs: inputs[0],
    "prim::DictConstruct": NodeWriter._dict,
    "prim::isinstance": NodeWriter._is_instance,
    "prim::Print": NodeWriter._print,
    "prim::RaiseException": lambda self, node, inputs: f"raise_error({', '.join(inputs[:2])})",
    "prim::Enter": lambda self, node, inputs: f"{inputs[0]}.__enter__()",
    "prim::Exit": lambda self, node, inputs: f"{inputs[0]}.__exit__(None, None, None)",
    "aten::__is__": NodeWriter._is,
    "aten::__isnot__": NodeWriter._is,
    "aten::warn": lambda self, node, inputs: f"warn({', '.join(inputs)})",
}
