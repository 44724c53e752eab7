"""Every use of those parts of ``torch._C`` that hold scripted models, none of which is public.

What comes out is plain data (``graph``), modules' tensors by name, and callables. A release of
torch that changes any of it breaks this file, and ``test_private.py`` says what broke.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch import Tensor

from hookscope.sources.torchscript.graph import (
    Argument,
    Block,
    EnumMember,
    Method,
    Node,
    Schema,
    Type,
    Value,
)

_C: Any = torch._C  # whose stubs know less than it holds
ScriptObject = Any  # _C.ScriptModule: hashable, equal where it is the same module

CUSTOM = "__torch__.torch.classes."  # classes written in C++

_PLACE = re.compile(r"# (?P<file>\S.*?):(?P<line>\d+):\d+\s*$")
_ENUM = re.compile(r"\[value=(?P<type>.+)\.(?P<name>\w+)\]")
_ALTERS = re.compile(r"(?:[\])]|\bt)\(\w+(?: -> \*)?!|\(\*\)")  # a container, not a tensor


def open_archive(path: str, device: torch.device) -> ScriptObject:
    """Load an archive's root module onto ``device`` without the wrappers ``torch.jit.load`` makes.

    Raises:
        RuntimeError: PyTorch cannot read it.
    """
    return _C.import_ir_module(_C.CompilationUnit(), path, device, {}, False)


def script_object(module: torch.jit.ScriptModule) -> ScriptObject:
    """The object behind a live scripted or traced module."""
    return module._c


def is_scripted(module: object) -> bool:
    """Whether a live module is a scripted or traced one."""
    return isinstance(module, torch.jit.ScriptModule) and hasattr(module, "_c")


def type_name(module: ScriptObject) -> str:
    """The qualified name of a module's class, which is another one for each distinct class."""
    return str(module._type().qualified_name())


def class_name(module: ScriptObject) -> str:
    """The name of the Python class that a module was made from."""
    return str(module._type().name())


def children(module: ScriptObject) -> dict[str, ScriptObject]:
    """The submodules by name, in the order they were defined."""
    return dict(_C.ModuleDict(module).items())


def parameters(module: ScriptObject) -> dict[str, Tensor]:
    """The module's own parameters by name."""
    return dict(_C.ParameterDict(module).items())


def buffers(module: ScriptObject) -> dict[str, Tensor]:
    """The module's own buffers by name."""
    return dict(_C.BufferDict(module).items())


def attribute(module: ScriptObject, name: str) -> Any:
    """Any attribute as a Python object.

    Raises:
        AttributeError: it has none such.
        RuntimeError: it cannot be made one (a member of an unknown enum).
    """
    return module.getattr(name)


def set_attribute(module: ScriptObject, name: str, value: Any) -> None:
    """Set an attribute or a buffer of a module."""
    module.setattr(name, value)


def has_attribute(module: ScriptObject, name: str) -> bool:
    """Whether the module has the attribute."""
    return bool(module.hasattr(name))


def pre_hooks(module: ScriptObject) -> list[Method]:
    """The scripted forward pre-hooks of the module; each takes the module and its arguments."""
    return [_hook(hook) for hook in module._get_forward_pre_hooks()]


def hooks(module: ScriptObject) -> list[Method]:
    """The scripted forward hooks; each takes the module, its arguments and its output."""
    return [_hook(hook) for hook in module._get_forward_hooks()]


def _hook(function: Any) -> Method:
    graph = function.graph
    arguments = tuple(_argument(one) for one in function.schema.arguments[1:])
    block = _block(graph.param_node().owningBlock())
    return Method(function.qualified_name, arguments, block, True, raw=graph)


def method_names(module: ScriptObject) -> list[str]:
    """The names of the methods that were compiled."""
    return list(module._method_names())


def custom_class(value: object) -> str:
    """The qualified name of the class of an object written in C++; empty for another object."""
    return str(value._type().qualified_name()) if isinstance(value, _C.ScriptObject) else ""


def methods_of(static: Type) -> list[str]:
    """The names of the methods of a script class."""
    return list(static.raw.method_names())


def method(module: ScriptObject, name: str) -> Method:
    """A compiled method."""
    found = module._get_method(name)
    arguments = tuple(_argument(given) for given in found.schema.arguments[1:])
    graph = found.graph
    block = _block(graph.param_node().owningBlock())
    source = next((node.source for node in block.nodes if node.source), "")
    return Method(name, arguments, block, True, source)


