"""Loops in the code of a program, and the variables that pass from one round to the next."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from hookscope.execution.backward_failures.code_sites import contains

_APPENDING = ("append", "extend", "insert", "appendleft")
Loop = ast.For | ast.While | ast.AsyncFor


def loops_around(scope: ast.AST, line: int) -> Iterator[Loop]:
    """Yield the loops of a scope with a line in their body, the outermost first.

    Of functions inside of the scope, only those that contain the line are looked into.
    """
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.stmt) and not contains(child, line):
            continue
        if isinstance(child, Loop) and any(contains(one, line) for one in child.body):
            yield child
        yield from loops_around(child, line)


def assigned_in(statement: ast.stmt) -> set[str]:
    """Return the variables and attributes that are assigned in a statement, or appended to."""
    names = [n for n in ast.walk(statement) if isinstance(n, ast.Name | ast.Attribute)]
    stored = {ast.unparse(node) for node in names if isinstance(node.ctx, ast.Store)}
    return stored | {
        ast.unparse(node.value)
        for node in names
        if isinstance(node, ast.Attribute) and node.attr in _APPENDING
    }


def read_before_written(body: Sequence[ast.stmt]) -> list[str]:
    r"""Return the variables and attributes that a loop's body reads first and assigns later.

    A list to which something is appended counts as both.

    >>> body = ast.parse("out, h = rnn(x, h)\nloss = out.sum()\ntotal += loss").body
    >>> read_before_written(body)
    ['h', 'total']
    >>> read_before_written(ast.parse("bank.append(net(x))").body)
    ['bank']
    """
    read: dict[str, None] = {}
    written: set[str] = set()
    for statement in body:
        names = [n for n in ast.walk(statement) if isinstance(n, ast.Name | ast.Attribute)]
        texts = {ast.unparse(node) for node in names if isinstance(node.ctx, ast.Load)}
        if isinstance(statement, ast.AugAssign):
            texts.add(ast.unparse(statement.target))
        read |= dict.fromkeys(sorted(texts - written))
        written |= assigned_in(statement)
    return [name for name in read if name in written]
