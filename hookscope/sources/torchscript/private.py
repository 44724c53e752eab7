"""Every use of the parts of ``torch._C`` for scripted models, which a release may change."""

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
from hookscope.tensors.torch_internals import torch_c as _C

ArchiveReader: Any = _C.PyTorchFileReader  # the reader that opens archives
ScriptObject = Any  # _C.ScriptModule: hashable, equal if it is the same module

CUSTOM = "__torch__.torch.classes."  # classes written in C++

_SOURCE_LINE = re.compile(r"# (?P<file>\S.*?):(?P<line>\d+):\d+\s*$")
_ENUM = re.compile(r"\[value=(?P<type>.+)\.(?P<name>\w+)\]")
# of a container, not of a tensor
_CHANGES_CONTAINER = re.compile(r"(?:[\])]|\bt)\(\w+(?: -> \*)?!|\(\*\)")


def open_archive(path: str, device: torch.device) -> ScriptObject:
    """Load an archive's root module onto ``device`` without the wrappers of ``torch.jit.load``."""
    return _C.import_ir_module(_C.CompilationUnit(), path, device, {}, False)


def script_object(module: torch.jit.ScriptModule) -> ScriptObject:
    """Return the ``torch._C`` object of a live scripted or traced module."""
    return module._c


def is_scripted(module: object) -> bool:
    """Whether a live module is scripted or traced."""
    return isinstance(module, torch.jit.ScriptModule) and hasattr(module, "_c")


def type_name(module: ScriptObject) -> str:
    """Return the qualified name of a module's class, which is unique in its file."""
    return str(module._type().qualified_name())


def class_name(module: ScriptObject) -> str:
    """Return the name of the Python class that a module was made from."""
    return str(module._type().name())


def children(module: ScriptObject) -> dict[str, ScriptObject]:
    """Return the submodules by name, in the order of definition."""
    return dict(_C.ModuleDict(module).items())


def parameters(module: ScriptObject) -> dict[str, Tensor]:
    """Return the module's own parameters by name."""
    return dict(_C.ParameterDict(module).items())


def buffers(module: ScriptObject) -> dict[str, Tensor]:
    """Return the module's own buffers by name."""
    return dict(_C.BufferDict(module).items())


def attribute(module: ScriptObject, name: str) -> Any:
    """Return an attribute as a Python object."""
    return module.getattr(name)


def set_attribute(module: ScriptObject, name: str, value: Any) -> None:
    """Set an attribute or a buffer of a module."""
    module.setattr(name, value)


def has_attribute(module: ScriptObject, name: str) -> bool:
    """Whether the module has the attribute."""
    return bool(module.hasattr(name))


def pre_hooks(module: ScriptObject) -> list[Method]:
    """Return the scripted forward pre-hooks; each takes the module and its arguments."""
    return [_method(hook, hook.qualified_name) for hook in module._get_forward_pre_hooks()]


def hooks(module: ScriptObject) -> list[Method]:
    """Return the scripted forward hooks; each takes the module, its arguments and its output."""
    return [_method(hook, hook.qualified_name) for hook in module._get_forward_hooks()]


def method_names(module: ScriptObject) -> list[str]:
    """Return the names of the compiled methods."""
    return list(module._method_names())


def custom_class(value: object) -> str:
    """Return the qualified name of the C++ class of an object; empty for other objects."""
    return str(value._type().qualified_name()) if isinstance(value, _C.ScriptObject) else ""


def methods_of(static: Type) -> list[str]:
    """Return the names of the methods of a script class."""
    return list(static.raw.method_names())


def method(module: ScriptObject, name: str) -> Method:
    """Return a compiled method."""
    return _method(module._get_method(name), name)


def _method(compiled: Any, name: str) -> Method:
    arguments = tuple(_argument(raw) for raw in compiled.schema.arguments[1:])
    graph = compiled.graph
    block = _block(graph.param_node().owningBlock())
    source = next((node.source for node in block.nodes if node.source), "")
    return Method(name, arguments, block, True, source, graph)


