"""Where the chain of gradients was cut: a loss that does not require grad, followed backwards.

A function mode sees every call as it was written. A result that does not require grad, although an
argument did, is a cut; what is computed from such results has the cuts of its arguments.
"""

from __future__ import annotations

import ast
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hookscope.execution.backward_failures.code_sites import (
    CallSite,
    shortened,
    site_of_call,
    site_of_error,
    span_of,
)
from hookscope.execution.backward_failures.diagnosis import (
    Diagnosis,
    NameOf,
    lines_of,
    place_of,
)
from hookscope.execution.backward_failures.graph_nodes import differentiated
from hookscope.execution.backward_failures.source_patches import SourcePatch, StatementChange
from hookscope.execution.failures import frames
from hookscope.hooks.op_recorder import plain_name
from hookscope.results.failure import NO_GRADIENT
from hookscope.tensors.nested import walk

_DETACHING = {"detach", "detach_", "data"}
_TO_PYTHON = {"item", "tolist", "numpy", "__float__", "__int__", "__array__"}
_MODES = ("no_grad", "inference_mode", "set_grad_enabled")


@dataclass(frozen=True)
class GradientCut:
    """A call whose result has no graph, although an argument had one.

    Attributes:
        number: how many cuts came before.
        function: name of the function.
        site: the line.
        reason: the end of a sentence about the call.
        mode: the line of the statement that disables gradients there; 0 for none.
    """

    number: int
    function: str
    site: CallSite | None
    reason: str
    mode: int = 0