def called_function(node: Node) -> Method:
    """The function that a ``CallFunction`` node runs.

    The compilation unit of a live module cannot be reached, so a graph that holds this call alone
    is made and inlined.
    """
    graph = _C.Graph()
    given = []
    for value in node.raw.inputs():
        if value.type().kind() == "FunctionType":
            clone = graph.createClone(value.node(), lambda other: other)
            given.append(graph.appendNode(clone).output())
        else:  # a place of its own, even for a value that stands in two
            given.append(graph.addInput())
            given[-1].setType(value.type())
    call = graph.create(node.kind, given, 1)
    call.copyAttributes(node.raw)
    call.output().setType(node.raw.output().type())
    graph.appendNode(call)
    graph.registerOutput(call.output())
    return _inlined(graph, str(node.attributes["name"]), bound=False)


def class_method(owner: Type, name: str, arguments: Sequence[Type]) -> Method:
    """A method of a script class, for arguments of these types."""
    graph = _C.Graph()
    given = []
    for one in (owner, *arguments):
        given.append(graph.addInput())
        given[-1].setType(one.raw)
    call = graph.create("prim::CallMethod", given, 1)
    call.s_("name", name)
    graph.appendNode(call)
    graph.registerOutput(call.output())
    return _inlined(graph, name, bound=True)


def _inlined(graph: Any, name: str, *, bound: bool) -> Method:
    _C._jit_pass_inline(graph)
    return _of_graph(graph, name, bound=bound)


def _of_graph(graph: Any, name: str, *, bound: bool) -> Method:
    block = _block(graph.param_node().owningBlock())
    given = block.inputs[1:] if bound else block.inputs
    arguments = tuple(Argument(f"a{place}", value.type) for place, value in enumerate(given))
    return Method(name, arguments, block, bound, raw=graph)


def _argument(given: Any) -> Argument:
    optional = given.has_default_value()
    default = given.default_value if optional else None
    return Argument(given.name, _type(given.type), optional, default)


def _block(raw: Any) -> Block:
    outputs = tuple(_value(value) for value in raw.outputs())
    nodes = tuple(_node(node) for node in raw.nodes())
    return Block(tuple(_value(value) for value in raw.inputs()), outputs, nodes)


def _node(raw: Any) -> Node:
    kind = raw.kind()
    schema = raw.schema()
    place = _PLACE.search(str(raw).partition("\n")[0])
    return Node(
        kind,
        "" if schema == "(no schema)" else schema,
        tuple(_value(value) for value in raw.inputs()),
        tuple(_value(value) for value in raw.outputs()),
        tuple(_block(block) for block in raw.blocks()),
        _attributes(kind, raw),
        f"{place['file']}:{place['line']}" if place and place["line"] != "0" else "",
        raw,
    )


def _attributes(kind: str, raw: Any) -> Mapping[str, Any]:
    if kind == "prim::Constant":
        return {"value": _constant(raw)}
    if kind in ("prim::GetAttr", "prim::SetAttr", "prim::CallMethod", "prim::HasAttr"):
        return {"name": raw.s("name")}
    if kind == "prim::CallFunction":
        function = next(iter(raw.inputs()))
        return {"name": function.type().annotation_str}
    if kind == "prim::isinstance":
        return {"types": tuple(_type(one) for one in raw.tys("types"))}
    if kind in ("prim::fork", "prim::awaitable"):
        return {"graph": _of_graph(raw.g("Subgraph"), "fork", bound=False)}
    if kind == "prim::TupleSlice":
        return {"begin": raw.i("beg"), "end": raw.i("end")}
    if kind == "prim::PythonOp":
        return {"function": raw.pyobj(), "kinds": raw.cconv(), "scalars": raw.scalar_args()}
    return {}


def _constant(raw: Any) -> Any:
    output = raw.output()
    kind = output.type().kind()
    if kind == "FunctionType":
        return None
    try:
        return output.toIValue()
    except RuntimeError:  # of an enum whose Python class is not at hand
        member = _ENUM.search(str(raw))
        if kind != "EnumType" or member is None:
            raise
        return EnumMember(member["type"], member["name"])


def _value(raw: Any) -> Value:
    return Value(raw.unique(), _type(raw.type()))


_types: dict[str, Type] = {}


def _type(raw: Any) -> Type:
    """A type as data. A name stands for another class in every file, so classes are made anew."""
    text = raw.annotation_str
    kind = raw.kind().removesuffix("Type")
    if text in _types:
        return _types[text]
    inner = () if kind in ("Class", "Interface", "Enum") else raw.containedTypes()
    fields = _fields(raw.str()) if kind == "Tuple" and text.startswith("__torch__") else ()
    made = Type(kind, text, tuple(_type(one) for one in inner), fields, raw)
    if "__torch__" not in text:
        _types[text] = made
    return made


