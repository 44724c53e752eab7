"""Single nodes as expressions, and the things that those refer to by name."""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from hookscope.sources.torchscript import private, runtime
from hookscope.sources.torchscript.graph import EnumMember, Method, Node, Schema, Type
from hookscope.sources.torchscript.operator_modules import OperatorModules
from hookscope.sources.torchscript.operators import GIVES_FIRST, REFUSED, TEXTS, is_quick
from hookscope.sources.torchscript.runtime import FORWARD, HELPERS, own_name


class SymbolTable(Protocol):
    """What knows the classes and functions that nodes name.

    Attributes:
        types: the types that a value of type Any may have, beside plain ones, by their text.
    """

    types: dict[str, Type]

    def is_module(self, static: Type) -> bool:
        """Whether values of this type are modules."""

    def has_forward(self, static: Type) -> bool:
        """Whether modules of the type have a ``forward``, as far as is known."""

    def has_hook(self, static: Type, name: str) -> bool:
        """Whether modules of the type have a scripted hook of this qualified name."""

    def function(self, node: Node) -> Callable[..., Any]:
        """The function that a ``CallFunction`` node calls."""

    def compiled(self, method: Method) -> Callable[..., Any]:
        """A method or function as a Python function."""

    def script_class(self, static: Type) -> type[runtime.Instance]:
        """The Python class for a script class."""

    def class_method(self, static: Type, name: str, given: tuple[Type, ...]) -> None:
        """See to it that a script class has a method, for arguments of these types."""

    def interface_method(self, name: str, given: tuple[Type, ...]) -> None:
        """See to it that every script class that has the method has it."""

    def enum_member(self, member: EnumMember) -> Any:
        """A member of an enum that the archive defines."""

    def dispatches(self, static: Type) -> None:
        """Note that modules of this type are called by another method than ``forward``."""

    def reads(self, owner: Type, name: str, static: Type) -> None:
        """Note that what is of type ``owner`` has an attribute of this name and type."""


