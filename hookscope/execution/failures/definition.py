"""The definition of a layer in the user's Python file: the call of its class."""

from __future__ import annotations

import ast
import inspect
import operator
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from hookscope.execution.failures.frames import is_installed, is_library, parsed
from hookscope.hooks.layers import submodule


@dataclass(frozen=True)
class Definition:
    """The call that makes a layer: its file, its line and its text on one line."""

    file: str
    line: int
    text: str


def find_definition(model: nn.Module, name: str, file: str = "") -> Definition | None:
    """Return the call that makes the layer ``name`` of ``model``; None unless it is certain.

    The search looks for ``self.NAME = CLASS(...)`` in the class of the parent, and for entries of
    an ``nn.Sequential`` there. Then it takes the only call of the layer's class with the layer's
    arguments in the user's file.
    """
    layer = submodule(model, name)
    if layer is None:
        return None
    calls: list[tuple[str, ast.Call]] = []
    parent, _, last = name.rpartition(".")
    owner = submodule(model, parent)
    if last.isdecimal() and isinstance(owner, nn.Sequential):
        grandparent, _, attribute = parent.rpartition(".")
        owner, index = submodule(model, grandparent), int(last)
    else:
        attribute, index = last, None
    classes = [(path, kind) for kind in type(owner).__mro__ if (path := _user_file(kind))]
    # A line that makes layers of several modules must not be changed for one of them.
    if attribute and sum(type(module) is type(owner) for module in model.modules()) == 1:
        assigned = (
            c for path, kind in classes for c in _assigned_calls(path, kind, attribute, index)
        )
        calls = [(path, call) for path, call in assigned if _makes(call, layer)]
    if len(calls) != 1:
        paths = [os.path.abspath(file)] if file else []
        files = dict.fromkeys((*paths, *(path for path, _ in classes)))
        candidates = ((path, call) for path in files for call in _calls(parsed(path)))
        calls = [(path, call) for path, call in candidates if _makes(call, layer, strictly=True)]
        if len(calls) != 1 or sum(_makes(calls[0][1], m) for m in model.modules()) != 1:
            return None
    [(path, call)] = calls
    return Definition(path, call.lineno, ast.unparse(call))


def _user_file(kind: type) -> str:
    """The user's file with the ``__init__`` of a class; empty if there is none."""
    code = getattr(vars(kind).get("__init__"), "__code__", None)
    file = code.co_filename if code is not None else ""
    return "" if not file or is_library(file) or is_installed(file) else file


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _assigned_calls(
    file: str, owner: type, attribute: str, index: int | None
) -> Iterator[tuple[str, ast.Call]]:
    """The calls assigned to ``self.ATTRIBUTE`` in a class, or an entry of the Sequential there."""
    for scope in ast.walk(parsed(file)):
        if not isinstance(scope, ast.ClassDef) or scope.name != owner.__name__:
            continue
        for node in ast.walk(scope):
            if not isinstance(node, ast.Assign | ast.AnnAssign):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not any(isinstance(t, ast.Attribute) and t.attr == attribute for t in targets):
                continue
            value = node.value
            if index is not None:
                value = _entry(value, index)
            if isinstance(value, ast.Call):
                yield file, value


def _entry(value: ast.expr | None, index: int) -> ast.expr | None:
    """An argument of ``nn.Sequential(...)``; None if arguments are unpacked before it."""
    if not isinstance(value, ast.Call) or _name(value) != "Sequential":
        return None
    entries = value.args[: index + 1]
    if len(entries) <= index or any(isinstance(entry, ast.Starred) for entry in entries):
        return None
    return entries[index]


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _makes(call: ast.Call, layer: nn.Module, *, strictly: bool = False) -> bool:
    """Whether a call may have made ``layer``: its class and its numeric arguments agree.

    With ``strictly`` at least one argument must be a number.
    """
    kind = type(layer)
    if _name(call) != kind.__name__:
        return False
    positional = zip(inspect.signature(kind).parameters, call.args, strict=False)
    arguments = {key: _number(node) for key, node in positional}
    arguments |= {keyword.arg: _number(keyword.value) for keyword in call.keywords if keyword.arg}
    known = [key for key, value in arguments.items() if value is not None]
    known = [key for key in known if isinstance(getattr(layer, key, None), int)]
    if strictly and not known:
        return False
    return all(getattr(layer, key) == arguments[key] for key in known)


def _number(node: ast.expr) -> int | None:
    """The value of an expression of integers, such as ``4 * 5 * 5``."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    if not isinstance(node, ast.BinOp) or type(node.op) not in _ARITHMETIC:
        return None
    left, right = _number(node.left), _number(node.right)
    if left is None or right is None or (right == 0 and isinstance(node.op, ast.FloorDiv)):
        return None
    return _ARITHMETIC[type(node.op)](left, right)


_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
