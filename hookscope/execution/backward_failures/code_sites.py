"""Where an operation was called: the line of the user's code, its statement, and the module."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from types import CodeType, FrameType
from typing import NamedTuple

import torch
from torch import nn

from hookscope.execution.failures import frames
from hookscope.files.frame_variables import variables_of
from hookscope.results.failure import CodeLine
from hookscope.tensors.torch_internals import CALL_CODE

USER, _INSTALLED, _NONE = "user", "installed", ""
_LONGEST = 60  # characters of an expression that is quoted


class CodeSpan(NamedTuple):
    """The place of an expression in a file, as in its syntax tree; columns are -1 if unknown."""

    line: int
    end_line: int
    column: int = -1
    end_column: int = -1


@dataclass(frozen=True)
class CallSite:
    """A line of the user's code that calls an operation, perhaps through a layer.

    Attributes:
        file: the file as the code object names it.
        span: the expression that is evaluated.
        function: name of the function that contains the line.
        first_line: the line at which that function begins.
        layer: the innermost module that the line calls; None if it calls the operation itself.
        owner: the module whose code contains the line; None for code outside of modules.
        is_optimizer: whether the line calls an optimizer.
    """

    file: str
    span: CodeSpan
    function: str
    first_line: int
    layer: nn.Module | None = field(default=None, compare=False)
    owner: nn.Module | None = field(default=None, compare=False)
    is_optimizer: bool = False

    @property
    def line(self) -> int:
        """The line number."""
        return self.span.line

    @property
    def where(self) -> str:
        """The place in a sentence: ``net.py:31``."""
        return f"{frames.short_path(self.file)}:{self.line}"

    @property
    def as_data(self) -> CodeLine:
        """The line as plain data."""
        source = frames.source_line(self.file, self.line)
        return CodeLine(frames.short_path(self.file), self.line, self.function, source)

    @property
    def statement(self) -> ast.stmt | None:
        """The innermost statement that contains the expression; None if it is not known."""
        nodes = (n for n in ast.walk(frames.parsed(self.file)) if isinstance(n, ast.stmt))
        around = [node for node in nodes if contains(node, self.span.line)]
        # Several statements may stand in one line.
        around = [node for node in around if _is_within(self.span, node)] or around
        if not all(_is_within(span_of(around[-1]), node) for node in around):
            return None  # which of them is known from columns alone
        return around[-1] if around else None  # outer nodes come first

    @property
    def expression(self) -> ast.expr | ast.stmt | None:
        """The expression that is evaluated, else the statement."""
        statement = self.statement
        for node in ast.walk(statement) if statement is not None else ():
            if isinstance(node, ast.expr | ast.stmt) and span_of(node) == self.span:
                return node
        if self.span.column < 0 and isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return):
            return _value_of(statement)
        return statement

    @property
    def text(self) -> str:
        """The expression as it is quoted in a sentence."""
        node = self.expression
        if node is None:
            return frames.source_line(self.file, self.line)[:_LONGEST]
        return shortened(ast.unparse(node))


def shortened(text: str) -> str:
    """Return the first line of some code, cut if it is long."""
    first = text.split("\n")[0]
    return first if len(first) <= _LONGEST else f"{first[: _LONGEST - 3]}..."


def contains(node: ast.stmt, line: int) -> bool:
    """Return whether a statement spans a line."""
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _value_of(statement: ast.Assign | ast.AnnAssign | ast.Return) -> ast.expr | ast.stmt:
    """What a statement computes, unless it may be the assignment that runs an operation."""
    stored = [n for n in ast.walk(statement) if isinstance(getattr(n, "ctx", None), ast.Store)]
    if statement.value is None or any(isinstance(n, ast.Subscript | ast.Attribute) for n in stored):
        return statement
    return statement.value


def _is_within(span: CodeSpan, node: ast.stmt) -> bool:
    """Whether a statement spans an expression, where the columns are known."""
    place = span_of(node)
    begins = (place.line, place.column) <= (span.line, span.column)
    ends = (span.end_line, span.end_column) <= (place.end_line, place.end_column)
    return -1 not in span and begins and ends


def span_of(node: ast.expr | ast.stmt) -> CodeSpan:
    """Return where a node of a syntax tree is."""
    end = node.end_lineno or node.lineno
    return CodeSpan(node.lineno, end, node.col_offset, node.end_col_offset or -1)


def site_of_call(
    frame: FrameType | None = None, *, skips_functions: bool = False
) -> CallSite | None:
    """Return the innermost line of the user's code that is running; None if there is none.

    A line of an installed package counts if no line of the user's own is running. With
    ``skips_functions``, lines inside of a ``torch.autograd.Function`` do not count.
    """
    installed: CallSite | None = None
    layer: nn.Module | None = None
    is_optimizer = False
    frame = frame or sys._getframe(1)
    if skips_functions:
        frame = _outside_function(frame)
    while frame is not None:
        code = frame.f_code
        if code is CALL_CODE:
            module = variables_of(frame).get("self")
            layer = layer or (module if isinstance(module, nn.Module) else None)
        is_optimizer = is_optimizer or _is_optimizers(code.co_filename)
        kind = kind_of(code.co_filename)
        if kind and (kind == USER or installed is None):
            span = _span_at(code, frame.f_lasti, frame.f_lineno)
            site = _site_in(frame, layer, is_optimizer, span)
            if kind == USER:
                return site
            installed = site
        frame = frame.f_back
    return installed


def _outside_function(frame: FrameType) -> FrameType:
    """The frame that applies a custom function of the program, if one is running in its module."""
    inner: FrameType | None = frame
    while inner is not None and inner.f_code is not CALL_CODE:
        if inner.f_code.co_name == "forward" and _is_functions_forward(inner.f_code):
            return inner.f_back or frame
        inner = inner.f_back
    return frame


@cache
def _is_functions_forward(code: CodeType) -> bool:
    """Whether code is the ``forward`` of a custom function of the program."""
    if not is_of_program(code):
        return False
    waiting = [torch.autograd.Function]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if getattr(kind.forward, "__code__", None) is code:
            return True
    return False


def site_of_error(error: BaseException) -> CallSite | None:
    """Return the innermost line of the user's code in a traceback; None if there is none."""
    found: CallSite | None = None
    entry = error.__traceback__
    while entry is not None:
        frame = entry.tb_frame
        if kind_of(frame.f_code.co_filename) == USER:
            span = _span_at(frame.f_code, entry.tb_lasti, entry.tb_lineno)
            found = _site_in(frame, None, False, span)
        entry = entry.tb_next
    return found