class NodeWriter:
    """Writes the nodes of one method; ``names`` are the globals that the text needs.

    Args:
        program: knows the classes and functions that nodes name.
        where: what the method is called in messages: ``BasicBlock.forward``.
        steps: makes modules of operators, for a model that has none; None to call operators.
    """

    def __init__(self, program: SymbolTable, where: str, steps: OperatorModules | None) -> None:
        self.program = program
        self.where = where
        self.steps = steps
        self.names: dict[str, Any] = dict(HELPERS)
        self.tensors: dict[int, Tensor] = {}  # constants, by the number of their value
        self.placed = False  # whether a device or a tensor is among them, which move with the model
        self._known: dict[int, str] = {}

    def name(self, thing: Any) -> str:
        """The name of a global that stands for ``thing``."""
        if id(thing) not in self._known:
            self._known[id(thing)] = name = f"k{len(self._known)}"
            self.names[name] = thing
        return self._known[id(thing)]

    def constant(self, value: Any, id: int = -1) -> str:
        """A literal where there is one, else a name; ``id`` is that of the graph's value."""
        if isinstance(value, Tensor) and value.ndim:
            self.tensors[id] = value
        if isinstance(value, EnumMember):
            return self.name(self.program.enum_member(value))
        kind = type(value)  # a member of an enum may be a string or a number as well
        if value is None or kind in (bool, str):
            return repr(value)
        if kind is int or (kind is float and math.isfinite(value)):
            return repr(value) if value >= 0 and repr(value)[0] != "-" else f"({value!r})"
        if isinstance(value, list):  # a new one each time, as whoever gets it may change it
            return f"[{', '.join(self.constant(one) for one in value)}]"
        if isinstance(value, torch.device) or (isinstance(value, Tensor) and value.ndim):
            self.placed = True
            return f"placed(self, {self.name(value)})"
        return self.name(value)

    def expression(self, node: Node, inputs: Sequence[str]) -> str:
        """The expression that a node becomes; what cannot be interpreted raises when it runs."""
        own = _WRITERS.get(node.kind)
        if own is not None:
            return own(self, node, inputs)
        if node.kind in REFUSED:
            return self._refusal(node, f"it {REFUSED[node.kind]}")
        text = TEXTS.get(node.operator)
        if text is None:
            return self._operator(node, inputs)
        if node.operator in ("aten::sort.any", "aten::sorted.any"):
            return self._sort(node, inputs)
        text = text.format(*map(_bracketed, inputs))
        if node.operator in GIVES_FIRST and node.outputs:
            return f"({text}, {inputs[0]})[1]"
        return text

    def _operator(self, node: Node, inputs: Sequence[str]) -> str:
        """A call of PyTorch's own operator."""
        if not node.schema:
            return self._refusal(node, "hookscope does not know it")
        schema = private.signature(node.schema)
        if schema.changes_container:
            return self._refusal(node, "it changes a container in a way hookscope does not know")
        if schema.generic:
            types = [value.type for value in node.inputs]
            if len(node.outputs) != 1 or any(map(_beyond, [*types, node.outputs[0].type])):
                return self._refusal(node, "its types are beyond hookscope")
            run = private.single_node_function(node.kind, types, node.outputs[0].type)
            return f"{self.name(run)}({', '.join(inputs)})"
        if any(map(keyword.iskeyword, schema.names[schema.positional :])):
            return self._refusal(node, "a keyword of Python's is the name of an argument")
        given = dict(enumerate(inputs))
        for place in range(len(inputs) - 1, -1, -1):  # what is left out needs no conversion
            if given[place] == _literal(schema.defaults[place]):
                del given[place]
            elif place < schema.positional:
                break
        operator = self._callable(node, [schema.names[place] for place in given])
        if operator is None:
            return self._refusal(node, "this PyTorch has no such operator")
        called, held = self._runner(node, operator, schema)
        texts = [
            text if place < schema.positional else f"{schema.names[place]}={text}"
            for place, text in given.items()
            if place not in held
        ]
        return f"{called}({', '.join(texts)})"

    def _callable(self, node: Node, given: Sequence[str]) -> Callable[..., Any] | None:
        """What runs an operator on tensors: PyTorch's own function, or a call by schema."""
        on_tensors = bool(node.inputs) and _has_tensor(node.inputs[0].type)
        if on_tensors and is_quick(node.operator, given):
            found = private.fast_function(node.kind.partition("::")[2])
            if found is not None:
                return found
        return private.operator(node.schema)

    def _runner(
        self, node: Node, operator: Callable[..., Any], schema: Schema
    ) -> tuple[str, Collection[int]]:
        """What is called for an operator, and the places of the arguments it has already."""
        tensors = any(_has_tensor(value.type) for value in node.outputs)
        if self.steps is None or not tensors:
            return self.name(operator), ()
        held = {
            place: (schema.names[place], self.tensors[value.id])
            for place, value in enumerate(node.inputs[: schema.positional])
            if value.id in self.tensors
        }
        return f"self._modules[{self.steps.add(node.kind, operator, held)!r}]", held

    def _refusal(self, node: Node, reason: str) -> str:
        source = f" at {node.source}" if node.source else ""
        text = f"{node.operator} in {self.where}{source} cannot be interpreted: {reason}"
        return f"uninterpretable({text!r})"

    # Nodes that have no schema, or one that says too little

    def _get_attribute(self, node: Node, inputs: Sequence[str]) -> str:
        name, (owner,) = node.attributes["name"], node.inputs
        if self.program.is_module(node.outputs[0].type):
            return f"{inputs[0]}._modules[{name!r}]"
        self.program.reads(owner.type, name, node.outputs[0].type)
        name = own_name(name)
        if name.isidentifier() and not keyword.iskeyword(name):
            return f"{inputs[0]}.{name}"
        return f"getattr({inputs[0]}, {name!r})"

    def _set_attribute(self, node: Node, inputs: Sequence[str]) -> str:
        return f"setattr({inputs[0]}, {own_name(node.attributes['name'])!r}, {inputs[1]})"

    def _call_method(self, node: Node, inputs: Sequence[str]) -> str:
        name, (owner, *given) = node.attributes["name"], inputs
        static = node.inputs[0].type
        if static.kind == "Interface":  # of modules, or of script classes
            self.program.interface_method(name, tuple(value.type for value in node.inputs[1:]))
        if not self.program.is_module(static):
            if not static.text.startswith(private.CUSTOM):
                self.program.class_method(static, name, tuple(v.type for v in node.inputs[1:]))
            return f"{owner}.{name}({', '.join(given)})"
        if not (FORWARD.fullmatch(name) or (owner != "self" and self._stands_in(static, name))):
            return f"{owner}.{own_name(name)}({', '.join(given)})"
        if name == "forward" and owner != "self":
            return f"{owner}({', '.join(given)})"
        self.program.dispatches(static)
        return f"call_as({', '.join([owner, repr(name), *given])})"

    def _stands_in(self, static: Type, name: str) -> bool:
        """Whether the method is one of several that ``forward`` was split into, as of an LSTM."""
        return name.startswith("forward_") and not self.program.has_forward(static)

    def _call_function(self, node: Node, inputs: Sequence[str]) -> str:
        hooked = self._past_hook(node, inputs)
        if hooked:
            return hooked
        function = self.program.function(node)
        return f"{self.name(function)}({', '.join(['self', *inputs[1:]])})"

    def _past_hook(self, node: Node, inputs: Sequence[str]) -> str:
        """What stands for a call of a module's scripted hook, which the module itself calls."""
        owner = node.inputs[1].type if len(node.inputs) > 1 else None
        if owner is None or not self.program.has_hook(owner, node.attributes["name"]):
            return ""
        if node.outputs[0].type.kind == "None":
            return "None"
        if len(inputs) == 4:  # module, arguments, output
            return inputs[3]
        return inputs[2] if node.outputs[0].type.kind == "Tuple" else f"{inputs[2]}[0]"

    def _fork(self, node: Node, inputs: Sequence[str]) -> str:
        function = self.program.compiled(node.attributes["graph"])
        return f"{self.name(function)}({', '.join(['self', *inputs])})"

    def _awaitable(self, node: Node, inputs: Sequence[str]) -> str:
        function = self.program.compiled(node.attributes["graph"])
        return f"Awaitable({', '.join([self.name(function), 'self', *inputs])})"

    def _python(self, node: Node, inputs: Sequence[str]) -> str:
        """A function that ``torch.jit.ignore`` left to Python, or a traced autograd function."""
        if any(self.program.is_module(value.type) for value in node.inputs):
            return self._refusal(node, "torch.jit.ignore left a method of a module to Python")
        tensors, scalars = iter(inputs), iter(node.attributes["scalars"])
        kinds = node.attributes["kinds"]
        given = [next(tensors) if kind == "d" else self.constant(next(scalars)) for kind in kinds]
        return f"{self.name(node.attributes['function'])}({', '.join(given)})"

    def _create(self, node: Node, inputs: Sequence[str]) -> str:
        return f"new({self.name(self.program.script_class(node.outputs[0].type))})"

    def _tuple(self, node: Node, inputs: Sequence[str]) -> str:
        made = node.outputs[0].type
        if made.fields:
            return f"{self.name(runtime.tuple_type(made.text, made.fields))}({', '.join(inputs)})"
        return f"({', '.join(inputs)}{',' if len(inputs) == 1 else ''})"

    def _tuple_slice(self, node: Node, inputs: Sequence[str]) -> str:
        return f"{inputs[0]}[{node.attributes['begin']}:{node.attributes['end']}]"

    def _dict(self, node: Node, inputs: Sequence[str]) -> str:
        pairs = zip(inputs[0::2], inputs[1::2], strict=True)
        return "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}"

    def _is_instance(self, node: Node, inputs: Sequence[str]) -> str:
        things = (node.inputs[0].type, node.attributes["types"], self.program.types)
        return f"is_instance({', '.join([inputs[0], *map(self.name, things)])})"

    def _is(self, node: Node, inputs: Sequence[str]) -> str:
        """Identity; numbers have none in TorchScript, and that of texts is an accident there."""
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
                self.program.class_method(static, "__lt__", (static,))
        return TEXTS[node.operator].format(*inputs)

    def _print(self, node: Node, inputs: Sequence[str]) -> str:
        """TorchScript's text by Python's ``print``, as its own goes past ``sys.stdout``."""
        types = [value.type for value in node.inputs]
        texts = (
            "str"
            if _beyond(one)
            else self.name(private.single_node_function("aten::str", [one], private.STR))
            for one in types
        )
        parts = [f"{text}({given})" for text, given in zip(texts, inputs, strict=True)]
        return f"print({', '.join(parts)})"

    def _raise(self, node: Node, inputs: Sequence[str]) -> str:
        return f"raise_error({', '.join(inputs[:2])})"


