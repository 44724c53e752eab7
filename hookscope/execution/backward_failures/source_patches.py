"""Changes of single statements of the user's code, made in memory for a trial."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType

from torch import nn

from hookscope.execution.backward_failures.code_sites import CodeSpan, contains, span_of
from hookscope.execution.failures import frames
from hookscope.files.signal_safety import signal_safe_contextmanager

_INPLACE = "inplace"  # the attribute of modules that may work in place
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class StatementChange:
    """What stands before, in place of, and after a statement; ``instead`` None keeps it."""

    span: CodeSpan
    before: str = ""
    instead: str | None = None
    after: str = ""

    def applied(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the statements that are run in place of ``statement``, at its line."""
        kept = [statement] if self.instead is None else _parsed(self.instead, statement)
        before, after = _parsed(self.before, statement), _parsed(self.after, statement)
        return [*before, *kept, *after] or [ast.copy_location(ast.Pass(), statement)]


def _parsed(source: str, place: ast.stmt) -> list[ast.stmt]:
    statements = ast.parse(source).body
    for statement in statements:
        for node in ast.walk(statement):
            if hasattr(node, "lineno"):
                ast.copy_location(node, place)
    return statements


@dataclass(frozen=True)
class SourcePatch:
    """A change that may let the backward pass run.

    Attributes:
        words: the change as a part of a sentence, such as ``with `x = x + y` there``.
        file: the file that is changed; empty if only modules are.
        changes: the statements that are changed.
        kinds: classes of modules that do not work in place, whatever their ``inplace`` is.
    """

    words: str
    file: str = ""
    changes: tuple[StatementChange, ...] = ()
    kinds: tuple[type[nn.Module], ...] = ()


class _Changer(ast.NodeTransformer):
    def __init__(self, changes: Iterable[StatementChange]) -> None:
        self._changes: dict[CodeSpan, list[StatementChange]] = {}
        for change in changes:
            self._changes.setdefault(change.span, []).append(change)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Change the statements in every list of statements of a node."""
        for name, old in ast.iter_fields(node):
            if isinstance(old, list) and old and isinstance(old[0], ast.stmt):
                setattr(node, name, [new for statement in old for new in self._applied(statement)])
        return super().generic_visit(node)

    def _applied(self, statement: ast.stmt) -> list[ast.stmt]:
        made = [statement]
        for change in self._changes.pop(span_of(statement), ()):
            at = made.index(statement) if statement in made else 0
            made[at : at + 1] = change.applied(made[at])
        return made


class ReplacedExpression(ast.NodeTransformer):
    """Replaces an expression, which is found by its place, by the source of another one."""

    def __init__(self, old: ast.expr, new: str) -> None:
        self._place = type(old), span_of(old)
        self._new: ast.expr = ast.parse(new, mode="eval").body

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the new expression in place of the old one."""
        if isinstance(node, ast.expr) and (type(node), span_of(node)) == self._place:
            return self._new
        visited: ast.AST = super().visit(node)
        return visited


def changed_tree(tree: ast.Module, file: str, patches: Sequence[SourcePatch]) -> ast.Module:
    """Change the statements of a file in its tree, which is changed itself."""
    wanted = [change for patch in patches if patch.file == file for change in patch.changes]
    changed: ast.Module = _Changer(wanted).visit(tree)
    return changed


@signal_safe_contextmanager
def patched(patches: Sequence[SourcePatch]) -> Iterator[None]:
    """Run the block with changed functions and modules; those in use now get their code back.

    Statements outside of functions cannot be changed in this way, and stay as they are.
    """
    before: list[tuple[FunctionType, CodeType]] = []
    kinds = {kind for patch in patches for kind in patch.kinds}
    try:
        for kind in kinds:
            setattr(kind, _INPLACE, property(lambda module: False, lambda module, value: None))
        for function, code in _changed_functions(patches):
            before.append((function, function.__code__))
            function.__code__ = code
        yield
    finally:
        for function, code in before:
            function.__code__ = code
        for kind in kinds:
            if _INPLACE in vars(kind):
                delattr(kind, _INPLACE)


def _changed_functions(
    patches: Sequence[SourcePatch],
) -> Iterator[tuple[FunctionType, CodeType]]:
    for file in dict.fromkeys(patch.file for patch in patches if patch.file):
        tree = frames.parsed(file)
        spans = [change.span for patch in patches if patch.file == file for change in patch.changes]
        lines = {_first_line(node) for span in spans if (node := _function_around(tree, span))}
        compiled = compile(changed_tree(tree, file, patches), file, "exec", dont_inherit=True)
        codes = {(code.co_name, code.co_firstlineno): code for code in _codes_in(compiled)}
        for thing in gc.get_objects():
            if type(thing) is not FunctionType or thing.__code__.co_filename != file:
                continue
            old = thing.__code__
            new = codes.get((old.co_name, old.co_firstlineno))
            if old.co_firstlineno in lines and new and new.co_freevars == old.co_freevars:
                yield thing, new


def _function_around(tree: ast.Module, span: CodeSpan) -> _Function | None:
    """The innermost function that contains a statement."""
    found: _Function | None = None
    for node in ast.walk(tree):  # outer nodes come first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found = node if contains(node, span.line) else found
    return found


def _first_line(node: _Function) -> int:
    """The first line of a function's code, which is that of its first decorator."""
    decorators = getattr(node, "decorator_list", [])
    lines: list[int] = [node.lineno, *(one.lineno for one in decorators)]
    return min(lines)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)
