"""What hookscope needs of the private parts of torch, a test for each; a new torch fails here.

Each message says which use in ``hookscope/sources/torchscript/private.py`` has to be looked at.
"""

from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from hookscope.sources.torchscript import private
from hookscope.sources.torchscript.graph import EnumMember, Node, nodes_within
from tests.sources.torchscript.examples import quietly

CPU = torch.device("cpu")


class Color(Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: tuple[int, Tensor]


def doubled(x: Tensor, n: int = 2) -> Tensor:
    return x * n


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(2, 2)
        self.first = nn.ReLU()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(2))
        self.count = 3

    def forward(self, x: Tensor, scale: float = 0.5, flag: bool = False) -> tuple[Point, Tensor]:
        self.count += 1
        parts = (self.count, x, "a", x)
        if isinstance(x, Tensor) and Color.RED.value > 0:
            x = doubled(x)
        future = torch.jit.fork(doubled, x, 3)
        items = torch.jit.annotate(list[int], [])
        items.append(1)
        x = x + self.seen
        return Point(self.count, parts[0:2]), self.second(x) + torch.jit.wait(future) * len(items)


@pytest.fixture(scope="module")
def scripted() -> torch.jit.ScriptModule:
    with quietly():
        return torch.jit.script(Model())


@pytest.fixture(scope="module")
def given(scripted: torch.jit.ScriptModule) -> private.ScriptObject:
    return private.script_object(scripted)


def nodes(given: private.ScriptObject, kind: str) -> list[Node]:
    method = private.method(given, "forward")
    found = [node for node in nodes_within(method.block) if node.kind == kind]
    assert found, f"no {kind} in the graph: private._block, or what the compiler makes, has changed"
    # The graph must outlive its nodes.
    nodes_kept.append(method)
    return found


nodes_kept: list[Any] = []


def test_import_ir_module_opens_files(scripted: torch.jit.ScriptModule, tmp_path: Path) -> None:
    scripted.save(str(tmp_path / "model.pt"))
    try:
        root = private.open_archive(str(tmp_path / "model.pt"), CPU)
    except TypeError as error:
        pytest.fail(f"private.open_archive: the arguments of _C.import_ir_module changed: {error}")
    assert private.class_name(root) == "Model", "private.open_archive gives no such module any more"


def test_import_ir_module_says_runtime_error_of_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"no archive")
    with pytest.raises(RuntimeError):  # source._open waits for this one
        private.open_archive(str(tmp_path / "model.pt"), CPU)


def test_live_modules_hold_their_object_as_c(scripted: torch.jit.ScriptModule) -> None:
    assert private.is_scripted(scripted), "private.is_scripted: ScriptModule or its _c changed"
    assert not private.is_scripted(nn.ReLU())
    message = "private.script_object: an object is not equal to itself: no module could be shared"
    assert private.script_object(scripted) == private.script_object(scripted), message
    assert len({private.script_object(scripted), private.script_object(scripted)}) == 1, message


def test_module_types_tell_their_names(given: private.ScriptObject) -> None:
    assert private.type_name(given).endswith(".Model"), (
        "private.type_name: _type().qualified_name()"
    )
    assert private.class_name(given) == "Model", "private.class_name: _type().name()"


def test_module_dict_lists_children_in_order(given: private.ScriptObject) -> None:
    children = private.children(given)
    assert list(children) == ["second", "first"], "private.children: _C.ModuleDict changed"
    assert private.class_name(children["second"]) == "Linear"


def test_parameter_dict_and_buffer_dict_share_the_tensors(
    scripted: torch.jit.ScriptModule, given: private.ScriptObject
) -> None:
    parameters, buffers = private.parameters(given), private.buffers(given)
    assert list(parameters) == ["weight"], "private.parameters: _C.ParameterDict changed"
    assert parameters["weight"] is scripted.weight, "private.parameters gives copies now"
    assert list(buffers) == ["seen"], "private.buffers: _C.BufferDict changed"
    assert buffers["seen"].data_ptr() == scripted.seen.data_ptr(), (
        "private.buffers gives copies now"
    )


