"""A backward pass through a graph that was freed: which variable still has it, and from where."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hookscope.execution.backward_failures.code_sites import (
    CallSite,
    is_of_program,
    site_at,
    site_of_error,
)
from hookscope.execution.backward_failures.diagnosis import Diagnosis, lines_of, place_of
from hookscope.execution.backward_failures.graph_nodes import (
    differentiated,
    is_freed,
    nodes_from,
    number_of,
)
from hookscope.execution.backward_failures.loops import (
    assigned_in,
    loops_around,
    read_before_written,
)
from hookscope.execution.backward_failures.module_names import ModuleNames
from hookscope.results.failure import FREED
from hookscope.tensors.nested import walk
from hookscope.training.last_passes import BackwardPass
from hookscope.training.step_code import SIMPLE, CodePart, last_assignment

_ONE_GRAPH = "add the losses and call backward() once, or give the first one retain_graph=True."
_CARRIED = "detach() it where the next step begins"


class _Kept(NamedTuple):
    """A variable that has a part of the graph, the line that sets it, and what helps."""

    name: str
    site: CallSite
    advice: str = ""


def diagnose_kept_graph(
    error: BaseException, parts: list[CodePart], names: ModuleNames, passes: Sequence[BackwardPass]
) -> Diagnosis:
    """Return the backward pass before the one that failed, and the variable that both use."""
    second, first = site_of_error(error), _site_of(passes[-2]) if len(passes) > 1 else None
    needs = "A backward pass" if second is None else f"`{second.text}` ({second.where})"
    story = [f"{needs} needs a graph that an earlier backward pass has freed."]
    if first is not None:
        story.append(f"The last backward() before it was `{first.text}` in {first.where}.")
    freeing = next(_freeing_calls(parts), None)
    if freeing is not None:
        story.append(f"`{freeing.text}` in {freeing.where} may have freed it too.")
    graph = differentiated(error)
    states = [*_states(parts, passes)]
    kept = next(_variables(graph, parts, passes), None) or next(iter(states), None)
    if kept is not None:
        made = f"`{kept.site.text}` in {place_of(kept.site, names)}"
        story.append(f"`{kept.name}` has a part of that graph, from {made}.")
    advice = next((one.advice for one in states if kept and one.name == kept.name), _ONE_GRAPH)
    lines = lines_of([kept.site if kept else None, first, freeing, second])
    return Diagnosis(FREED, tuple(story), lines, (), (advice,))


def _freeing_calls(parts: list[CodePart]) -> Iterator[CallSite]:
    """Yield the calls of ``torch.autograd.grad`` that keep no graph."""
    for part in parts:
        for node in part.nodes:
            if not isinstance(node, ast.Call) or "grad" not in ast.unparse(node.func):
                continue
            keeps = any(
                one.arg in ("create_graph", "retain_graph") and ast.unparse(one.value) != "False"
                for one in node.keywords
            )
            is_grad = any(one is torch.autograd.grad for one in part.values_of(node.func))
            if is_grad and not keeps:
                yield part.site(node)


def _site_of(started: BackwardPass) -> CallSite | None:
    calls = [call for call in started.calls if is_of_program(call[0])]
    return site_at(*calls[0]) if calls else None


def _variables(
    roots: list[Tensor], parts: list[CodePart], passes: Sequence[BackwardPass]
) -> Iterator[_Kept]:
    """Yield variables from before the backward pass before, whose graph it has freed."""
    if len(passes) < 2:
        return
    nodes = set(nodes_from(roots))
    found: list[tuple[bool, int, CodePart, str]] = []
    for part in parts:
        for name in _assigned_names(part) if part.line else ():
            for _, tensor in walk(part.variables.get(name)):
                node = tensor.grad_fn
                if node in nodes and number_of(node) < passes[-2].first_node:
                    found.append((is_freed(node), number_of(node), part, name))
    for _, _, part, name in sorted(found, key=lambda one: one[:2], reverse=True):
        if statement := last_assignment(part.nodes, name, part.line):
            yield _Kept(name, part.site(statement))


def _assigned_names(part: CodePart) -> set[str]:
    return {name for node in part.nodes if isinstance(node, SIMPLE) for name in assigned_in(node)}


def _states(parts: list[CodePart], passes: Sequence[BackwardPass]) -> Iterator[_Kept]:
    """Yield tensors that the next round of a loop, or the next call of a method, begins with."""
    for part in parts:
        loops = list(loops_around(part.scope, part.line)) if part.line else []
        for loop in reversed(loops):
            where = f"at the start of the loop in line {loop.lineno}"
            yield from _carried(part, loop.body, where, passes)
    for part in parts:
        if isinstance(part.scope, ast.FunctionDef):
            for kept in _carried(part, part.scope.body, "", passes):
                if "." in kept.name:  # other variables do not outlast the call
                    yield kept


def _carried(
    part: CodePart, body: list[ast.stmt], where: str, passes: Sequence[BackwardPass]
) -> Iterator[_Kept]:
    inside = [n for one in body for n in ast.walk(one)]
    for name in read_before_written(body):
        values = part.values_of(ast.parse(name, mode="eval").body)
        tensors = [tensor for value in values for _, tensor in walk(value)]
        statement = last_assignment(inside, name, part.line)
        if statement is not None and any(_is_older(one, passes) for one in tensors):
            place = f", such as {where}" if where else ""
            form = f" with `{name} = {name}.detach()`" if isinstance(values[0], Tensor) else ""
            yield _Kept(name, part.site(statement), f"{_CARRIED}{place}{form}.")


def _is_older(tensor: Tensor, passes: Sequence[BackwardPass]) -> bool:
    """Whether a graph has a part from before the backward pass before, if that is known."""
    if len(passes) < 2:
        return tensor.grad_fn is not None
    return any(0 <= number_of(node) < passes[-2].first_node for node in nodes_from([tensor]))
