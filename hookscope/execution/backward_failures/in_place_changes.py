"""The statement that changes a tensor in place: how it is named, and what could stand there."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from torch import Tensor
from torch.nn import functional

from hookscope.execution.backward_failures.code_sites import CallSite, shortened, span_of
from hookscope.execution.backward_failures.graph_observer import InPlaceChange
from hookscope.execution.backward_failures.source_patches import (
    ReplacedExpression,
    SourcePatch,
    StatementChange,
)
from hookscope.execution.failures.frames import called_name

_SYMBOLS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
# Without an operator of the same name that returns a new tensor.
_NO_OTHER = {"copy_", "zero_", "fill_", "set_", "resize_", "uniform_", "normal_", "random_"}


def operator_name(change: InPlaceChange) -> str:
    """Return the operator as the user's line has it: ``+=``, ``relu_``, ``x[mask] = ...``."""
    site = change.site
    name = change.operator.removeprefix("aten::").partition(".")[0]
    if site is None:
        return name
    if site.is_optimizer:
        return site.text
    statement = site.statement
    if isinstance(statement, ast.AugAssign):
        return f"{_SYMBOLS[type(statement.op)]}="
    if subscript := assigned_subscript(statement):
        return f"{ast.unparse(subscript)} = ..."
    if call := _in_place_call(site):
        if any(keyword.arg == "out" for keyword in call.keywords):
            return f"{shortened(ast.unparse(call.func))}(out=...)"
        if any(keyword.arg == "inplace" for keyword in call.keywords):
            return f"{shortened(ast.unparse(call.func))}(inplace=True)"
        return called_name(call.func)
    return name


def has_inplace(site: CallSite) -> bool:
    """Return whether the line calls a layer that works in place, such as ``ReLU(inplace=True)``."""
    return bool(getattr(site.layer, "inplace", False))