def called_function(node: Node) -> Method:
    """Return the function that a ``CallFunction`` node runs, inlined in a new graph."""
    graph = _C.Graph()
    inputs = []
    for value in node.raw.inputs():
        if value.type().kind() == "FunctionType":
            clone = graph.createClone(value.node(), lambda other: other)
            inputs.append(graph.appendNode(clone).output())
        else:  # one input for each use of a value
            inputs.append(graph.addInput())
            inputs[-1].setType(value.type())
    call = graph.create(node.kind, inputs, 1)
    call.copyAttributes(node.raw)
    call.output().setType(node.raw.output().type())
    graph.appendNode(call)
    graph.registerOutput(call.output())
    _C._jit_pass_inline(graph)
    return _of_graph(graph, str(node.attributes["name"]), bound=False)


def class_method(owner: Type, name: str, arguments: Sequence[Type]) -> Method:
    """Return a method of a script class, for arguments of these types."""
    graph = _C.Graph()
    inputs = _typed_inputs(graph, (owner, *arguments))
    call = graph.create("prim::CallMethod", inputs, 1)
    call.s_("name", name)
    graph.appendNode(call)
    graph.registerOutput(call.output())
    _C._jit_pass_inline(graph)
    return _of_graph(graph, name, bound=True)


def _of_graph(graph: Any, name: str, *, bound: bool) -> Method:
    block = _block(graph.param_node().owningBlock())
    inputs = block.inputs[1:] if bound else block.inputs
    arguments = tuple(Argument(f"a{index}", value.type) for index, value in enumerate(inputs))
    return Method(name, arguments, block, bound, raw=graph)


def _argument(raw: Any) -> Argument:
    optional = raw.has_default_value()
    default = raw.default_value if optional else None
    return Argument(raw.name, _type(raw.type), optional, default)


def _typed_inputs(graph: Any, types: Sequence[Type]) -> list[Any]:
    """Add inputs of these types to a graph."""
    inputs = []
    for static in types:
        inputs.append(graph.addInput())
        inputs[-1].setType(static.raw)
    return inputs


def _block(raw: Any) -> Block:
    outputs = tuple(_value(value) for value in raw.outputs())
    nodes = tuple(_node(node) for node in raw.nodes())
    return Block(tuple(_value(value) for value in raw.inputs()), outputs, nodes)


