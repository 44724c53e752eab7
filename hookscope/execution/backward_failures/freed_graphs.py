"""A second backward pass through a graph that the first one has freed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from hookscope.execution.backward_failures.code_sites import (
    CallSite,
    shortened,
    site_of_error,
    span_of,
)
from hookscope.execution.backward_failures.detached_variables import (
    detached_in_loop,
    detached_where_used,
)
from hookscope.execution.backward_failures.diagnosis import (
    Diagnosis,
    NameOf,
    lines_of,
    place_of,
)
from hookscope.execution.backward_failures.graph_nodes import (
    differentiated,
    is_freed,
    nodes_from,
    number_of,
)
from hookscope.execution.backward_failures.graph_observer import BackwardPass, GraphObserver
from hookscope.execution.backward_failures.source_patches import SourcePatch, StatementChange
from hookscope.results.failure import FREED


def diagnose_freed(
    error: BaseException, observer: GraphObserver, name_of: NameOf
) -> Diagnosis | None:
    """Return which tensor still has the graph of an earlier backward pass."""
    nodes = nodes_from(differentiated(error))
    freed = [number_of(node) for node in nodes if is_freed(node)]
    if not freed:
        return None
    # The pass that failed has freed nodes, too, until it came to the one that was freed before.
    last = next(reversed(observer.passes.values()), None)
    earlier = [number for number in freed if observer.freed_by.get(number) is not last]
    # It is not known of a node without saved tensors which pass has freed it.
    known = [number for number in earlier if number in observer.freed_by]
    number = (known or earlier or freed)[0]
    first = observer.freed_by.get(number)
    number, user = _last_use(observer, nodes, first) or (number, -1)
    carried = user >= 0
    made, used = observer.node_sites.get(number), observer.node_sites.get(user)
    second = site_of_error(error)
    story = _story(made, used if carried else None, first, second, name_of)
    sites = [made, used, first.site if first else None, second]
    candidates: list[SourcePatch] = []
    if carried and second is not None:
        candidates += detached_in_loop(second)
    if carried and used is not None:
        candidates += detached_where_used(used, kept=True)
    if first is not None and first.site is not None:
        candidates += _retained(first.site)
    if carried and used is not None:
        candidates += detached_where_used(used, kept=False)
    suggestions = _SUGGESTIONS[carried]
    is_complete = made is not None and first is not None
    return Diagnosis(FREED, story, lines_of(sites), tuple(candidates), suggestions, is_complete)


def _last_use(
    observer: GraphObserver, nodes: list[Any], first: BackwardPass | None
) -> tuple[int, int] | None:
    """The last node that was made before a pass and is used by one that was made after it.

    Returns:
        The numbers of both; None if the pass that failed uses the same nodes as the first one.
    """

    def is_new(number: int) -> bool:
        if first is None:
            return number >= observer.first_node
        return observer.node_passes.get(number, 0) >= first.number

    for node in nodes:
        inputs = [number_of(one) for one, _ in node.next_functions if one is not None]
        old = [number for number in inputs if number >= 0 and not is_new(number)]
        if old and is_new(number_of(node)):
            return max(old), number_of(node)
    return None


_SUGGESTIONS = {
    True: ("detach() the tensor where the next step begins, or compute it again in each step.",),
    False: ("add the losses and call backward() once, or give the first one retain_graph=True.",),
}


def _story(
    made: CallSite | None,
    used: CallSite | None,
    first: BackwardPass | None,
    second: CallSite | None,
    name_of: NameOf,
) -> tuple[str, ...]:
    needs = "A backward pass" if second is None else f"`{second.text}` ({second.where})"
    origin = "an earlier step" if made is None else f"{place_of(made, name_of)}"
    freed = "an earlier backward pass"
    if first is not None and first.site is not None:
        freed = f"`{first.site.text}` in {first.site.where}"
    sentences = [f"{needs} needs the graph of {origin} again, which {freed} had freed."]
    if used is not None:
        sentences.append(
            f"A tensor of that graph was used after it, by `{used.text}` in"
            f" {place_of(used, name_of)}."
        )
    return tuple(sentences)


def _retained(first: CallSite) -> Iterator[SourcePatch]:
    """The change that lets the first pass keep the graph."""
    statement = first.statement
    for call in ast.walk(statement) if statement is not None else ():
        name = getattr(call.func, "attr", "") if isinstance(call, ast.Call) else ""
        if statement is None or not isinstance(call, ast.Call) or name not in ("backward", "grad"):
            continue
        text = ast.unparse(call)
        call.keywords.append(ast.keyword("retain_graph", ast.Constant(True)))
        change = StatementChange(span_of(statement), instead=ast.unparse(statement))
        words = f"with retain_graph=True in `{shortened(text)}` ({first.where})"
        yield SourcePatch(words, first.file, (change,))