def assigned_subscript(statement: ast.stmt | None) -> ast.Subscript | None:
    """Return the part of something, such as ``x[0]``, to which a statement assigns, if any."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    parts = [p for t in targets for p in (t.elts if isinstance(t, ast.Tuple | ast.List) else [t])]
    return next((part for part in parts if isinstance(part, ast.Subscript)), None)


def _in_place_call(site: CallSite) -> ast.Call | None:
    """The call at a site that works in place; None if it cannot be told."""
    expression, statement = site.expression, site.statement
    if isinstance(expression, ast.Call) and site.span.column >= 0:
        return expression if works_in_place(expression) else None
    calls = (n for n in ast.walk(statement or ast.Pass()) if isinstance(n, ast.Call))
    return next(filter(works_in_place, calls), None)


def works_in_place(call: ast.Call) -> bool:
    """Return whether a call changes one of its tensors, judged by its name and keywords."""
    name = called_name(call.func)
    named = name.endswith("_") and not name.endswith("__")
    return named or any(keyword.arg in ("out", "inplace") for keyword in call.keywords)


def changed_by(call: ast.Call) -> ast.expr | None:
    """Return what a call that works in place changes: ``out``, its object or its first argument."""
    out = next((one.value for one in call.keywords if one.arg == "out"), None)
    if out is not None:
        return out
    if isinstance(call.func, ast.Attribute) and not _is_module(call.func):
        return call.func.value
    return call.args[0] if call.args else None


def replacements(change: InPlaceChange) -> Iterator[SourcePatch]:
    """Yield changes of the line that leave the tensor as it was, the most usual first."""
    site = change.site
    if site is None:
        return
    if site.layer is not None and has_inplace(site):
        kind = type(site.layer)
        yield SourcePatch(f"with inplace=False in every {kind.__name__}", kinds=(kind,))
        return
    statement = site.statement
    if statement is None or site.is_optimizer or site.layer is not None:
        return
    if new := _without_change(site, statement):
        yield _instead(site, statement, new)
    if name := _root_name(site, statement):
        words = f"with `{name} = {name}.clone()` before it"
        before = StatementChange(span_of(statement), before=f"{name} = {name}.clone()")
        yield SourcePatch(words, site.file, (before,))


def _instead(site: CallSite, statement: ast.stmt, new: str) -> SourcePatch:
    change = StatementChange(span_of(statement), instead=new)
    return SourcePatch(f"with `{shortened(new)}` there", site.file, (change,))


def _without_change(site: CallSite, statement: ast.stmt) -> str:
    """The statement with an operator that returns a new tensor; empty if there is none."""
    if isinstance(statement, ast.AugAssign):
        if isinstance(statement.target, ast.Subscript):
            return ""
        target = ast.unparse(statement.target)
        value = ast.unparse(statement.value)
        if isinstance(statement.value, ast.BinOp | ast.IfExp | ast.Lambda | ast.BoolOp):
            value = f"({value})"
        return f"{target} = {target} {_SYMBOLS[type(statement.op)]} {value}"
    call = _in_place_call(site)
    if call is None:
        return ""
    place = span_of(call)
    is_statement = isinstance(statement, ast.Expr) and span_of(statement.value) == place
    if is_statement and called_name(call.func) == "copy_" and len(call.args) == 1:
        target = _changed_argument(call)
        return f"{target} = {ast.unparse(call.args[0])}" if target else ""
    new = _other_call(call)
    if new is None:
        return ""
    changed = ast.unparse(
        ReplacedExpression(call, ast.unparse(new)).visit(copy.deepcopy(statement))
    )
    if not isinstance(statement, ast.Expr):
        return changed
    # The new tensor would be thrown away.
    target = _changed_argument(call) if _is_in_chain(call, statement.value) else ""
    return f"{target} = {changed}" if target else ""


def _is_in_chain(call: ast.Call, whole: ast.expr) -> bool:
    """Whether all of an expression works in place, after a call: ``x.mul_(2).add_(1)``."""
    while span_of(whole) != span_of(call):
        inner = getattr(whole.func, "value", None) if isinstance(whole, ast.Call) else None
        if inner is None or not (isinstance(whole, ast.Call) and works_in_place(whole)):
            return False
        whole = inner
    return True


def cloned_arguments(saver: CallSite) -> Iterator[SourcePatch]:
    """Yield changes that give a clone to the call that saves its argument."""
    statement, saving = saver.statement, saver.expression
    if statement is None:
        return
    arguments: list[ast.expr] = []
    if isinstance(saving, ast.BinOp):
        arguments = [saving.left, saving.right]
    elif isinstance(saving, ast.Call):
        arguments = [*saving.args]
        if isinstance(saving.func, ast.Attribute) and not _is_module(saving.func):
            arguments.append(saving.func.value)
    for argument in arguments:
        if isinstance(argument, ast.Name | ast.Attribute | ast.Subscript):
            clone = f"{ast.unparse(argument)}.clone()"
            new = ast.unparse(ReplacedExpression(argument, clone).visit(copy.deepcopy(statement)))
            change = StatementChange(span_of(statement), instead=new)
            yield SourcePatch(f"with `{clone}` in line {saver.line}", saver.file, (change,))


def _other_call(call: ast.Call) -> ast.Call | None:
    """The same call of the operator that returns a new tensor; None if there is none."""
    new = copy.deepcopy(call)
    kept = [one for one in new.keywords if one.arg not in ("out", "inplace")]
    if len(kept) < len(new.keywords):
        new.keywords = kept
        return new
    name = called_name(call.func)
    other = name[:-1]
    if name in _NO_OTHER or not (hasattr(Tensor, other) or hasattr(functional, other)):
        return None
    if isinstance(new.func, ast.Attribute):
        new.func.attr = other
    elif isinstance(new.func, ast.Name):
        return None  # an imported name, whose other one may not be
    return new


def _changed_argument(call: ast.Call) -> str:
    """What a call changes, if a statement can assign to it."""
    value = changed_by(call)
    return ast.unparse(value) if isinstance(value, ast.Name | ast.Attribute) else ""


def _is_module(function: ast.expr) -> bool:
    """Whether a function is one of a module of PyTorch: ``F.relu_``, ``torch.relu_``."""
    owner = ast.unparse(function).rpartition(".")[0]
    return owner.rpartition(".")[2] in ("F", "torch", "functional", "init")


def _root_name(site: CallSite, statement: ast.stmt) -> str:
    """The variable whose tensor, or a part of it, a statement changes."""
    target: ast.expr | None = None
    if isinstance(statement, ast.AugAssign):
        target = statement.target
    elif subscript := assigned_subscript(statement):
        target = subscript
    elif call := _in_place_call(site):
        target = changed_by(call)
    while isinstance(target, ast.Subscript) or (
        isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute)
    ):
        target = getattr(
            target if isinstance(target, ast.Subscript) else target.func, "value", None
        )
    bound = [n.target for n in ast.walk(statement) if isinstance(n, ast.comprehension)]
    in_loop = {n.id for one in bound for n in ast.walk(one) if isinstance(n, ast.Name)}
    if isinstance(target, ast.Name) and target.id in in_loop:
        return ""  # which the statement itself assigns
    return ast.unparse(target) if isinstance(target, ast.Name | ast.Attribute) else ""