def _fields(text: str) -> tuple[str, ...]:
    """The names in ``NamedTuple(x : Tensor, y : (int, int))``."""
    names, depth = [], 0
    for piece in re.split(r"([()\[\],])", text.partition("(")[2]):
        if depth == 0 and " : " in piece:
            names.append(piece.partition(" : ")[0].strip())
        depth += (piece in ("(", "[")) - (piece in (")", "]"))
    return tuple(names)


# Operators


@cache
def operator(schema: str) -> Callable[..., Any] | None:
    """What runs an operator of this schema; None where PyTorch has no such thing to call.

    Keyword-only arguments must be given by keyword, the others by position.
    """
    name, _, overload = schema.partition("(")[0].partition(".")
    try:
        found = _C._get_operation_overload(name, overload)
    except RuntimeError:
        return None
    run: Callable[..., Any] | None = found[0] if found else None
    return run


@cache
def fast_function(name: str) -> Callable[..., Any] | None:
    """PyTorch's function or tensor method of an operator's name, if it is one written in C."""
    for owner in (_C.TensorBase, _C._VariableFunctions, _C._nn):
        found = getattr(owner, name, None)
        if isinstance(found, MethodDescriptorType | BuiltinFunctionType):
            return found
    return None


@cache
def signature(schema: str) -> Schema:
    """What a call needs to know of a schema."""
    parsed = _C.parse_schema(schema)
    given = list(parsed.arguments)
    defaults = tuple(one.default_value if one.has_default_value() else ... for one in given)
    generic = "..." in schema or any(_variable(one.type) for one in [*given, *parsed.returns])
    return Schema(
        tuple(one.name for one in given),
        sum(not one.kwarg_only for one in given),
        defaults,
        generic,
        bool(_ALTERS.search(schema)),
    )


def _variable(raw: Any) -> bool:
    return raw.kind() == "VarType" or any(map(_variable, raw.containedTypes()))


def single_node_function(kind: str, inputs: Sequence[Type], output: Type) -> Callable[..., Any]:
    """A function that runs one operator on values of these types, for operators of any type."""
    graph = _C.Graph()
    given = []
    for one in inputs:
        given.append(graph.addInput())
        given[-1].setType(one.raw)
    node = graph.create(kind, given, 1)
    node.output().setType(output.raw)
    graph.appendNode(node)
    graph.registerOutput(node.output())
    made: Callable[..., Any] = _C._create_function_from_graph("hookscope", graph)
    return made


@cache
def sort_floats() -> Callable[[list[float], bool], list[float]]:
    """TorchScript's sort of floats as a function; as an operator it can only sort in place."""
    graph = _C.parse_ir(
        "graph(%items : float[], %reverse : bool):\n  aten::sort(%items, %reverse)\n"
        "  return (%items)"
    )
    made: Callable[..., list[float]] = _C._create_function_from_graph("hookscope_sort", graph)
    return made


def is_subtype(one: Type, other: Type) -> bool:
    """Whether every value of the first type is one of the second, by TorchScript's rules."""
    return bool(one.raw.isSubtypeOf(other.raw))


def tuple_of(types: Sequence[Type]) -> Type:
    """The type of an unnamed tuple of these types."""
    return _type(_C.TupleType([one.raw for one in types]))


def inferred_type(value: Any) -> Type | None:
    """The type that PyTorch infers for a Python value; None if it infers none."""
    found = _C._jit_try_infer_type(value)
    return _type(found.type()) if found.success() else None


def convert_value(value: Any, static: Type) -> Any:
    """The value as PyTorch converts it to the type.

    Raises:
        RuntimeError: it cannot be converted.
    """
    try:
        return _converter(static)(value)
    except (OverflowError, UnicodeError) as error:
        raise RuntimeError(str(error)) from error


@cache
def _converter(static: Type) -> Callable[[Any], Any]:
    graph = _C.Graph()
    given = graph.addInput()
    given.setType(static.raw)
    graph.registerOutput(given)
    made: Callable[[Any], Any] = _C._create_function_from_graph("hookscope", graph)
    return made


BOOL, INT, FLOAT, COMPLEX = (
    _type(getattr(_C, f"{kind}Type").get()) for kind in ("Bool", "Int", "Float", "Complex")
)
STR = _type(_C.StringType.get())
NONE = _type(_C.NoneType.get())
TENSOR = _type(_C.TensorType.get())
DEVICE = _type(_C.DeviceObjType.get())
GENERATOR = _type(_C._GeneratorType.get())
ANY = _type(_C.AnyType.get())
