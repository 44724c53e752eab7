"""A tensor that a failed backward pass needed and found changed: its graph, and lines of the code.

The graph that failed still says which operation saved it and how often it was changed. Which line
changed it nobody has seen: the lines are those of the program that can have done it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from hookscope.execution.backward_failures.code_sites import CallSite
from hookscope.execution.backward_failures.diagnosis import (
    RENORM,
    Diagnosis,
    advice_against,
    change_in_words,
    lines_of,
    place_of,
)
from hookscope.execution.backward_failures.graph_nodes import differentiated, nodes_from, unreadable
from hookscope.execution.backward_failures.graph_observer import OVERWRITTEN, InPlaceChange
from hookscope.execution.backward_failures.in_place_changes import (
    assigned_subscript,
    changed_by,
    replacements,
    works_in_place,
)
from hookscope.execution.backward_failures.module_names import ModuleNames
from hookscope.execution.failures.frames import called_name
from hookscope.files.signatures import signature_of
from hookscope.files.words import join_or
from hookscope.results.failure import IN_PLACE
from hookscope.training.step_code import CodePart, recorded_line

_VERSION = re.compile(r"(?:output \d+ of (\w+), )?is at version (\d+)")
_MOST_LINES = 3  # that are named
# In the graph a change of a part is another operation than one of the whole.
_OF_PARTS = {"copyslices", "indexput", "maskedfill", "asstrided"}
_OTHER_NAMES = {"mult": "mul", "relu6": "hardtanh", "dropout": "mul", "bitand": "bitwiseand"}
_VIEWS = ("t", "transpose", "permute", "asstrided")
# How much is known of the tensor that a line changes.
_CERTAIN, _UNKNOWN, _ANOTHER = range(3)


@dataclass(frozen=True)
class _Candidate:
    """A line that changes a tensor in place, and the names that the change has in a graph."""

    change: InPlaceChange
    operations: set[str]
    rank: int

    @property
    def site(self) -> CallSite:
        """The line."""
        assert self.change.site is not None
        return self.change.site


@dataclass(frozen=True)
class _Broken:
    """The tensor, as far as the error and the graph say it.

    Attributes:
        node: the operation that saved it; None if it is not found.
        role: ``output``, ``input`` or ``weight``.
        version: how often it was changed when the backward pass failed.
        operations: names of the operations in the graph that may have changed it.
        parameters: the parameters that it may be.
    """

    node: Any
    role: str
    version: int
    operations: set[str]
    parameters: list[Tensor]


def diagnose_overwritten(
    error: BaseException, parts: list[CodePart], names: ModuleNames
) -> Diagnosis:
    """Return which operation saved the tensor, and which lines can have changed it."""
    broken = _broken(error)
    candidates = _likely([*_candidates(parts, broken)], broken)
    saver = recorded_line(broken.node)
    sites = [saver, *(one.site for one in candidates)]
    story = (_saving(broken, saver, names), _changing(candidates, names))
    return Diagnosis(IN_PLACE, story, lines_of(sites), (), (_advice(candidates, broken),))


def _broken(error: BaseException) -> _Broken:
    found = _VERSION.search(" ".join(str(error).split()))
    version, producer = (int(found[2]), _operation(found[1] or "")) if found else (0, "")
    nodes = nodes_from(differentiated(error))
    broken = ((n, name) for n in nodes for name in unreadable(n, OVERWRITTEN))
    node, name = next(broken, (None, ""))
    if name in ("_saved_result", "_saved_output") or producer == _operation_of(node):
        users = [one for one in nodes if any(other is node for other, _ in one.next_functions)]
        return _Broken(node, "output", version, set(map(_operation_of, users)), [])
    leaves = _leaves_behind(node) if producer in ("", *_VIEWS) else []
    weights = [one for one in leaves if one._version == version]
    role = "weight" if weights else "input"
    return _Broken(node, role, version, {producer} - {"", *_VIEWS}, weights)


def _operation(name: str) -> str:
    """The name of an operation as it can be compared: ``MaskedFillBackward0`` is maskedfill."""
    name = re.sub(r"Backwards?\d*$", "", name).replace("_", "").lower()
    return _OTHER_NAMES.get(name, name)


def _operation_of(node: Any) -> str:
    return "" if node is None else _operation(str(node.name()))


# Lines that change tensors


def _candidates(parts: list[CodePart], broken: _Broken) -> Iterator[_Candidate]:
    for part in parts:
        for node in part.nodes:
            if isinstance(node, ast.AugAssign | ast.Assign | ast.Call):
                for changed, name in _changes(node, part):
                    rank = _rank(part, changed, broken)
                    if rank is not None:
                        names = {_operation(name)} if name else _OF_PARTS
                        yield _Candidate(InPlaceChange(part.site(node), name), names, rank)
            if isinstance(node, ast.Call):
                yield from _calls_of_layers(node, part, broken)
                yield from _steps_of_optimizers(node, part, broken)


def _changes(
    node: ast.AugAssign | ast.Assign | ast.Call, part: CodePart
) -> Iterator[tuple[ast.expr, str]]:
    """What a node changes in place, and the operation; without a name if it assigns to a part."""
    if isinstance(node, ast.AugAssign):
        yield node.target, type(node.op).__name__
    elif isinstance(node, ast.Call):
        if (changed := _changed_by(node, part)) is not None:
            yield changed, called_name(node.func)
    elif (target := assigned_subscript(node)) is not None:
        yield target, ""


def _changed_by(call: ast.Call, part: CodePart) -> ast.expr | None:
    """What a call changes in place; None if it changes nothing."""
    if works_in_place(call) and not any(isinstance(one, type) for one in part.values_of(call.func)):
        return changed_by(call)
    function = getattr(functional, called_name(call.func), None)
    if callable(function) and len(call.args) > 1:
        try:
            position = [*signature_of(function).parameters].index("inplace")
        except (TypeError, ValueError):
            return None
        given = call.args[position : position + 1]
        return call.args[0] if given and getattr(given[0], "value", False) is True else None
    return None


def _rank(part: CodePart, changed: ast.expr, broken: _Broken) -> int | None:
    """How certain it is that an expression is the tensor; None if it is none."""
    root: ast.AST = changed
    values = part.values_of(root)
    while not values and isinstance(root, ast.Subscript | ast.Call | ast.Attribute):
        root = root.func if isinstance(root, ast.Call) else root.value
        values = part.values_of(root)
    if not values or any(isinstance(one, list | tuple | dict) for one in values):
        return _UNKNOWN
    tensors = [one for one in values if isinstance(one, Tensor)]
    if not tensors:
        is_number = all(isinstance(one, int | float | str | set) for one in values)
        return None if is_number else _UNKNOWN
    if any(not one.is_inference() and one._version == broken.version for one in tensors):
        return _CERTAIN
    return _ANOTHER


def _calls_of_layers(call: ast.Call, part: CodePart, broken: _Broken) -> Iterator[_Candidate]:
    """Calls of layers that work in place, or whose ``max_norm`` changes their weight."""
    for value in part.values_of(call.func):
        for layer in _plain_layers(value):
            if getattr(layer, "inplace", False) is True:
                kind = type(layer).__name__
                change = InPlaceChange(part.site(call, layer=layer), kind)
                yield _Candidate(change, {_operation(kind)}, _UNKNOWN)
            weight = layer._parameters.get("weight")
            if getattr(layer, "max_norm", None) and any(weight is p for p in broken.parameters):
                yield _Candidate(InPlaceChange(part.site(call), RENORM), set(), _CERTAIN)


def _plain_layers(value: Any) -> Iterator[nn.Module]:
    """A layer, or those of a Sequential."""
    if isinstance(value, nn.Sequential):
        for one in value._modules.values():
            yield from _plain_layers(one)
    elif isinstance(value, nn.Module):
        yield value


def _steps_of_optimizers(call: ast.Call, part: CodePart, broken: _Broken) -> Iterator[_Candidate]:
    """Calls of ``step`` of optimizers that have the parameter."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
        return
    values = [*part.values_of(call.func.value), *(v for a in call.args for v in part.values_of(a))]
    for optimizer in values:
        if isinstance(optimizer, Optimizer):
            own = [one for group in optimizer.param_groups for one in group["params"]]
            if any(one is p for one in own for p in broken.parameters):
                change = InPlaceChange(part.site(call, is_optimizer=True), "step")
                yield _Candidate(change, set(), _UNKNOWN)