def _site_in(
    frame: FrameType, layer: nn.Module | None, is_optimizer: bool, span: CodeSpan
) -> CallSite:
    code = frame.f_code
    owner = variables_of(frame).get("self")
    return CallSite(
        code.co_filename,
        span,
        code.co_name,
        code.co_firstlineno,
        layer,
        owner if isinstance(owner, nn.Module) else None,
        is_optimizer,
    )


def site_at(code: CodeType, instruction: int, line_number: int) -> CallSite:
    """Return the place of an instruction of some code that was running."""
    span = _span_at(code, instruction, line_number)
    return CallSite(code.co_filename, span, code.co_name, code.co_firstlineno)


def _span_at(code: CodeType, instruction: int, line_number: int) -> CodeSpan:
    """The expression that some code evaluates; from Python 3.11 on with its columns."""
    positions: Callable[[], Iterator[tuple[int | None, ...]]] | None
    positions = getattr(code, "co_positions", None)
    if positions is not None:
        found = next(islice(positions(), instruction // 2, None), (None,) * 4)
        if None not in found:
            line, end, column, end_column = found
            return CodeSpan(line or 0, end or 0, column or 0, end_column or 0)
    return CodeSpan(line_number, line_number)


@cache
def kind_of(file: str) -> str:
    """Whether a file is the user's, or of an installed package; empty for PyTorch and Python."""
    if file.startswith("<") and not frames.source_line(file, 1):
        return _NONE
    if frames.is_installed(file):
        return _INSTALLED
    return _NONE if frames.is_library(file) else USER


def is_of_program(code: CodeType) -> bool:
    """Return whether code is neither of PyTorch and hookscope nor of Python itself."""
    return bool(kind_of(code.co_filename))


def _is_optimizers(file: str) -> bool:
    return "/torch/optim/" in file.replace("\\", "/")
