"""Where the chain of gradients was cut: a loss that does not require grad, followed backwards.

A function mode sees every call as it was written. A result that does not require grad, although an
argument did, is a cut; what is computed from such results has the cuts of its arguments.
"""

from __future__ import annotations

import ast
import copy
import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
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
from hookscope.execution.backward_failures.module_names import ModuleNames
from hookscope.execution.backward_failures.source_patches import (
    ReplacedExpression,
    SourcePatch,
    StatementChange,
)
from hookscope.execution.failures import frames
from hookscope.files.words import plural
from hookscope.hooks.op_recorder import plain_name
from hookscope.results.failure import NO_GRADIENT
from hookscope.tensors.nested import walk

DETACHING = {"detach", "detach_", "data"}
TO_PYTHON = {"item", "tolist", "numpy", "__float__", "__int__", "__array__"}
COPYING = {"tensor", "as_tensor", "asarray", "from_numpy"}
NO_TENSOR, _NO_FLOATS = "returns no tensor", ", which has no gradient"
_MODES = ("no_grad", "inference_mode", "set_grad_enabled", "enable_grad")
GRAD = "grad"
_MOST_NAMES = 3


@dataclass(frozen=True)
class DisablingLine:
    """A statement that disables gradients."""

    file: str
    line: int

    @property
    def source(self) -> str:
        """Its text."""
        return frames.source_line(self.file, self.line).partition("#")[0].rstrip(" :")

    @property
    def is_certain(self) -> bool:
        """Whether it disables gradients whatever the values of the program are."""
        certain = ("no_grad", "inference_mode()", "set_grad_enabled(False)")
        return any(mode in self.source for mode in certain)


@dataclass(frozen=True)
class GradientCut:
    """A call whose result has no graph, although an argument had one.

    Attributes:
        number: how many cuts came before.
        function: name of the function.
        site: the line.
        reason: the end of a sentence about the call.
        is_disabled: whether gradients were disabled.
        mode: the statement that disabled them, if one was found.
    """

    number: int
    function: str
    site: CallSite | None
    reason: str
    is_disabled: bool = False
    mode: DisablingLine | None = None