def _likely(candidates: list[_Candidate], broken: _Broken) -> list[_Candidate]:
    """The candidates that fit best: by the operation in the graph, then by what is known."""
    fitting = candidates
    if broken.operations:
        fitting = [
            one
            for one in candidates
            if one.operations & broken.operations or "copyslices" in broken.operations
        ]
    best = min((one.rank for one in fitting or candidates), default=_UNKNOWN)
    chosen = [one for one in fitting or candidates if one.rank == best]
    return list({one.site: one for one in chosen}.values())[:_MOST_LINES]


# Sentences


def _saving(broken: _Broken, saver: CallSite | None, names: ModuleNames) -> str:
    if broken.node is None:
        return "An operation saved a tensor for the backward pass, which was changed in place."
    name = str(broken.node.name())
    leaves = _leaves_behind(broken.node)
    used = f" ({', '.join(map(names.of_parameter, leaves))})" if leaves else ""
    weights = [
        names.of_parameter(one) for one in leaves if any(one is p for p in broken.parameters)
    ]
    what = weights[0] if len(weights) == 1 else f"its {broken.role}"
    place = "" if saver is None else f" ({saver.where})"
    return f"{name}{used} saved {what} for the backward pass{place}, and it was changed in place."


def _leaves_behind(node: Any) -> list[Tensor]:
    """The parameters that an operation got, perhaps transposed."""
    found: list[Tensor] = []
    for behind, _ in () if node is None else node.next_functions:
        while behind is not None and _operation_of(behind) in _VIEWS:
            behind = behind.next_functions[0][0]
        found += [behind.variable] if hasattr(behind, "variable") else []
    return found


def _changing(candidates: list[_Candidate], names: ModuleNames) -> str:
    if not candidates:
        return "No line of the program's own code was found that changes such a tensor in place."
    texts = (
        f"{change_in_words(one.change, names)} in {place_of(one.site, names)}" for one in candidates
    )
    return f"It may have been changed by {join_or(list(dict.fromkeys(texts)))}."


def _advice(candidates: list[_Candidate], broken: _Broken) -> str:
    is_optimizer, is_weight = (
        any(one.site.is_optimizer for one in candidates),
        bool(broken.parameters),
    )
    patches = replacements(candidates[0].change) if len(candidates) == 1 else ()
    if (words := [patch.words for patch in patches]) and not (is_optimizer or is_weight):
        return f"try it {join_or(words)}."
    return advice_against(is_optimizer=is_optimizer, is_weight=is_weight)