def _node(raw: Any) -> Node:
    kind = raw.kind()
    schema = raw.schema()
    line = _SOURCE_LINE.search(str(raw).partition("\n")[0])
    return Node(
        kind,
        "" if schema == "(no schema)" else schema,
        tuple(_value(value) for value in raw.inputs()),
        tuple(_value(value) for value in raw.outputs()),
        tuple(_block(block) for block in raw.blocks()),
        _attributes(kind, raw),
        f"{line['file']}:{line['line']}" if line and line["line"] != "0" else "",
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
        return {"types": tuple(_type(static) for static in raw.tys("types"))}
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
    except RuntimeError:  # an enum whose Python class is not available
        member = _ENUM.search(str(raw))
        if kind != "EnumType" or member is None:
            raise
        return EnumMember(member["type"], member["name"])


def _value(raw: Any) -> Value:
    return Value(raw.unique(), _type(raw.type()))


_types: dict[str, Type] = {}


def _type(raw: Any) -> Type:
    """A type as data. Types of classes are not cached: another file may have the same name."""
    text = raw.annotation_str
    kind = raw.kind().removesuffix("Type")
    if text in _types:
        return _types[text]
    inner = () if kind in ("Class", "Interface", "Enum") else raw.containedTypes()
    fields = _fields(raw.str()) if kind == "Tuple" and text.startswith("__torch__") else ()
    static = Type(kind, text, tuple(_type(item) for item in inner), fields, raw)
    if "__torch__" not in text:
        _types[text] = static
    return static


def _fields(text: str) -> tuple[str, ...]:
    """The field names in ``NamedTuple(x : Tensor, y : (int, int))``."""
    names, depth = [], 0
    for piece in re.split(r"([()\[\],])", text.partition("(")[2]):
        if depth == 0 and " : " in piece:
            names.append(piece.partition(" : ")[0].strip())
        depth += (piece in ("(", "[")) - (piece in (")", "]"))
    return tuple(names)


# Operators


@cache
def operator(schema: str) -> Callable[..., Any] | None:
    """Return a function that runs an operator of this schema; None if PyTorch has none."""
    name, _, overload = schema.partition("(")[0].partition(".")
    try:
        operation = _C._get_operation_overload(name, overload)
    except RuntimeError:
        return None
    run: Callable[..., Any] | None = operation[0] if operation else None
    return run


@cache
def fast_function(name: str) -> Callable[..., Any] | None:
    """Return PyTorch's function or tensor method of this name, if it is written in C."""
    for owner in (_C.TensorBase, _C._VariableFunctions, _C._nn):
        function = getattr(owner, name, None)
        if isinstance(function, MethodDescriptorType | BuiltinFunctionType):
            return function
    return None


@cache
def signature(schema: str) -> Schema:
    """Return the signature in a schema."""
    parsed = _C.parse_schema(schema)
    arguments = list(parsed.arguments)
    defaults = tuple(raw.default_value if raw.has_default_value() else ... for raw in arguments)
    types = [raw.type for raw in (*arguments, *parsed.returns)]
    return Schema(
        tuple(raw.name for raw in arguments),
        sum(not raw.kwarg_only for raw in arguments),
        defaults,
        "..." in schema or any(map(_has_variable, types)),
        bool(_CHANGES_CONTAINER.search(schema)),
    )


def _has_variable(raw: Any) -> bool:
    return raw.kind() == "VarType" or any(map(_has_variable, raw.containedTypes()))


def single_node_function(kind: str, inputs: Sequence[Type], output: Type) -> Callable[..., Any]:
    """Return a function that runs one operator on values of these types."""
    graph = _C.Graph()
    node = graph.create(kind, _typed_inputs(graph, inputs), 1)
    node.output().setType(output.raw)
    graph.appendNode(node)
    graph.registerOutput(node.output())
    function: Callable[..., Any] = _C._create_function_from_graph("hookscope", graph)
    return function


@cache
def sort_floats() -> Callable[[list[float], bool], list[float]]:
    """Return TorchScript's sort of floats, which as an operator only sorts in place."""
    graph = _C.parse_ir(
        "graph(%items : float[], %reverse : bool):\n  aten::sort(%items, %reverse)\n"
        "  return (%items)"
    )
    function: Callable[..., list[float]] = _C._create_function_from_graph("hookscope_sort", graph)
    return function


def is_subtype(static: Type, other: Type) -> bool:
    """Whether the first type is a subtype of the other, by TorchScript's rules."""
    return bool(static.raw.isSubtypeOf(other.raw))


def tuple_of(types: Sequence[Type]) -> Type:
    """Return the type of an unnamed tuple of these types."""
    return _type(_C.TupleType([static.raw for static in types]))


def inferred_type(value: Any) -> Type | None:
    """Return the type that PyTorch infers for a Python value; None if it infers none."""
    inferred = _C._jit_try_infer_type(value)
    return _type(inferred.type()) if inferred.success() else None


def convert_value(value: Any, static: Type) -> Any:
    """Return the value converted to the type by PyTorch."""
    try:
        return _converter(static)(value)
    except (OverflowError, UnicodeError) as error:
        raise RuntimeError(str(error)) from error


@cache
def _converter(static: Type) -> Callable[[Any], Any]:
    graph = _C.Graph()
    graph.registerOutput(*_typed_inputs(graph, [static]))
    function: Callable[[Any], Any] = _C._create_function_from_graph("hookscope", graph)
    return function


BOOL, INT, FLOAT, COMPLEX = (
    _type(getattr(_C, f"{kind}Type").get()) for kind in ("Bool", "Int", "Float", "Complex")
)
STR = _type(_C.StringType.get())
NONE = _type(_C.NoneType.get())
TENSOR = _type(_C.TensorType.get())
DEVICE = _type(_C.DeviceObjType.get())
GENERATOR = _type(_C._GeneratorType.get())
ANY = _type(_C.AnyType.get())
