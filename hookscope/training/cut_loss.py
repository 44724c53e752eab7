"""A loss of a program that does not require grad: its assignments are followed backwards."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from hookscope.execution.backward_failures.code_sites import site_of_error
from hookscope.execution.backward_failures.cut_chains import (
    GRAD,
    NO_TENSOR,
    TO_PYTHON,
    DisablingLine,
    GradientCut,
    diagnosis_of_cut,
    diagnosis_of_frozen,
    mode_around,
    mode_from_then_on,
    reason_of_name,
    returns_dtype,
)
from hookscope.execution.backward_failures.diagnosis import Diagnosis, lines_of
from hookscope.execution.backward_failures.module_names import ModuleNames
from hookscope.execution.failures.frames import called_name
from hookscope.results.failure import NO_GRADIENT
from hookscope.training.step_code import CodePart, last_assignment

_DTYPES = {"argmax": "int64", "argmin": "int64", "long": "int64", "int": "int32", "bool": "bool"}
_TO_NUMBERS = {"float", "int"}  # functions of Python


def diagnose_cut_loss(error: BaseException, parts: list[CodePart], names: ModuleNames) -> Diagnosis:
    """Return the line that cuts a loss off from what is trained, as far as the code says it."""
    site = site_of_error(error)
    part = next((one for one in parts if site is not None and one.is_at(site)), None)
    cuts = _Search(part, part.line).cuts if part is not None else []
    if cuts and (found := diagnosis_of_cut(cuts[0], site, names)):
        return found
    modules = [one for one in part.variables.values() if isinstance(one, nn.Module)] if part else []
    parameters = list(dict.fromkeys(one for module in modules for one in module.parameters()))
    if parameters and not any(one.requires_grad for one in parameters):
        return diagnosis_of_frozen(parameters, site, names)
    said = "The loss does not require grad, and the lines that compute it do not say why."
    advice = "look for detach(), no_grad, item() or numpy in the code of the model."
    return Diagnosis(NO_GRADIENT, (said,), lines_of([site]), (), (advice,))


class _Search:
    """Follows the assignments behind a loss within a function.

    Attributes:
        cuts: the expressions that cut off what is trained, those that ran first before others.
    """

    def __init__(self, part: CodePart, line: int) -> None:
        self.cuts: list[GradientCut] = []
        self._part = part
        self._trained: dict[str, bool] = {}  # of each variable and attribute that was followed
        self._dependent: list[ast.expr] = []  # the expressions that depend on what is trained
        for expression in _differentiated_in(part, line):
            self._follow(expression, line)
        if not self.cuts and not torch.is_grad_enabled() and self._dependent:
            self._add_disabled(self._dependent[0], mode_from_then_on(part.file))

    def _follow(self, expression: ast.expr, line: int) -> bool:
        """Return whether an expression depends on what requires grad, and note its cuts."""
        for node in _read_in(expression):
            text = ast.unparse(node)
            if text in self._trained:
                continue
            self._trained[text] = any(map(_requires_grad, self._part.values_of(node)))
            statement = last_assignment(self._part.nodes, text, line - 1)
            value = getattr(statement, "value", None)
            if statement is not None and isinstance(value, ast.expr):
                self._trained[text] |= self._follow(value, statement.lineno)
        if not self._is_trained(expression):
            return False
        self._dependent.append(expression)
        mode = mode_around(self._part.file, expression.lineno)
        if mode is not None and mode.is_certain:
            self._add_disabled(expression, mode)
        for name, reason, cut in _cutting(expression):
            if self._is_trained(cut):
                site = self._part.site(cut)
                self.cuts.append(GradientCut(len(self.cuts), name, site, reason))
        return True

    def _is_trained(self, expression: ast.expr) -> bool:
        return any(self._trained.get(ast.unparse(node)) for node in _read_in(expression))

    def _add_disabled(self, expression: ast.expr, mode: DisablingLine | None) -> None:
        site = self._part.site(expression)
        self.cuts.append(GradientCut(len(self.cuts), "", site, "", is_disabled=True, mode=mode))


def _read_in(expression: ast.expr) -> Iterator[ast.Name | ast.Attribute]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node


def _differentiated_in(part: CodePart, line: int) -> Iterator[ast.expr]:
    """What is differentiated by the calls in a line."""
    for node in part.nodes:
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or line):
            called = node.func
            is_method = isinstance(called, ast.Attribute) and called.attr == "backward"
            if is_method and ast.unparse(called) != "torch.autograd.backward":
                yield called
            yield from node.args


def _requires_grad(value: object) -> bool:
    if isinstance(value, nn.Module):
        return any(one.requires_grad for one in value.parameters())
    return isinstance(value, Tensor) and value.requires_grad


def _cutting(expression: ast.expr) -> Iterator[tuple[str, str, ast.expr]]:
    """Yield the calls in an expression that cut the graph off: the name, why, and the call."""
    for node in ast.walk(expression):
        called = node.func if isinstance(node, ast.Call) else node
        name = called_name(called)
        if isinstance(node, ast.Compare):
            yield "", returns_dtype("bool"), node
        elif name == "data" and isinstance(node, ast.Attribute):
            yield name, reason_of_name(name), node
        elif isinstance(node, ast.Call):
            creates = any(one.arg == "create_graph" for one in node.keywords)
            if name in TO_PYTHON or (name in _TO_NUMBERS and isinstance(called, ast.Name)):
                yield name, NO_TENSOR, node
            elif name in _DTYPES:
                yield name, returns_dtype(_DTYPES[name]), node
            elif (reason := reason_of_name(name)) and not (name == GRAD and creates):
                yield name, reason, node