class CutWatch(TorchFunctionMode):
    """Notes the cuts of what is computed while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts: list[GradientCut] = []
        self.left: list[GradientCut] = []  # calls that return numbers or arrays
        self.frozen: dict[Tensor, None] = {}  # parameters that were used
        self._of_tensor: dict[int, tuple[weakref.ref[Tensor], frozenset[GradientCut]]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # within it the mode is disabled
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in ("backward", "__set__"):
            return result
        inputs = [tensor for _, tensor in walk((args, kwargs or {}))]
        known = frozenset[GradientCut]().union(*map(self.cuts_of, inputs))
        parameters = [one for one in inputs if isinstance(one, nn.Parameter)]
        self.frozen |= dict.fromkeys(one for one in parameters if not one.requires_grad)
        carries = any(tensor.requires_grad for tensor in inputs)
        if not carries and not known:
            return result
        name = _name_of_function(func)
        outputs = [tensor for _, tensor in walk(result)]
        if not outputs and name in TO_PYTHON:
            self.left.append(self._cut(name, NO_TENSOR))
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
        site, is_disabled = site_of_call(), not torch.is_grad_enabled()
        mode = _disabling_line(sys._getframe(1), site) if is_disabled else None
        cut = GradientCut(len(self.cuts), name, site, reason, is_disabled, mode)
        self.cuts.append(cut)
        return cut


def _name_of_function(function: Any) -> str:
    owner = getattr(function, "__self__", None)
    if getattr(function, "__name__", "") == "__get__":
        return str(getattr(owner, "__name__", ""))
    name = str(getattr(function, "__name__", ""))
    return name if name in TO_PYTHON else plain_name(function) or name


def reason_of_name(name: str) -> str:
    """Return why a function cuts the graph off, as far as its name says it; else nothing."""
    if name in DETACHING:
        return "cuts the graph off"
    if name in COPYING:
        return "copies values into a new tensor, without their graph"
    return "returns gradients without a graph of their own" if name == GRAD else ""


def _reason(name: str, result: Tensor) -> str:
    if reason := reason_of_name(name):
        return reason
    if not (result.is_floating_point() or result.is_complex()):
        return returns_dtype(str(result.dtype).removeprefix("torch."))
    return "has no derivative here"


def returns_dtype(dtype: str) -> str:
    """Return the reason that a result is of a dtype without gradients."""
    return f"returns {dtype}{_NO_FLOATS}"


def _disabling_line(frame: FrameType | None, site: CallSite | None) -> DisablingLine | None:
    """The innermost ``with torch.no_grad()`` or decorator around what is running.

    Without any, the only call in the file of the site that disables gradients from then on.
    """
    while frame is not None:
        if mode := mode_around(frame.f_code.co_filename, frame.f_lineno):
            return mode
        frame = frame.f_back
    return None if site is None else mode_from_then_on(site.file)


def mode_around(file: str, line: int) -> DisablingLine | None:
    """Return the innermost block or decorator around a line that sets whether there are gradients.

    ``set_grad_enabled(flag)`` may disable them or not.
    """
    for node in sorted(_modes_in(file), key=lambda node: node.lineno, reverse=True):
        body = node.body
        if body[0].lineno <= line <= (body[-1].end_lineno or line):
            place = node if isinstance(node, ast.With) else node.decorator_list[0]
            return DisablingLine(file, place.lineno)
    return None


def mode_from_then_on(file: str) -> DisablingLine | None:
    """Return the only call in a file that disables gradients from then on; None without one."""
    nodes = ast.walk(frames.parsed(file))
    calls = [node for node in nodes if isinstance(node, ast.Expr) and _is_mode(node.value)]
    off = [node.lineno for node in calls if ast.unparse(node.value).endswith("(False)")]
    return DisablingLine(file, off[0]) if len(off) == 1 else None


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
    error: BaseException, watch: CutWatch, names: ModuleNames
) -> Diagnosis | None:
    """Return where the chain from the parameters to a loss was cut."""
    site = site_of_error(error)
    cuts = frozenset[GradientCut]().union(*map(watch.cuts_of, differentiated(error)))
    by_number = sorted(cuts or watch.left[-1:], key=lambda cut: cut.number)
    if not by_number:
        return diagnosis_of_frozen(list(watch.frozen), site, names) if watch.frozen else None
    cut = by_number[0] if by_number[0].is_disabled else by_number[-1]
    return diagnosis_of_cut(cut, site, names)


def diagnosis_of_frozen(
    frozen: Sequence[Tensor], loss: CallSite | None, names: ModuleNames
) -> Diagnosis:
    """Return what is said of a loss that depends on frozen parameters alone."""
    first = ", ".join(map(names.of_parameter, frozen[:_MOST_NAMES]))
    used = plural(len(frozen), "parameter")
    said = f"The step used {used} that cannot get a gradient (requires_grad is False): {first}"
    said += " and others." if len(frozen) > _MOST_NAMES else "."
    advice = "set requires_grad_(True) for the parameters that are to be trained."
    story = ("The loss depends on nothing that requires grad.", said)
    return Diagnosis(NO_GRADIENT, story, lines_of([loss]), (), (advice,))


def diagnosis_of_cut(cut: GradientCut, loss: CallSite | None, name_of: NameOf) -> Diagnosis | None:
    """Return what is said of a cut, which the loss is behind; None if its line is not known."""
    site = cut.site
    if site is None:
        return None
    subject = f"`{site.text}` in {place_of(site, name_of)}"
    if cut.mode is not None:
        where = f"line {cut.mode.line}"
        if cut.mode.file != site.file:
            where = f"{frames.short_path(cut.mode.file)}:{cut.mode.line}"
        story = [f"{subject} ran with gradients disabled, by `{cut.mode.source}` in {where}."]
    elif cut.is_disabled:
        story = [f"{subject} ran with gradients disabled, by an earlier call."]
    elif cut.reason == NO_TENSOR:
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
    if cut.is_disabled:
        if cut.mode is None or "(False)" in cut.mode.source:
            return "enable gradients again, with torch.set_grad_enabled(True)."
        return "compute what the loss depends on outside of that block."
    if cut.reason == NO_TENSOR:
        return "compute the loss with PyTorch's functions, from tensors."
    if cut.function in ("argmax", "argmin") or cut.reason.endswith(_NO_FLOATS):
        return "compute the loss from the scores themselves, as cross_entropy does."
    if cut.function in COPYING:
        return "put tensors together with torch.stack or torch.cat, which keep their graphs."
    if cut.function == GRAD:
        return "compute the gradients with create_graph=True."
    return "compute the loss from what was there before the cut."


def _repairs(cut: GradientCut, site: CallSite) -> Iterator[SourcePatch]:
    """Changes that leave the graph whole."""
    statement = site.statement
    if cut.mode is not None:
        yield from _without_mode(cut.mode)
    if statement is None:
        return
    if cut.is_disabled:
        enabled = "torch.set_grad_enabled(True)"
        change = StatementChange(span_of(statement), before=enabled)
        yield SourcePatch(f"with `{enabled}` before line {statement.lineno}", site.file, (change,))
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.expr):
            for new, words in _with_graph(cut.function, node):
                whole = ReplacedExpression(node, new).visit(copy.deepcopy(statement))
                change = StatementChange(span_of(statement), instead=ast.unparse(whole))
                yield SourcePatch(words, site.file, (change,))


def _with_graph(function: str, node: ast.expr) -> Iterator[tuple[str, str]]:
    """Yield what can stand in the place of an expression that cuts the graph, and words for it."""
    called = isinstance(node, ast.Call)
    part = node.func if isinstance(node, ast.Call) else node
    if frames.called_name(part) != function:
        return
    if function in (*DETACHING, *TO_PYTHON) and isinstance(part, ast.Attribute):
        yield ast.unparse(part.value), f"without `.{function}{'()' * called}` there"
    elif function in COPYING and isinstance(node, ast.Call) and node.args:
        new = f"torch.stack({ast.unparse(node.args[0])})"
        for one in (new, ast.unparse(node.args[0])):
            yield one, f"with `{shortened(one)}` in line {node.lineno}"
    elif function == GRAD and isinstance(node, ast.Call):
        call = copy.deepcopy(node)
        call.keywords.append(ast.keyword("create_graph", ast.Constant(True)))
        yield ast.unparse(call), f"with create_graph=True in line {node.lineno}"


def _without_mode(mode: DisablingLine) -> Iterator[SourcePatch]:
    for node in _modes_in(mode.file):
        if isinstance(node, ast.With) and node.lineno == mode.line:
            body = "\n".join(
                f"    {row}" for one in node.body for row in ast.unparse(one).split("\n")
            )
            others = [ast.unparse(item) for item in node.items if not _is_mode(item.context_expr)]
            head = f"with {', '.join(others)}:" if others else "if True:"
            change = StatementChange(span_of(node), instead=f"{head}\n{body}")
            words = f"without `{shortened(ast.unparse(node.items[0]))}` in line {mode.line}"
            yield SourcePatch(words, mode.file, (change,))
