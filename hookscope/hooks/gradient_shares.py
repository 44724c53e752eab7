"""A module's share of the gradient at its input: what flows back through this module alone.

It is the sum of the gradients from the graph's nodes that use the tensor within one call of the
module. Autograd numbers the nodes that a thread creates, so the numbers tell the call of a node.
The nodes are found from what the outermost call returns. Where the numbers show that nodes are
missing (of a loss that a module stores, for example), the search starts from every living tensor.
"""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node

from hookscope.hooks.hook_set import HookSet
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.input_clones import InputClone, clone_preserving_strides
from hookscope.tensors.nested import distinct_tensors, is_functorch_tensor, map_tensors
from hookscope.tensors.torch_internals import current_graph_task_id, next_sequence_nr

Edge = tuple[Node, int]
Report = Callable[[Tensor], None]


@dataclass(eq=False)
class GradientShare:
    """The part of the gradient at a tensor that belongs to one call of a module."""

    report: Report
    first: int
    last: float = math.inf
    give_up: Callable[[], None] | None = None
    _whole: bool = False
    _uses: int = 0
    _parts: int = 0
    _sum: Tensor | None = None
    _pass: int = -1

    def is_whole(self, uses: list[TensorUse]) -> bool:
        """Whether all uses of the tensor belong to it, including later ones."""
        return self.last == math.inf and all(use.number >= self.first for use in uses)

    def resolve(self, uses: list[TensorUse]) -> list[TensorUse]:
        """Return the ``uses`` of the tensor to add up; none if it is the total."""
        self._whole = self.is_whole(uses)
        mine = [use for use in uses if not self._whole and self.first <= use.number < self.last]
        self._uses = len(mine)
        return mine

    def add(self, part: Tensor | None) -> None:
        """Add one part; the last one completes the sum."""
        current = current_graph_task_id()
        if self._pass != current:  # an earlier pass may have ended before it was complete
            self._sum, self._parts, self._pass = None, 0, current
        if part is not None:
            self._sum = part if self._sum is None else self._sum + part
        self._parts += 1
        if self._parts == self._uses:
            self._finish(self._sum)

    def arrived(self, total: Tensor | None) -> None:
        """The gradient at the tensor is complete, from all of its uses together."""
        part = self._sum if self._pass == current_graph_task_id() else None
        self._finish(total if self._whole else part)

    def _finish(self, grad: Tensor | None) -> None:
        self._sum, self._parts = None, 0
        if grad is not None:
            self.report(grad)


@dataclass(frozen=True)
class TensorUse:
    """A node that takes a tensor as its argument ``index``."""

    number: int
    node: Node
    index: int


@dataclass
class _Thread(threading.local):
    """The open calls of one thread."""

    depth: int = 0
    start: int = 0
    own: int = 0  # nodes that this file created, which nothing uses
    shares: list[tuple[Edge, GradientShare]] = field(default_factory=list)