def _beyond(static: Type) -> bool:
    """Whether PyTorch cannot take a value of the type from us, as only Python knows its class."""
    return static.kind in ("Class", "Interface", "Enum", "Any", "Future") or any(
        map(_beyond, static.inner)
    )


_NUMBERS = {"Int", "Float", "Bool", "Complex", "Number", "None"}
_VALUES = _NUMBERS - {"None"} | {"String", "Enum", "Any", "DeviceObj", "Tuple"}


def _kinds(static: Type) -> set[str]:
    """The kinds of a type, of each of its members where it has several."""
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
    "prim::SetAttr": NodeWriter._set_attribute,
    "prim::CallMethod": NodeWriter._call_method,
    "prim::CallFunction": NodeWriter._call_function,
    "prim::fork": NodeWriter._fork,
    "prim::awaitable": NodeWriter._awaitable,
    "prim::awaitable_nowait": lambda self, node, inputs: f"Awaitable(None, {inputs[0]})",
    "prim::awaitable_wait": lambda self, node, inputs: f"{inputs[0]}.wait()",
    "prim::PythonOp": NodeWriter._python,
    "prim::CreateObject": NodeWriter._create,
    "prim::TupleConstruct": NodeWriter._tuple,
    "prim::TupleUnpack": lambda self, node, inputs: inputs[0],
    "prim::TupleIndex": lambda self, node, inputs: f"{inputs[0]}[{inputs[1]}]",
    "prim::TupleSlice": NodeWriter._tuple_slice,
    "prim::ListConstruct": lambda self, node, inputs: f"[{', '.join(inputs)}]",
    "prim::ListUnpack": lambda self, node, inputs: inputs[0],
    "prim::DictConstruct": NodeWriter._dict,
    "prim::isinstance": NodeWriter._is_instance,
    "prim::Print": NodeWriter._print,
    "prim::RaiseException": NodeWriter._raise,
    "prim::Enter": lambda self, node, inputs: f"{inputs[0]}.__enter__()",
    "prim::Exit": lambda self, node, inputs: f"{inputs[0]}.__exit__(None, None, None)",
    "aten::__is__": NodeWriter._is,
    "aten::__isnot__": NodeWriter._is,
    "aten::warn": lambda self, node, inputs: f"warn({', '.join(inputs)})",
}