def test_attributes_come_by_getattr(given: private.ScriptObject) -> None:
    assert private.attribute(given, "count") == 3, "private.attribute: getattr of a module's object"
    assert private.has_attribute(given, "training"), "private.has_attribute: hasattr of the object"
    assert not private.has_attribute(given, "nothing")


def test_methods_are_listed_and_have_graphs(given: private.ScriptObject) -> None:
    assert private.method_names(given) == ["forward"], "private.method_names: _method_names()"
    method = private.method(given, "forward")
    assert method.block.nodes, "private.method: graph.param_node().owningBlock() has no nodes"
    assert len(method.block.inputs) == 4, "private.method: self is no longer the first input"


def test_schemas_tell_arguments_and_defaults(given: private.ScriptObject) -> None:
    arguments = private.method(given, "forward").arguments
    found = [(one.name, one.type.text, one.optional, one.default) for one in arguments]
    assert found == [
        ("x", "Tensor", False, None), ("scale", "float", True, 0.5), ("flag", "bool", True, False)
    ], "private._argument: schema.arguments changed"  # fmt: skip


def test_graphs_tell_where_their_code_is(given: private.ScriptObject) -> None:
    source = private.method(given, "forward").source
    assert Path(source.rpartition(":")[0]).name == Path(__file__).name, (
        f"private._PLACE: the comment behind a node reads otherwise, {source!r} was found"
    )


def test_nodes_have_schemas(given: private.ScriptObject) -> None:
    found = nodes(given, "aten::append")[0]
    assert found.schema.startswith("aten::append.t(t[]"), "private._node: schema() changed"
    assert found.operator == "aten::append.t"
    assert all(not node.schema for node in nodes(given, "prim::GetAttr")), (
        "private._node: what a node without a schema says is not '(no schema)' any more"
    )


def test_nodes_name_attributes(given: private.ScriptObject) -> None:
    names = {node.attributes["name"] for node in nodes(given, "prim::GetAttr")}
    assert names >= {"count", "second", "seen"}, "private._attributes: s('name') of a GetAttr"
    assert nodes(given, "prim::SetAttr")[0].attributes["name"] == "count"
    assert nodes(given, "prim::CallMethod")[0].attributes["name"] == "forward"


def test_constants_have_values(given: private.ScriptObject) -> None:
    held = [node.attributes["value"] for node in nodes(given, "prim::Constant")]
    assert 1 in held and 3 in held, "private._constant: toIValue() of a constant"


def test_called_functions_have_names_and_can_be_inlined(given: private.ScriptObject) -> None:
    node = nodes(given, "prim::CallFunction")[0]
    assert "doubled" in node.attributes["name"], "private._attributes: annotation_str of a function"
    method = private.called_function(node)
    kinds = [inner.kind for inner in nodes_within(method.block)]
    assert "aten::mul" in kinds, (
        "private.called_function: Graph, createClone or _jit_pass_inline changed"
    )


def test_forks_hold_a_graph(given: private.ScriptObject) -> None:
    block = nodes(given, "prim::fork")[0].attributes["graph"].block
    kinds = [node.kind for node in nodes_within(block)]
    assert "prim::CallFunction" in kinds, "private._attributes: g('Subgraph') of a fork"


def test_tuple_slices_have_ends() -> None:
    graph = torch._C.parse_ir(
        "graph(%x : (int, int, int)):\n"
        "  %y : (int, int) = prim::TupleSlice[beg=1, end=3](%x)\n"
        "  return (%y)"
    )
    node = private._block(graph.param_node().owningBlock()).nodes[0]
    assert node.attributes == {"begin": 1, "end": 3}, "private._attributes: beg and end of a slice"


def test_isinstance_holds_types() -> None:
    class Asks(nn.Module):
        def forward(self, x: Any) -> bool:
            return isinstance(x, int)

    with quietly():
        found = nodes(private.script_object(torch.jit.script(Asks())), "prim::isinstance")[0]
    texts = [one.text for one in found.attributes["types"]]
    assert texts == ["int"], "private._attributes: tys('types') of an isinstance"


