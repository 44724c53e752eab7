"""Changes that cut a variable off from the graph of an earlier step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hookscope.execution.backward_failures.code_sites import CallSite, contains, span_of
from hookscope.execution.backward_failures.loops import loops_around, read_before_written
from hookscope.execution.backward_failures.source_patches import SourcePatch, StatementChange
from hookscope.execution.failures import frames

_MOST_NAMES = 6  # that are tried
_NOT_TENSORS = ("self", "torch", "F", "nn")
# The last ones are for variables that begin as None, or as the number 0.
_FORMS = (
    "{0}.detach()",
    "tuple(one.detach() for one in {0})",
    "[one.detach() for one in {0}]",
    "None if {0} is None else {0}.detach()",
    "None if {0} is None else tuple(one.detach() for one in {0})",
    "float({0})",
)


def detached_in_loop(backward: CallSite) -> Iterator[SourcePatch]:
    """Yield changes that cut variables off where the body of a loop around a pass begins."""
    tree = frames.parsed(backward.file)
    for loop in reversed(list(loops_around(tree, backward.line))):
        first = loop.body[0]
        where = f"at the start of the loop in line {loop.lineno}"
        for name in read_before_written(loop.body)[:_MOST_NAMES]:
            yield from _assigned_before(name, first, backward.file, where)


def detached_where_used(used: CallSite, *, kept: bool) -> Iterator[SourcePatch]:
    """Yield changes that cut a variable off before the statement that uses it.

    With ``kept`` only variables that the function keeps from one call to the next, as a state;
    else all others.
    """
    statement = used.statement
    if statement is None:
        return
    states = _kept_by_function(used)
    names = [name for name in _values_in(statement) if (name in states) == kept]
    for name in names[:_MOST_NAMES]:
        yield from _assigned_before(name, statement, used.file, f"before line {statement.lineno}")


def _kept_by_function(site: CallSite) -> list[str]:
    """The attributes that the function of a line reads before it assigns them."""
    nodes = ast.walk(frames.parsed(site.file))
    around = [n for n in nodes if isinstance(n, ast.FunctionDef) and contains(n, site.line)]
    names = read_before_written(around[-1].body) if around else []
    return [name for name in names if "." in name]


def _values_in(statement: ast.stmt) -> list[str]:
    """The variables and attributes that a statement reads, without the functions that it calls.

    Attributes come first: a state that is kept is often one.
    """
    nodes = [n for n in ast.walk(statement) if isinstance(n, ast.Name | ast.Attribute)]
    called = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
    owners = [n.value for n in nodes if isinstance(n, ast.Attribute) and n not in called]
    read = [
        node
        for node in sorted(nodes, key=lambda node: isinstance(node, ast.Name))
        if isinstance(node.ctx, ast.Load) and node not in [*called, *owners]
    ]
    names = dict.fromkeys(map(ast.unparse, read))
    return [name for name in names if name not in _NOT_TENSORS]


def _assigned_before(
    name: str, statement: ast.stmt, file: str, where: str
) -> Iterator[SourcePatch]:
    for form in _FORMS:
        assignment = f"{name} = {form.format(name)}"
        change = StatementChange(span_of(statement), before=assignment)
        yield SourcePatch(f"with `{assignment}` {where}", file, (change,))
