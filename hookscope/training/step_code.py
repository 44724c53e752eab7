"""The code of a program that a failed step may have run: read and never called.

It is what the frames of the exception lead to: their functions, the functions that these name, and
the classes and hooks of the modules that they hold. Attributes are read from ``__dict__`` alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from traceback import walk_tb
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from hookscope.execution.backward_failures.code_sites import (
    USER,
    CallSite,
    CodeSpan,
    is_of_program,
    kind_of,
    span_of,
)
from hookscope.execution.backward_failures.loops import assigned_in
from hookscope.execution.failures import frames
from hookscope.files.frame_variables import variables_of

_CONTAINERS = (nn.Sequential, nn.ModuleList, list, tuple)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_MOST_PARTS = 500
SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)  # statements without others inside


@dataclass(frozen=True, eq=False)
class CodePart:
    """A function, or the code of a file outside of functions.

    Attributes:
        code: its code.
        scope: its syntax tree.
        variables: what is known of its variables.
        line: the line that failed or called what failed; 0 if it is not running.
        owners: the modules whose method it is.
    """

    code: CodeType
    scope: ast.AST
    variables: Mapping[str, Any]
    line: int = 0
    owners: list[nn.Module] = field(default_factory=list)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """The nodes of the tree in the order of the text; functions of a file are other parts."""
        found = list(_nodes_in(self.scope, isinstance(self.scope, ast.Module)))
        return sorted(found, key=lambda node: getattr(node, "lineno", 0))

    @property
    def file(self) -> str:
        """The file as the code object names it."""
        return self.code.co_filename

    def is_at(self, site: CallSite) -> bool:
        """Return whether the code is running, and a line is in it."""
        place = (site.file, site.function, site.first_line)
        own = (self.file, self.code.co_name, self.code.co_firstlineno)
        return bool(self.line) and place == own

    def site(
        self, node: ast.expr | ast.stmt, layer: nn.Module | None = None, is_optimizer: bool = False
    ) -> CallSite:
        """Return the place of an expression, or of a statement."""
        code, owner = self.code, next(iter(self.owners), None)
        place = (self.file, span_of(node), code.co_name, code.co_firstlineno)
        return CallSite(*place, layer, owner, is_optimizer)

    def values_of(self, node: ast.AST) -> list[Any]:
        """Return what an expression may be, of each owner; empty if it is not known."""
        if isinstance(node, ast.Name):
            if node.id == "self" and self.owners:
                return [*self.owners]
            return [self.variables[node.id]] if node.id in self.variables else []
        if isinstance(node, ast.Attribute):
            owners = map(_attributes_of, self.values_of(node.value))
            return [one[node.attr] for one in owners if node.attr in one]
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant | ast.Slice):
            return [*_entries(self.values_of(node.value), node.slice)]
        return []


def _attributes_of(value: Any) -> dict[str, Any]:
    """The attributes that an object keeps; reading them runs no code."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    parts = ("_modules", "_buffers", "_parameters") if isinstance(value, nn.Module) else ()
    found: dict[str, Any] = {}
    for each in (*(own.get(part) or {} for part in parts), own):
        found |= each
    return found


def _entries(values: Iterable[Any], index: ast.Constant | ast.Slice) -> Iterator[Any]:
    for value in values:
        if isinstance(value, nn.Sequential) and isinstance(index, ast.Slice):
            yield value  # a part of it has the same layers
        elif isinstance(index, ast.Constant) and isinstance(value, _CONTAINERS):
            parts = list(value._modules.values() if isinstance(value, nn.Module) else value)
            if isinstance(index.value, int) and -len(parts) <= index.value < len(parts):
                yield parts[index.value]


