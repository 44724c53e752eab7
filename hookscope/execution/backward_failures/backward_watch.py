"""Watches backward passes: what each node of the graph got, and what it returned.

The nodes get their hooks when a backward pass begins, so the forward pass has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.execution.backward_failures.code_sites import CallSite
from hookscope.execution.backward_failures.graph_nodes import nodes_from, number_of
from hookscope.execution.backward_failures.graph_observer import GraphObserver
from hookscope.files.signal_safety import SignalSafeContext
from hookscope.hooks.hook_set import LastingHooks
from hookscope.hooks.process_hooks import Undo, around_function
from hookscope.tensors.nested import walk

NAN, INFINITE, FINITE = "NaN", "infinite", ""


@dataclass(frozen=True, eq=False)
class NodeRun:
    """A node that has run.

    Attributes:
        node: the node.
        got: the worst value of the gradients that it got: ``NaN``, ``infinite`` or nothing.
        gave: that of the gradients that it returned.
        dtype: of the gradient that it returned, or got.
        saved: how many of the entries that it had saved are special, in words.
        from_zero: whether it got 0 for each entry that it made NaN.
    """

    node: Any
    got: str
    gave: str
    dtype: torch.dtype | None
    saved: str = ""
    from_zero: bool = False

    @property
    def parameter(self) -> Tensor | None:
        """The tensor to which a node adds the gradient; None for any other node."""
        return getattr(self.node, "variable", None)


def worst_value(tensors: Iterable[Tensor | None]) -> str:
    """Return ``NaN`` or ``infinite`` if a tensor has such an entry; else nothing."""
    worst = FINITE
    for tensor in tensors:
        if tensor is None or not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        if bool(tensor.isnan().any()):
            return NAN
        if not bool(tensor.isfinite().all()):
            worst = INFINITE
    return worst


def _is_from_zero(given: Sequence[Tensor | None], got: Sequence[Tensor | None]) -> bool:
    """Whether the gradient that a node got is 0 wherever the one that it returned is NaN."""
    first, only = given[0], got[0] if len(got) == 1 else None
    if first is None or only is None or first.shape != only.shape:
        return False
    return not bool(only[first.isnan()].any())


class BackwardWatch(SignalSafeContext["BackwardWatch"]):
    """Notes the nodes that run in backward passes while the ``with`` block runs.

    PyTorch's own search for NaN would raise at the first, so it is off meanwhile.

    Attributes:
        graph: the observer of the forward pass.
        runs: the nodes in the order in which they ran.
        nodes: the nodes of all graphs that were differentiated, the last made first.
        start: ``NaN`` or ``infinite`` if a tensor that was differentiated is so; else nothing.
    """

    def __init__(self) -> None:
        self.graph = GraphObserver(skips_functions=True)
        self.runs: list[NodeRun] = []
        self.nodes: list[Any] = []
        self.start = FINITE
        self._hooks = LastingHooks(nn.Module())
        self._undo: list[Undo] = []
        self._anomaly = False, True

    def _enter(self) -> BackwardWatch:
        self._anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
        self.graph.__enter__()
        self._hooks.__enter__()
        for name in ("backward", "grad"):
            self._undo.append(around_function(torch.autograd, name, before=self._begin))
        return self

    def _leave(self, *error: object) -> None:
        while self._undo:
            self._undo.pop()()
        self._hooks.__exit__(None, None, None)
        self.graph.__exit__(None, None, None)
        torch.autograd.set_detect_anomaly(*self._anomaly)

    def site_of(self, node: Any) -> CallSite | None:
        """Return the line that made a node."""
        return self.graph.node_sites.get(number_of(node))

    def _begin(self, *args: Any, **kwargs: Any) -> None:
        torch.autograd.set_detect_anomaly(False)
        given = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
        roots = [tensor for _, tensor in walk(given)]
        self.start = self.start or worst_value(roots)
        new = [node for node in nodes_from(roots) if node not in self.nodes]
        self.nodes += new
        for node in new:
            self._hooks.listen_to_node(node, _Listener(self, node))

    def note(self, node: Any, given: Any, got: Any) -> None:
        """Note that a node has run, with the gradients that it returned and those that it got."""
        gradients = [one for one in (*given, *got) if isinstance(one, Tensor)]
        dtype = gradients[0].dtype if gradients else None
        run = NodeRun(node, worst_value(got), worst_value(given), dtype)
        if run.gave and not run.got:
            special = "; ".join(dict.fromkeys(self._special(node)))
            run = replace(run, saved=special, from_zero=_is_from_zero(given, got))
        self.runs.append(run)

    def _special(self, node: Any) -> Iterator[str]:
        """What is special in the tensors that a node has saved."""
        for saved in self.graph.saved_by(number_of(node)):
            values = saved.tensor
            if not values.is_floating_point():
                continue
            counts = {
                "NaN": int(values.isnan().sum()),
                "infinite": int(values.isinf().sum()),
                "0": int((values == 0).sum()),
            }
            for what, count in counts.items():
                if count:
                    yield f"its {saved.role} is {what} in {count:,} of {values.numel():,} entries"


@dataclass(frozen=True)
class _Listener:
    """The hook of a node."""

    watch: BackwardWatch
    node: Any

    def __call__(self, given: Any, got: Any) -> None:
        self.watch.note(self.node, given, got)
