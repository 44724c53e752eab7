"""The operators of TorchScript in Python: templates of expressions for their arguments.

Only operators on tensors are called: for scalars a call costs much, and it would copy a list.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_INT, MIN_INT = 2**63 - 1, -(2**63)

_NUMBERS = ("int", "float", "int_float", "float_int", "bool", "str")
_COMPARE = {"lt": "<", "gt": ">", "le": "<=", "ge": ">=", "eq": "==", "ne": "!="}
_LISTS = ("int_list", "bool_list", "str_list")
_KEYS = ("str", "int", "bool", "float", "complex", "Tensor")
_WRAPPED = f"(_ if {MIN_INT} <= (_ := {{}}) <= {MAX_INT} else wrap(_))"

# Operators that return the list they changed, while their template returns None.
RETURNS_FIRST = {"aten::append.t", "aten::_set_item.t"}


def _templates() -> dict[str, str]:
    texts = {
        "aten::__not__": "not {0}",
        "aten::__and__.bool": "{0} and {1}",  # both are computed before
        "aten::__or__.bool": "{0} or {1}",
        "aten::__xor__.bool": "{0} != {1}",
        "aten::__and__.int": "{0} & {1}",
        "aten::__or__.int": "{0} | {1}",
        "aten::__xor__.int": "{0} ^ {1}",
        "aten::Bool.int": "bool({0})",
        "aten::Bool.float": "bool({0})",
        "aten::Float.int": "float({0})",
        "aten::Float.bool": "float({0})",
        "aten::Int.bool": "int({0})",
        "aten::neg.int": _WRAPPED.format("-{0}"),
        "aten::neg.float": "-{0}",
        "aten::__derive_index": _WRAPPED.format("{1} + {0} * {2}"),
        "aten::eq.enum": "{0} is {1}",
        "aten::ne.enum": "{0} is not {1}",
        "aten::_unwrap_optional": "unwrap_optional({0})",
        "aten::wait": "{0}",  # a fork has run before
        "prim::unchecked_cast": "{0}",
        "prim::unchecked_unwrap_optional": "{0}",
        "prim::ModuleContainerIndex.list": "module_at({0}, {1})",
        "prim::ModuleContainerIndex.dict": "module_at({0}, {1})",
        "prim::ModuleContainerIndex": "module_at({0}, {1})",
        "prim::Uninitialized": "None",
        "prim::EnumName": "{0}.name",
        "prim::EnumValue": "{0}.value",
        "prim::EnumValue.int": "{0}.value",
        "prim::EnumValue.float": "{0}.value",
        "prim::EnumValue.str": "{0}.value",
        "prim::tolist": "to_list({0}, {1}, {2})",
        "aten::size": "list({0}.shape)",
        "aten::size.int": "{0}.size({1})",
        "aten::dim": "{0}.dim()",
        "aten::len.t": "len({0})",
        "aten::len.str": "len({0}.encode())",  # in bytes of UTF-8
        "aten::__getitem__.t": "{0}[{1}]",
        "aten::_set_item.t": "{0}.__setitem__({1}, {2})",
        "aten::append.t": "{0}.append({1})",
        "aten::extend.t": "{0}.extend({1})",
        "aten::insert.t": "{0}.insert({1}, {2})",
        "aten::pop.t": "{0}.pop({1})",
        "aten::clear.t": "{0}.clear()",
        "aten::reverse.t": "{0}.reverse()",
        "aten::copy.t": "{0}.copy()",
        "aten::list.t": "{0}.copy()",
        "aten::list": "list({0})",
        "aten::Delete.t": "{0}.__delitem__({1})",
        "aten::add.t": "{0} + {1}",
        "aten::add_.t": "concat_in_place({0}, {1})",
        "aten::mul.left_t": "repeated({0}, {1})",
        "aten::mul.right_": "repeated({1}, {0})",
        "aten::slice.t": "{0}[{1}:{2}:{3}]",
        "aten::select.t": "{0}[{1}]",
        "aten::sort.any": "{0}.sort(reverse={1})",
        "aten::sorted.any": "sorted({0})",
        "aten::mul_.t": "{0}.__imul__({1})",
        "aten::dict": "{{}}",
        "prim::grad": "{0}.grad",
    }
    for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*")):
        texts[f"aten::{name}.int"] = _WRAPPED.format(f"{{0}} {sign} {{1}}")
        for kinds in ("float", "int_float", "float_int"):
            texts[f"aten::{name}.{kinds}"] = f"{{0}} {sign} {{1}}"
    texts["aten::add.str"] = "{0} + {1}"
    for name, sign in _COMPARE.items():
        for kinds in ("int", "float", "bool", "str"):
            texts[f"aten::{name}.{kinds}"] = f"{{0}} {sign} {{1}}"
        texts[f"aten::{name}.int_float"] = f"float({{0}}) {sign} {{1}}"
        texts[f"aten::{name}.float_int"] = f"{{0}} {sign} float({{1}})"
        if name in ("eq", "ne"):
            for kinds in _LISTS:
                texts[f"aten::{name}.{kinds}"] = f"{{0}} {sign} {{1}}"
    for kind in ("int", "float", "bool", "str", "Tensor"):
        texts[f"aten::remove.{kind}"] = "{0}.remove({1})"
        texts[f"aten::sort.{kind}"] = "{0}.sort(reverse={1})"
        texts[f"aten::__contains__.{kind}_list"] = "{1} in {0}"
    texts["aten::sort.float"] = "sort_floats({0}, {1})"
    for kind in _KEYS:
        texts |= {
            f"aten::len.Dict_{kind}": "len({0})",
            f"aten::keys.{kind}": "list({0})",
            f"aten::values.{kind}": "list({0}.values())",
            f"aten::items.{kind}": "list({0}.items())",
            f"aten::__getitem__.Dict_{kind}": "{0}[{1}]",
            f"aten::_set_item.{kind}": "{0}.__setitem__({1}, {2})",
            f"aten::get.{kind}": "{0}.get({1})",
            f"aten::get.default_{kind}": "{0}.get({1}, {2})",
            f"aten::setdefault.{kind}": "{0}.setdefault({1}, {2})",
            f"aten::Delete.Dict_{kind}": "{0}.__delitem__({1})",
            f"aten::pop.Dict_{kind}": "{0}.pop({1})",
            f"aten::pop.Dict_default_{kind}": "{0}.pop({1}, {2})",
            f"aten::popitem.{kind}": "pop_first({0})",
            f"aten::clear.{kind}": "{0}.clear()",
            f"aten::update.{kind}": "{0}.update({1})",
            f"aten::copy.Dict_{kind}": "{0}.copy()",
            f"aten::__contains__.{kind}": "{1} in {0}",
            f"aten::dict.{kind}": "dict({0})",
            f"aten::dict.Dict_{kind}": "dict({0})",
        }
    texts["aten::__contains__.float_list"] = "holds({0}, {1})"
    for kind in ("float", "Tensor"):
        texts[f"aten::remove.{kind}"] = "remove({0}, {1})"
        texts[f"aten::eq.{kind}_list"] = "same_lists({0}, {1})"
        texts[f"aten::ne.{kind}_list"] = "not same_lists({0}, {1})"
    for kinds in ("complex_int", "int_complex", "complex_float", "float_complex"):
        texts[f"aten::eq.{kinds}"] = "{0} == {1}"  # PyTorch's operators do not return a value
        texts[f"aten::ne.{kinds}"] = "{0} != {1}"
    return texts


TEMPLATES = _templates()

# Common operators on tensors that PyTorch's function of the same name runs with the same arguments,
# in half the time of a call by schema.
_FAST = """
add add_ sub sub_ mul mul_ div div_ rsub pow neg abs exp log sqrt rsqrt sin cos
eq ne lt le gt ge clamp clamp_ masked_fill minimum maximum addcmul addmm matmul mm bmm linear
relu relu_ sigmoid sigmoid_ tanh tanh_ softmax log_softmax dropout gelu silu silu_
hardswish hardswish_ hardsigmoid hardsigmoid_ hardtanh hardtanh_ leaky_relu leaky_relu_ elu elu_
conv1d conv2d conv3d _convolution batch_norm layer_norm group_norm max_pool2d avg_pool2d
adaptive_avg_pool2d embedding mean sum amax amin argmax cat stack select
view reshape flatten permute transpose t unsqueeze squeeze expand expand_as contiguous
"""
FAST = frozenset(f"aten::{name}" for name in _FAST.split())
# Arguments that differ in Python in type or position. With one of them, the call is by schema.
_DIFFERENT = {"dtype", "layout", "memory_format", "device", "alpha", "out"}


def is_fast(operator: str, arguments: Iterable[str]) -> bool:
    """Whether PyTorch's function of the same name can run an operator with these arguments."""
    return operator.partition(".")[0] in FAST and not _DIFFERENT & set(arguments)


# Operators that would access files, in scripted files and in exported ones.
REFUSED = {
    "aten::save": "writes a file",
    "aten::from_file": "opens a file",
    "image::write_file": "writes a file",
    "image::read_file": "reads a file",
}
