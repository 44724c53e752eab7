"""The step of a program that failed, as code that can be run again from its variables.

The frames of the exception still have their variables. What is run again is the body of a loop
around the failing line, up to that line; the batch is the one that the loop's variable still has.
The innermost loop comes first, then the loops around it, then the whole script.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from traceback import walk_tb
from types import FrameType, ModuleType
from typing import Any

from hookscope.execution.backward_failures.code_sites import is_of_program, span_of
from hookscope.execution.backward_failures.loops import Loop, Scope, loops_around
from hookscope.execution.backward_failures.source_patches import (
    SourcePatch,
    changed_tree,
    patched,
)
from hookscope.execution.failures import frames

_RETURN = "_HookscopeStepReturned"


class StepReturned(Exception):
    """A statement of the step is a ``return``, with which the step ends."""


@dataclass(frozen=True)
class StepCode:
    """Code that contains the failing line.

    Attributes:
        file: the file with the code.
        line: the line that failed, or that called what failed.
        loop: the loop whose body is the step; None for the whole script.
        frame: the frame whose variables it uses.
    """

    file: str
    line: int
    loop: ast.stmt | None
    frame: FrameType

    @property
    def whole(self) -> StepCode:
        """The same with the rest of the loop's body, after the failing line."""
        end = self.line if self.loop is None else self.loop.end_lineno or self.line
        return replace(self, line=end)

    def run(self, patches: Sequence[SourcePatch] = ()) -> dict[str, Any]:
        """Run the step, with changes; return its variables.

        It changes the variables of the program: run it in a copy of the process.
        """
        variables = self.variables()
        tree = changed_tree(ast.parse("".join(_lines_of(self.file))), self.file, patches)
        body = tree.body if self.loop is None else self._step_in(tree)
        code = compile(ast.Module(body, []), self.file, "exec", dont_inherit=True)
        with patched(patches), suppress(StepReturned):
            exec(code, variables)
        return variables

    def variables(self) -> dict[str, Any]:
        """The variables that the step begins with."""
        if self.loop is None:
            main = ModuleType("__main__")
            main.__file__ = self.file
            sys.modules["__main__"] = main
            return vars(main)
        outer = self.frame.f_globals
        if self.frame.f_code.co_name == "<module>":
            return outer
        return {**outer, **self.frame.f_locals, _RETURN: StepReturned}

    def _step_in(self, tree: ast.Module) -> list[ast.stmt]:
        """The statements of the loop's body up to the failing line, as the body of a loop."""
        assert self.loop is not None
        place = span_of(self.loop)
        loop = next(
            node for node in ast.walk(tree) if isinstance(node, Loop) and span_of(node) == place
        )
        body = [statement for statement in loop.body if statement.lineno <= self.line]
        once = ast.parse("for _hookscope_once in (None,): pass").body[0]
        assert isinstance(once, ast.For)
        once.body = [_OutsideFunction().visit(statement) for statement in body]
        return [ast.fix_missing_locations(once)]


class _OutsideFunction(ast.NodeTransformer):
    """Lets statements of a function be run outside of it."""

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        """Raise, because only a function can return."""
        raised = ast.Raise(ast.Name(_RETURN, ast.Load()))
        return ast.fix_missing_locations(ast.copy_location(raised, node))

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.stmt:
        """Leave it out: all variables are global ones."""
        return ast.copy_location(ast.Pass(), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Give ``super()`` its arguments."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            names = (ast.Name(name, ast.Load()) for name in ("__class__", "self"))
            node.args = [ast.copy_location(name, node) for name in names]
        return node

    def visit(self, node: ast.AST) -> Any:
        """Leave functions and classes inside as they are."""
        return node if isinstance(node, Scope) else super().visit(node)


def _lines_of(file: str) -> list[str]:
    import linecache

    linecache.checkcache(file)
    return linecache.getlines(file)


def steps_of(error: BaseException, script: str) -> Iterator[StepCode]:
    """Yield the code to run again after an error, the smallest first, at last the whole script."""
    entries = [
        (frame, line) for frame, line in walk_tb(error.__traceback__) if is_of_program(frame.f_code)
    ]
    for frame, line in reversed(entries):
        file = frame.f_code.co_filename
        scope = _scope_of(frame, frames.parsed(file))
        for loop in reversed(list(loops_around(scope, line))):
            yield StepCode(file, line, loop, frame)
    if entries and entries[0][0].f_code.co_filename == script:
        frame, line = entries[0]
        yield StepCode(script, line, None, frame)


def _scope_of(frame: FrameType, tree: ast.Module) -> ast.AST:
    """The function of a frame in the tree of its file, or the whole tree."""
    code = frame.f_code
    if code.co_name == "<module>":
        return tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return ast.Module([], [])