def test_python_functions_come_with_their_arguments() -> None:
    class Leaves(nn.Module):
        @torch.jit.ignore
        def own(self, x: Tensor) -> Tensor:
            return x + 1

        def forward(self, x: Tensor) -> Tensor:
            return self.own(x)

    with quietly():
        found = nodes(private.script_object(torch.jit.script(Leaves())), "prim::PythonOp")[0]
    assert callable(found.attributes["function"]), "private._attributes: pyobj() of a PythonOp"
    assert set(found.attributes["kinds"]) <= {"c", "d"}, (
        "private._attributes: cconv() of a PythonOp"
    )
    assert list(found.attributes["scalars"]) is not None


def test_enum_constants_say_their_member() -> None:
    """A graph that names a class nobody knows: the text is all there is."""

    class Shows(nn.Module):
        def forward(self, n: int) -> Color:
            return Color.RED

    with quietly():
        module = torch.jit.script(Shows())
    method = private.method(private.script_object(module), "forward")
    (node,) = (node for node in nodes_within(method.block) if node.kind == "prim::Constant")
    member = private._ENUM.search(str(node.raw))
    assert member and EnumMember(member["type"], member["name"]).name == "RED", (
        f"private._ENUM: the text of an enum constant changed: {node.raw}"
    )


def test_types_tell_kind_text_and_elements(given: private.ScriptObject) -> None:
    found = nodes(given, "aten::append")[0].inputs[0].type
    assert (found.kind, found.text) == ("List", "List[int]"), "private._type: kind, annotation_str"
    assert [one.kind for one in found.inner] == ["Int"], "private._type: containedTypes()"


def test_named_tuples_tell_their_fields(given: private.ScriptObject) -> None:
    found = [one.outputs[0].type for one in nodes(given, "prim::TupleConstruct")]
    fields = [one.fields for one in found if one.fields]
    assert ("x", "y") in fields, "private._fields: str() of a named tuple reads otherwise"


def test_operators_are_found_by_schema() -> None:
    add = private.operator("aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1)")
    message = "private.operator: _get_operation_overload changed"
    assert add is not None, message
    assert torch.equal(add(torch.ones(2), torch.ones(2), alpha=3), torch.full((2,), 4.0)), message
    assert private.operator("aten::no_such_thing(Tensor self) -> Tensor") is None, message


def test_quick_functions_are_those_of_their_name() -> None:
    for name, arguments in (
        ("relu", 1),
        ("add", 2),
        ("conv2d", 0),
        ("max_pool2d", 0),
        ("linear", 0),
    ):
        found = private.fast_function(name)
        assert found is not None, f"private.fast_function: {name} is not written in C"
        if arguments:
            found(*[torch.ones(2)] * arguments)


def test_schemas_can_be_parsed() -> None:
    message = "private.signature: parse_schema, or what it gives, changed"
    add = private.signature(
        "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
    )
    assert add.names == ("self", "other", "alpha"), message
    assert add.positional == 2 and add.defaults == (..., ..., 1), message
    assert not add.generic and not add.changes_container, message
    append = private.signature("aten::append.t(t[](a!) self, t(c -> *) el) -> t[](a!)")
    assert append.generic and append.changes_container, message
    inplace = private.signature("aten::relu_(Tensor(a!) self) -> Tensor(a!)")
    assert not inplace.changes_container, "private._ALTERS takes a tensor for a container"


def test_one_operator_can_be_made_a_function() -> None:
    run = private.single_node_function("aten::str", [private.NONE], private.STR)
    assert run(None) == "None", (
        "private.single_node_function: Graph.create, _create_function_from_graph"
    )


def test_methods_of_script_classes_can_be_inlined() -> None:
    with quietly():
        from tests.sources.torchscript.programs_classes import CLASSES

        module = torch.jit.script(CLASSES.examples["class_with_state"].make())
    call = nodes(private.script_object(module), "prim::CallMethod")[0]
    owner = call.inputs[0].type
    assert {"add", "__init__"} <= set(private.methods_of(owner)), (
        "private.methods_of: method_names()"
    )
    method = private.class_method(owner, "add", (call.inputs[1].type,))
    kinds = {node.kind for node in nodes_within(method.block)}
    assert "prim::SetAttr" in kinds, "private.class_method: a CallMethod node is not inlined"