class GradientShares:
    """Collects the shares of a recording, one outermost call after the other."""

    def __init__(self, hooks: HookSet) -> None:
        self._hooks = hooks
        self._here = _Thread()

    def enter(self, returned: Any = None) -> int:
        """A call begins; returns the number of the first node that it may create."""
        here = self._here
        nodes = [tensor.grad_fn for tensor in distinct_tensors(returned).values()]
        numbers = [node._sequence_nr() for node in nodes if node is not None]
        first = min([next_sequence_nr(), *numbers])
        if here.depth == 0:
            here.start, here.own = first, 0
        here.depth += 1
        return first

    def abandon(self) -> None:
        """An interrupt has ended a call."""
        self._here.depth -= 1
        if self._here.depth == 0:
            self._here.shares.clear()

    def edge(self, tensor: Tensor) -> Edge:
        """The place of a tensor in the graph."""
        node = tensor.grad_fn
        if node is None:  # a leaf: only a node that uses it leads to the one that accumulates
            before = next_sequence_nr()
            with grad_mode(True):
                node = _any_use(tensor).next_functions[0][0]
            self._here.own += next_sequence_nr() - before
        assert node is not None
        return node, tensor.output_nr

    def add(self, edge: Edge, share: GradientShare) -> None:
        """Look for the uses of the tensor at ``edge`` when the outermost call ends."""
        self._here.shares.append((edge, share))

    def leave(self) -> bool:
        """A call ends; returns whether it is the outermost, and there are shares to resolve."""
        here = self._here
        here.depth -= 1
        return not here.depth and bool(here.shares)

    def resolve(self, output: Any, given: Iterable[Tensor]) -> Any:
        """Find the uses of all tensors that were added. The outermost call has ended."""
        here = self._here
        shares, here.shares = here.shares, []
        created = next_sequence_nr() - here.start - here.own
        leaving = [x for x in distinct_tensors(output).values() if x.requires_grad]
        uses = _ShareSearch({edge for edge, _ in shares}, here.start).run(leaving, created)
        clones: dict[int, Tensor] = {}
        for tensor in leaving:
            edge = self.edge(tensor)
            mixed = [s for e, s in shares if e == edge and not s.is_whole(uses[e])]
            mixed = [share for share in mixed if share.last == math.inf]
            if not mixed:
                continue
            if tensor.is_leaf or tensor._is_view() or any(tensor is one for one in given):
                for share in mixed:  # its identity matters more
                    shares.remove((edge, share))
                    if share.give_up is not None:
                        share.give_up()
                continue
            clone = clones[id(tensor)] = InputClone.of(
                tensor, clone_preserving_strides(tensor)
            ).clone
            assert clone.grad_fn is not None
            node = clone.grad_fn
            places = [n for n, other in enumerate(node.next_functions) if other == edge]
            uses[edge] += [TensorUse(node._sequence_nr(), node, n) for n in places]
        reports: dict[Node, list[tuple[int, GradientShare]]] = {}
        for edge, share in shares:  # the inner one of two calls comes first
            for use in share.resolve(uses[edge]):
                reports.setdefault(use.node, []).append((use.index, share))
        for node, parts in reports.items():
            self._hooks.listen_to_node(node, partial(_spread, parts))
        return map_tensors(output, lambda path, tensor: clones.get(id(tensor), tensor))


def is_newest(tensor: Tensor) -> bool:
    """Whether this thread created nothing in the graph after a tensor, and so nothing uses it."""
    node = tensor.grad_fn
    return node is not None and node._sequence_nr() == next_sequence_nr() - 1


def _spread(
    parts: list[tuple[int, GradientShare]],
    grad_inputs: tuple[Tensor | None, ...],
    grad_outputs: object,
) -> None:
    for index, share in parts:
        share.add(grad_inputs[index])


def _any_use(tensor: Tensor) -> Node:
    used = tensor.clone() if tensor.is_nested else tensor.view_as(tensor)
    assert used.grad_fn is not None
    return used.grad_fn


class _ShareSearch:
    """Finds the uses of tensors among the nodes from the number ``start`` on."""

    def __init__(self, edges: Iterable[Edge], start: int) -> None:
        self.uses: dict[Edge, list[TensorUse]] = {edge: [] for edge in edges}
        self.start = start
        self._seen: set[Node] = set()
        self._end = next_sequence_nr()
        self._found = 0

    def run(self, outputs: Iterable[Tensor], created: int) -> dict[Edge, list[TensorUse]]:
        """Search from ``outputs``, and from every tensor if that finds fewer than ``created``."""
        self._from(outputs)
        if self._found < created:
            self._from(_living())
        for found in self.uses.values():
            found.sort(key=lambda use: (-use.number, use.index))
        return self.uses

    def _from(self, tensors: Iterable[Tensor]) -> None:
        waiting = [tensor.grad_fn for tensor in tensors]
        while waiting:
            node = waiting.pop()
            if node is None or node in self._seen:
                continue
            self._seen.add(node)
            number = node._sequence_nr()
            if number < self.start:
                continue
            self._found += number < self._end
            for index, edge in enumerate(node.next_functions):
                if edge in self.uses:
                    self.uses[edge].append(TensorUse(number, node, index))
                waiting.append(edge[0])


def _living() -> Iterator[Tensor]:
    """Every Python tensor that requires grad."""
    kinds: dict[type, bool] = {}  # checking each class once is several times faster
    for thing in gc.get_objects():
        kind = type(thing)
        if kind not in kinds:
            kinds[kind] = Tensor in kind.__mro__
        if kinds[kind] and not is_functorch_tensor(thing) and thing.requires_grad:
            yield thing