class CutWatch(TorchFunctionMode):
    """Notes the cuts of what is computed while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts: list[GradientCut] = []
        self.left: list[GradientCut] = []  # calls that return numbers or arrays
        self._of_tensor: dict[int, tuple[weakref.ref[Tensor], frozenset[GradientCut]]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # within it the mode is disabled
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in ("backward", "__set__"):
            return result
        inputs = [tensor for _, tensor in walk((args, kwargs or {}))]
        known = frozenset[GradientCut]().union(*map(self.cuts_of, inputs))
        carries = any(tensor.requires_grad for tensor in inputs)
        if not carries and not known:
            return result
        name = _name_of_function(func)
        outputs = [tensor for _, tensor in walk(result)]
        if not outputs and name in _TO_PYTHON:
            self.left.append(self._cut(name, "returns no tensor"))
        for tensor in outputs:
            if not tensor.requires_grad:
                new = {self._cut(name, _reason(name, tensor))} if carries else set()
                self._of_tensor[id(tensor)] = weakref.ref(tensor), known | new
        return result

    def cuts_of(self, tensor: Tensor) -> frozenset[GradientCut]:
        """Return the cuts between a tensor and what required grad."""
        reference, cuts = self._of_tensor.get(id(tensor), (None, frozenset[GradientCut]()))
        return cuts if reference is not None and reference() is tensor else frozenset()

    def _cut(self, name: str, reason: str) -> GradientCut:
        mode = 0 if torch.is_grad_enabled() else _line_of_mode(sys._getframe(1))
        if not torch.is_grad_enabled():
            reason = "ran with gradients disabled"
        cut = GradientCut(len(self.cuts), name, site_of_call(), reason, mode)
        self.cuts.append(cut)
        return cut


def _name_of_function(function: Any) -> str:
    owner = getattr(function, "__self__", None)
    if getattr(function, "__name__", "") == "__get__":
        return str(getattr(owner, "__name__", ""))
    name = str(getattr(function, "__name__", ""))
    return name if name in _TO_PYTHON else plain_name(function) or name


def _reason(name: str, result: Tensor) -> str:
    if name in _DETACHING:
        return "cuts the graph off"
    if not (result.is_floating_point() or result.is_complex()):
        dtype = str(result.dtype).removeprefix("torch.")
        return f"returns {dtype}, which has no gradient"
    return "has no derivative here"


def _line_of_mode(frame: FrameType | None) -> int:
    """The line of the innermost ``with torch.no_grad()`` or decorator around what is running."""
    while frame is not None:
        line, code = frame.f_lineno, frame.f_code
        for node in _modes_in(code.co_filename):
            body = node.body
            if body[0].lineno <= line <= (body[-1].end_lineno or line):
                return node.lineno if isinstance(node, ast.With) else node.decorator_list[0].lineno
        frame = frame.f_back
    return 0


def _modes_in(file: str) -> Iterator[ast.With | ast.FunctionDef]:
    """The blocks and functions of a file for which gradients are disabled."""
    if frames.is_library(file):
        return
    for node in ast.walk(frames.parsed(file)):
        if isinstance(node, ast.With):
            modes = [item.context_expr for item in node.items]
        elif isinstance(node, ast.FunctionDef):
            modes = node.decorator_list
        else:
            continue
        if any(map(_is_mode, modes)):
            yield node


def _is_mode(node: ast.expr) -> bool:
    return any(mode in ast.unparse(node) for mode in _MODES)


def diagnose_no_gradient(
    error: BaseException, watch: CutWatch, name_of: NameOf
) -> Diagnosis | None:
    """Return where the chain from the parameters to a loss was cut."""
    site = site_of_error(error)
    cuts = frozenset[GradientCut]().union(*map(watch.cuts_of, differentiated(error)))
    by_number = sorted(cuts or watch.left[-1:], key=lambda cut: cut.number)
    if not by_number:
        return None
    cut = by_number[0] if by_number[0].mode else by_number[-1]
    return _diagnosis_of(cut, site, name_of)


def _diagnosis_of(cut: GradientCut, loss: CallSite | None, name_of: NameOf) -> Diagnosis | None:
    site = cut.site
    if site is None:
        return None
    subject = f"`{site.text}` in {place_of(site, name_of)}"
    if cut.mode:
        source = frames.source_line(site.file, cut.mode).partition("#")[0].rstrip(" :")
        story = [f"{subject} ran with gradients disabled, by `{source}` in line {cut.mode}."]
    elif cut.reason == "returns no tensor":
        story = [f"{subject} returns a number or an array, which has no graph."]
    else:
        story = [f"{subject} {cut.reason}."]
    story.append("The loss depends on no parameter in another way, so it has no gradient.")
    return Diagnosis(
        NO_GRADIENT,
        tuple(story),
        lines_of([site, loss]),
        tuple(_repairs(cut, site)),
        (_advice(cut),),
    )


def _advice(cut: GradientCut) -> str:
    if cut.mode:
        return "compute what the loss depends on outside of that block."
    if cut.function in ("argmax", "argmin"):
        return "compute the loss from the scores themselves, as cross_entropy does."
    return "compute the loss from the result with its graph."


def _repairs(cut: GradientCut, site: CallSite) -> Iterator[SourcePatch]:
    """Changes that leave the graph whole."""
    statement = site.statement
    if cut.mode:
        yield from _without_mode(site, cut.mode)
    elif statement is not None and cut.function in (*_DETACHING, *_TO_PYTHON):
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and node.attr == cut.function:
                whole = ast.unparse(statement)
                called = f"{ast.unparse(node)}()"
                old = called if called in whole else ast.unparse(node)
                new = whole.replace(old, ast.unparse(node.value))
                change = StatementChange(span_of(statement), instead=new)
                words = f"without `{old.removeprefix(ast.unparse(node.value))}` there"
                yield SourcePatch(words, site.file, (change,))


def _without_mode(site: CallSite, line: int) -> Iterator[SourcePatch]:
    for node in _modes_in(site.file):
        if isinstance(node, ast.With) and node.lineno == line:
            body = "\n".join(
                f"    {row}" for one in node.body for row in ast.unparse(one).split("\n")
            )
            others = [ast.unparse(item) for item in node.items if not _is_mode(item.context_expr)]
            head = f"with {', '.join(others)}:" if others else "if True:"
            change = StatementChange(span_of(node), instead=f"{head}\n{body}")
            words = f"without `{shortened(ast.unparse(node.items[0]))}` in line {line}"
            yield SourcePatch(words, site.file, (change,))