def _nodes_in(scope: ast.AST, without_functions: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(scope):
        if not (without_functions and isinstance(child, _Definition)):
            yield child
            yield from _nodes_in(child, without_functions)


def parts_of(error: BaseException) -> list[CodePart]:
    """Return the code that a failed step may have run, beginning with the innermost frame."""
    parts: dict[CodeType, CodePart] = {}
    waiting: list[Any] = []
    trees: dict[str, ast.Module] = {}

    def add(code: CodeType, variables: Mapping[str, Any], line: int = 0) -> CodePart:
        tree = trees.setdefault(code.co_filename, frames.parsed(code.co_filename))
        parts[code] = CodePart(code, _scope_of(code, tree), variables, line)
        waiting.extend(_values_named_in(code, variables))
        return parts[code]

    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        if is_of_program(frame.f_code) and frame.f_code not in parts:
            variables = variables_of(frame)
            part = add(frame.f_code, {**frame.f_globals, **variables}, line)
            if isinstance(owner := variables.get("self"), nn.Module):
                part.owners.append(owner)
    seen: set[int] = set()
    while waiting and len(parts) < _MOST_PARTS:
        value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        for function, owner in _functions_of(value):
            code = function.__code__
            if owner is None and frames.is_installed(code.co_filename):
                continue
            part = parts.get(code) or add(code, _known_to(function))
            if owner is not None:
                part.owners.append(owner)
    return list(parts.values())


def _values_named_in(code: CodeType, variables: Mapping[str, Any]) -> Iterator[Any]:
    """The values that some code names, also as attributes of the program's own modules."""
    if frames.is_installed(code.co_filename):
        return
    names = dict.fromkeys(_names_in(code))
    for value in [variables[name] for name in names if name in variables]:
        yield value
        file = vars(value).get("__file__") if isinstance(value, ModuleType) else None
        if isinstance(file, str) and kind_of(file) == USER:
            yield from (vars(value)[name] for name in names if name in vars(value))


def _scope_of(code: CodeType, tree: ast.Module) -> ast.AST:
    """The function of some code in the tree of its file, or the whole tree."""
    if code.co_name == "<module>":
        return tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return ast.Module([], [])


def _names_in(code: CodeType) -> Iterator[str]:
    yield from (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _known_to(function: FunctionType) -> dict[str, Any]:
    """The globals and free variables of a function that it does not hide by its own."""
    code = function.__code__
    known = dict(function.__globals__)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            known[name] = cell.cell_contents
        except ValueError:  # it has no value yet
            known.pop(name, None)
    for name in (*code.co_varnames, *code.co_cellvars):
        known.pop(name, None)
    return known


def _functions_of(value: Any) -> Iterator[tuple[FunctionType, nn.Module | None]]:
    """Yield the functions that a call of a value may run, with the module whose they are."""
    if isinstance(value, nn.Module):
        for module in value.modules():
            for function in _methods_of(type(module)):
                yield function, module
            for hooks in _HOOKS:
                for hook in (_attributes_of(module).get(hooks) or {}).values():
                    yield from _functions_of(hook)
        return
    if isinstance(value, MethodType):
        value = value.__func__
    if isinstance(value, FunctionType):
        if is_of_program(value.__code__):
            yield value, None
        return
    for function in _methods_of(value if isinstance(value, type) else type(value)):
        yield function, None


def _methods_of(kind: type) -> Iterator[FunctionType]:
    for base in kind.__mro__:
        for entry in vars(base).values():
            function = getattr(entry, "__func__", getattr(entry, "fget", entry))
            if isinstance(function, FunctionType) and is_of_program(function.__code__):
                yield function


def last_assignment(nodes: Sequence[ast.AST], name: str, line: int) -> ast.stmt | None:
    """Return the last statement up to a line, else the last of all, that assigns to a name."""
    found = [node for node in nodes if isinstance(node, SIMPLE) and name in assigned_in(node)]
    before = [node for node in found if node.lineno <= line]
    return (before or found)[-1] if found else None


def recorded_line(node: Any) -> CallSite | None:
    """Return the line that made a node of a graph, which only the anomaly mode has recorded."""
    lines = (getattr(node, "metadata", None) or {}).get("traceback_", ())
    for entry in reversed(list(lines)):
        found = re.match(r'\s*File "(.+)", line (\d+), in (.+)', entry)
        if found and kind_of(found[1]) == USER:
            line = int(found[2])
            return CallSite(found[1], CodeSpan(line, line), found[3], 0)
    return None
