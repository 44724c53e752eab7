"""Gradients that are NaN or infinite although the loss is finite: where they began and ended."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hookscope.execution.backward_failures.backward_watch import (
    INFINITE,
    NAN,
    BackwardWatch,
    NodeRun,
)
from hookscope.execution.backward_failures.code_sites import CallSite, shortened, span_of
from hookscope.execution.backward_failures.diagnosis import Diagnosis, lines_of, place_of
from hookscope.execution.backward_failures.module_names import ModuleNames
from hookscope.execution.backward_failures.source_patches import (
    ReplacedExpression,
    SourcePatch,
    StatementChange,
)
from hookscope.files.words import count_text, plural
from hookscope.results import failure

_MOST_NAMES = 3
_CHOOSING = ("WhereBackward", "MaskedFillBackward", "MulBackward", "IndexBackward")
_SMALL = {torch.float16: "1e-04"}  # in other dtypes 1e-12


class Remedy(NamedTuple):
    """What keeps an operation from values without a finite derivative.

    ``change`` is the argument after the change, or the divisor.
    """

    functions: tuple[str, ...]
    change: str
    advice: str


_POSITIVE = "{0}.clamp_min({1})"
_INSIDE = "{0}.clamp(-1 + 1e-6, 1 - 1e-6)"
REMEDIES = {
    "Sqrt": Remedy(("sqrt",), _POSITIVE, "sqrt has no finite derivative at 0"),
    "Rsqrt": Remedy(("rsqrt",), _POSITIVE, "rsqrt has no finite derivative at 0"),
    "Log": Remedy(("log",), _POSITIVE, "log has no finite derivative at 0"),
    "Log2": Remedy(("log2",), _POSITIVE, "log2 has no finite derivative at 0"),
    "Log10": Remedy(("log10",), _POSITIVE, "log10 has no finite derivative at 0"),
    "Pow": Remedy(
        ("pow", "float_power"), _POSITIVE, "a power under 1 has no finite derivative at 0"
    ),
    "Acos": Remedy(("acos", "arccos"), _INSIDE, "acos has no finite derivative at -1 and 1"),
    "Asin": Remedy(("asin", "arcsin"), _INSIDE, "asin has no finite derivative at -1 and 1"),
    "Div": Remedy(
        ("div", "true_divide"), "{0}.masked_fill({0} == 0, 1)", "a division by 0 has no derivative"
    ),
    "Reciprocal": Remedy(
        ("reciprocal",), "{0}.masked_fill({0} == 0, 1)", "a division by 0 has no derivative"
    ),
}


def diagnose_nonfinite(watch: BackwardWatch, names: ModuleNames) -> Diagnosis | None:
    """Return where the first gradient that is not finite began; None if all are finite."""
    bad = [run for run in watch.runs if run.got or run.gave]
    if not bad:
        return None
    if watch.start:
        said = f"The loss itself is {watch.start}."
        advice = "hookscope check names the layer whose values begin to be so."
        return Diagnosis(failure.NAN, (said,), suggestions=(advice,))
    births = [run for run in bad if not run.got]
    if bad[0].got and bad[0].parameter is None:
        return _diagnosis_without_birth(watch, bad[0], names)
    born = births[0] if births else bad[0]
    later = bad[bad.index(born) :]
    story = [_birth(watch, born, names)]
    sites = [watch.site_of(born.node)]
    if chooser := _chooser(watch, born):
        site = watch.site_of(chooser)
        why = "0 times infinity or NaN is NaN"
        story.append(f"{_subject(site, names)} gives it the gradient 0 there, and {why}.")
        sites.append(site)
    if born.gave == INFINITE and (turned := next((r for r in later if r.gave == NAN), None)):
        site = watch.site_of(turned.node)
        story.append(f"It became NaN in {_name(turned)}, the backward of {_subject(site, names)}.")
        sites.append(site)
    story.append(reached(_leaves(watch), names))
    story += _ended(watch, later, names, sites)
    remedy = _remedy_of(born)
    return Diagnosis(
        failure.NAN,
        tuple(story),
        lines_of(sites),
        tuple(repairs(watch.site_of(born.node), remedy, born.dtype)),
        (_advice(born, remedy),),
    )


def _diagnosis_without_birth(watch: BackwardWatch, first: NodeRun, names: ModuleNames) -> Diagnosis:
    """What is known if no single operation made the bad gradient."""
    site = watch.site_of(first.node)
    is_start = first is watch.runs[0]
    if is_start:
        start = f"The gradient that the backward pass begins with is {first.got}."
        advice = "look at the loss and at the gradient that backward() is given."
    else:
        start = f"The sum of the gradients at {_subject(site, names)} is {first.got}."
        advice = "scale the loss down, or compute this part in float32."
    return Diagnosis(
        failure.NAN, (start, reached(_leaves(watch), names)), lines_of([site]), (), (advice,)
    )


def _name(run: NodeRun) -> str:
    return str(run.node.name())


def _subject(site: CallSite | None, names: ModuleNames) -> str:
    """The operation at a line, in a sentence."""
    if site is None:
        return "an operation of an earlier step"
    what = f"`{site.text}`"
    if site.layer is not None and site.layer is not site.owner:
        what = names(site.layer)
    return f"{what} in {place_of(site, names)}"


def _birth(watch: BackwardWatch, born: NodeRun, names: ModuleNames) -> str:
    gave = "NaN" if born.gave == NAN else "infinity"
    text = f"{_name(born)}, the backward of {_subject(watch.site_of(born.node), names)},"
    text += f" got a finite gradient and returned {gave}"
    if born.saved:
        return f"{text}: {born.saved}."
    if born.dtype == torch.float16 and born.gave == INFINITE:
        return f"{text}: the largest float16 is 65,504."
    return f"{text}."


def _chooser(watch: BackwardWatch, born: NodeRun) -> object | None:
    """The operation that takes only some entries of the result of another, and 0 of the rest."""
    if born.gave != NAN or not born.from_zero:
        return None
    for run in watch.runs[: watch.runs.index(born)]:
        is_next = any(node is born.node for node, _ in run.node.next_functions)
        if is_next and _name(run).startswith(_CHOOSING):
            chooser: object = run.node
            return chooser
    return None


def _leaves(watch: BackwardWatch) -> dict[Tensor, str]:
    return {run.parameter: run.got for run in watch.runs if run.parameter is not None}


def reached(leaves: dict[Tensor, str], names: ModuleNames) -> str:
    """Return the sentence that says which parameters have it, of each what its gradient has."""
    at_input = [leaves.pop(one, "") for one in names.inputs]
    bad = [parameter for parameter, got in leaves.items() if got]
    if not bad:
        rest = f"None of {plural(len(leaves), 'parameter')} has it"
        return f"The input of the model has it. {rest}." if any(at_input) else f"{rest}."
    first = [names.of_parameter(one) for one in bad[:_MOST_NAMES]]
    if len(bad) == len(leaves):
        all_of_them = "The only parameter has it"
        if len(bad) > 1:
            all_of_them = f"All {plural(len(bad), 'parameter')} have it"
        some = ", the first are " if len(bad) > _MOST_NAMES else ": "
        return f"{all_of_them}{some}{_list(first)}."
    verb = "has" if len(bad) == 1 else "have"
    total = f"{count_text(len(bad))} of {plural(len(leaves), 'parameter')} {verb} it"
    finite = [names.of_parameter(one) for one, got in leaves.items() if not got]
    rest = f"finite are {_list(finite[:_MOST_NAMES])}{_more(len(finite))}"
    return f"{total}: {_list(first)}{_more(len(bad))}; {rest}."


def _list(texts: Sequence[str]) -> str:
    return ", ".join(texts)


def _more(count: int) -> str:
    return f" and {count_text(count - _MOST_NAMES)} more" if count > _MOST_NAMES else ""


def _ended(
    watch: BackwardWatch, later: Sequence[NodeRun], names: ModuleNames, sites: list[CallSite | None]
) -> Iterator[str]:
    """A sentence about the operations that got it and returned a finite gradient."""
    ends = [run for run in later if run.got and not run.gave and run.parameter is None]
    places = dict.fromkeys(watch.site_of(run.node) for run in ends)
    known = [site for site in places if site is not None][:_MOST_NAMES]
    if known:
        sites += known
        yield f"It ended at {_list([_subject(site, names) for site in known])}."


def _remedy_of(born: NodeRun) -> Remedy | None:
    return REMEDIES.get(_name(born).partition("Backward")[0])


def _advice(born: NodeRun, remedy: Remedy | None) -> str:
    if remedy is not None:
        return f"{remedy.advice}: change its argument there, before the function, not its result."
    if _name(born).startswith(("LinalgEig", "LinalgSvd")):
        return "equal eigenvalues or singular values have no derivative of their vectors."
    if "Softmax" in _name(born):
        return "a row with only -inf has no softmax: leave one entry, or leave the row out."
    if born.dtype == torch.float16 and born.gave == INFINITE:
        return "compute this part in float32, or scale the loss down."
    if born.saved:
        return "replace these entries before the operation, not in its result."
    return "compute this part in a wider dtype, or keep it from values without a derivative."


def repairs(
    site: CallSite | None, remedy: Remedy | None, dtype: torch.dtype | None
) -> Iterator[SourcePatch]:
    """Yield the change of the operation's argument, for gradients of a dtype."""
    statement = site.statement if site is not None else None
    expression = site.expression if site is not None else None
    if site is None or statement is None or expression is None:
        return
    if remedy is None or not remedy.change:
        return
    small = _SMALL.get(dtype, "1e-12") if dtype is not None else "1e-12"
    for node in ast.walk(expression):
        found = argument_of(node, remedy)
        if found is None or not isinstance(node, ast.expr):
            continue
        text = ast.unparse(found)
        if not isinstance(found, ast.Name | ast.Call | ast.Attribute):
            text = f"({text})"
        changed = ReplacedExpression(found, remedy.change.format(text, small))
        new = ast.unparse(changed.visit(copy.deepcopy(node)))
        whole = ast.unparse(changed.visit(copy.deepcopy(statement)))
        change = StatementChange(span_of(statement), instead=whole)
        yield SourcePatch(f"with `{shortened(new)}` there", site.file, (change,))


def argument_of(node: ast.AST, remedy: Remedy) -> ast.expr | None:
    """Return the argument that a call or an operator is to get changed; None for others."""
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Pow) and "pow" in remedy.functions:
            return node.left
        divides = isinstance(node.op, ast.Div) and {"div", "reciprocal"} & {*remedy.functions}
        return node.right if divides else None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr not in remedy.functions:
        return None
    is_division = "div" in remedy.functions
    if ast.unparse(node.func.value) in ("torch", "torch.special", "F"):
        values = node.args[1:] if is_division else node.args
    else:
        values = node.args if is_division else [node.func.value]
    return values[0] if values else None
