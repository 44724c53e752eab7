"""Why a backward pass of a program failed: from the graph that failed and the code of the step.

Nothing of the program is called again. What nobody has seen is not said: where several lines are
possible, they are named as such.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from traceback import walk_tb
from typing import Any, NamedTuple

import torch

from hookscope.execution.backward_failures.backward_watch import worst_value
from hookscope.execution.backward_failures.code_sites import CallSite
from hookscope.execution.backward_failures.custom_functions import (
    diagnose_custom_function,
    failed_node,
)
from hookscope.execution.backward_failures.diagnosis import Diagnosis, lines_of, place_of
from hookscope.execution.backward_failures.graph_nodes import differentiated, is_freed, nodes_from
from hookscope.execution.backward_failures.module_names import ModuleNames, names_in_variables
from hookscope.execution.backward_failures.nonfinite_gradients import (
    REMEDIES,
    Remedy,
    argument_of,
    reached,
    repairs,
)
from hookscope.files.frame_variables import variables_of
from hookscope.results.failure import (
    DDP,
    FREED,
    IN_PLACE,
    NAN,
    NO_GRADIENT,
    BackwardFailure,
    kind_of_failure,
)
from hookscope.tensors.torch_internals import DisableTorchFunction
from hookscope.training.cut_loss import diagnose_cut_loss
from hookscope.training.kept_graph import diagnose_kept_graph
from hookscope.training.last_passes import BackwardPass
from hookscope.training.overwritten_tensor import diagnose_overwritten
from hookscope.training.parameter_measures import values_of
from hookscope.training.step_code import CodePart, parts_of, recorded_line
from hookscope.training.unreduced_gradients import diagnose_reduction

_NAMED = re.compile(r"Function '(\w+)' returned nan")
_MOST_LINES = 3  # that are named
_EXACT = (
    "For the exact line, call torch.autograd.set_detect_anomaly(True) first, or let"
    " 'hookscope grads FILE.py:MODEL' try the model alone."
)
# Operations without a change that helps: those of casts are in every step of mixed precision.
_OTHERS = {
    "Softmax": Remedy(
        ("softmax",), "", "a row with only -inf has no softmax: leave one entry, or leave it out"
    ),
    "ToCopy": Remedy(
        ("float", "half", "bfloat16", "double", "to"),
        "",
        "a gradient beyond 65,504 is infinite in float16: compute this part in float32",
    ),
}


def explain_program_failure(
    error: BaseException, passes: Sequence[BackwardPass] = ()
) -> BackwardFailure | None:
    """Return the explanation of a backward pass that failed; None for any other error.

    Args:
        error: the exception that ends the program, with its traceback.
        passes: the last backward passes, if they were watched.
    """
    kind = kind_of_failure(error)
    if not kind:
        return None
    with DisableTorchFunction():
        diagnosis = _diagnosis(kind, error, passes)
    if diagnosis is None:
        return None
    note = _EXACT if kind in (IN_PLACE, NAN) and not torch.is_anomaly_enabled() else ""
    return replace(diagnosis.failure(), note=note)


def _diagnosis(kind: str, error: BaseException, passes: Sequence[BackwardPass]) -> Diagnosis | None:
    namespaces = [variables_of(frame) for frame, _ in walk_tb(error.__traceback__)]
    names, parts = names_in_variables(namespaces[::-1]), parts_of(error)
    if kind == IN_PLACE:
        return diagnose_overwritten(error, parts, names)
    if kind == FREED:
        return diagnose_kept_graph(error, parts, names, passes)
    if kind == NO_GRADIENT:
        return diagnose_cut_loss(error, parts, names)
    if kind == NAN:
        return _diagnose_nonfinite(error, parts, names)
    if kind == DDP:
        return diagnose_reduction(error, parts)
    return _diagnose_function(error, parts, names)


def _diagnose_function(
    error: BaseException, parts: list[CodePart], names: ModuleNames
) -> Diagnosis | None:
    nodes = nodes_from(differentiated(error))
    node = failed_node(error, [one for one in nodes if not is_freed(one)])
    if node is None:
        return None
    applied = list(_applied(type(node)._forward_cls, parts))
    site = recorded_line(node) or (applied[0] if len(applied) == 1 else None)
    return diagnose_custom_function(error, node, site, names)


def _applied(function: Any, parts: list[CodePart]) -> Iterator[CallSite]:
    """The calls in the code that apply a custom function."""
    for part in parts:
        for node in part.nodes:
            called = node.func if isinstance(node, ast.Call) else None
            if not isinstance(node, ast.Call) or getattr(called, "attr", "") != "apply":
                continue
            if any(one is function for one in part.values_of(getattr(called, "value", node))):
                yield part.site(node)


# Gradients that are not finite


class _Suspect(NamedTuple):
    """Lines with an operation of the graph that has no finite derivative somewhere."""

    operation: str
    remedy: Remedy | None
    sites: list[CallSite]


def _diagnose_nonfinite(
    error: BaseException, parts: list[CodePart], names: ModuleNames
) -> Diagnosis | None:
    nodes = nodes_from(differentiated(error))
    named = _NAMED.search(str(error))
    if named is not None:
        nodes = [node for node in nodes if str(node.name()) == named[1]]
        nodes = list(filter(_is_risky, nodes)) or nodes
    suspects = [one for one in _suspects(nodes, parts) if one.sites]
    if named is not None:
        lines = [line for node in nodes if (line := recorded_line(node))]
        suspects = suspects or [_Suspect(named[1], None, [])]
        suspects = [
            one._replace(operation=named[1], sites=lines[:_MOST_LINES] or one.sites)
            for one in suspects
        ]
    story = [_suspicion(one, names, is_certain=named is not None) for one in suspects]
    parameters = [one.variable for one in nodes if hasattr(one, "variable")]
    leaves = {
        one: "" if one.grad is None else worst_value([values_of(one.grad)]) for one in parameters
    }
    if any(leaves.values()):
        story.append(reached(leaves, names))
    if not story:
        return None
    sites = [site for one in suspects for site in one.sites]
    return Diagnosis(NAN, tuple(story), lines_of(sites), (), tuple(_advice(suspects)))


def _suspects(nodes: Iterable[Any], parts: list[CodePart]) -> list[_Suspect]:
    """The operations that may have made a gradient NaN, of the most likely kind."""
    graph = dict.fromkeys(str(n.name()).partition("Backward")[0] for n in nodes if _is_risky(n))
    for table in (REMEDIES, *({name: remedy} for name, remedy in _OTHERS.items())):
        found = [
            _Suspect(f"{name}Backward", table[name], _sites_of(table[name], parts))
            for name in graph
            if name in table
        ]
        if any(one.sites for one in found):
            return found
    return []


def _is_risky(node: Any) -> bool:
    """Whether an operation has no finite derivative somewhere; a square has one."""
    try:
        exponent = getattr(node, "_saved_exponent", None)
    except RuntimeError:  # a tensor that was freed
        return True
    return not (isinstance(exponent, int | float) and exponent >= 1)


def _sites_of(remedy: Remedy, parts: list[CodePart]) -> list[CallSite]:
    sites: dict[CallSite, None] = {}
    for part in parts:
        for node in part.nodes:
            if isinstance(node, ast.expr) and (changed := argument_of(node, remedy)) is not None:
                fixed = node.right if isinstance(node, ast.BinOp) else changed
                if not _is_harmless(fixed):
                    sites[part.site(node)] = None
    return list(sites)[:_MOST_LINES]


def _is_harmless(operand: ast.expr) -> bool:
    """Whether a divisor is a number other than 0, or an exponent of at least 1."""
    value = getattr(operand, "value", None) if isinstance(operand, ast.Constant) else None
    return isinstance(value, int | float) and value >= 1


def _suspicion(suspect: _Suspect, names: ModuleNames, *, is_certain: bool) -> str:
    places = [f"`{site.text}` in {place_of(site, names)}" for site in suspect.sites]
    where = " or ".join(places) if places else "an operation"
    if is_certain:
        return f"{suspect.operation}, the backward of {where}, returned NaN."
    assert suspect.remedy is not None
    return f"It may have begun at {where}: {suspect.remedy.advice}."


def _advice(suspects: list[_Suspect]) -> Iterator[str]:
    for one in suspects:
        patches = [p for site in one.sites for p in repairs(site, one.remedy, torch.float32)]
        if patches and len(one.sites) == 1:
            yield f"try it {patches[0].words}."
        elif one.remedy is not None and one.remedy.change:
            yield "change the argument there, before the function, not its result."
