"""Watches a step of a model in DistributedDataParallel, without other processes.

The model in it is called itself, and a backward pass only notes which parameters it would reach.
Use it in a copy of the process: the step does not go on as the program would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointFunction

from hookscope.execution.backward_failures.code_sites import CallSite, site_of_call
from hookscope.execution.backward_failures.graph_nodes import nodes_from
from hookscope.files.signal_safety import SignalSafeContext
from hookscope.hooks.process_hooks import Undo, around_function, before_any_call
from hookscope.tensors.nested import walk

_COLLECTIVES = ("all_reduce", "barrier", "broadcast", "reduce")


@dataclass(frozen=True, eq=False)
class WatchedCall:
    """A call of a module: its line, and the line of the reentrant checkpoint around it."""

    site: CallSite | None
    checkpoint: CallSite | None
    with_grad: bool


@dataclass(frozen=True, eq=False)
class ReachedParameters:
    """The parameters that a backward pass would reach, and the line that calls it."""

    site: CallSite | None
    parameters: frozenset[Tensor]


class ReductionWatch(SignalSafeContext["ReductionWatch"]):
    """Notes the calls of modules and the parameters that backward passes would reach.

    Attributes:
        calls: the calls of each module.
        passes: the backward passes, in order.
    """

    def __init__(self) -> None:
        self.calls: dict[nn.Module, list[WatchedCall]] = {}
        self.passes: list[ReachedParameters] = []
        self._checkpoints: list[CallSite | None] = []
        self._undo: list[Undo] = []

    def _enter(self) -> ReductionWatch:
        self._undo += [
            before_any_call(self._note_call),
            around_function(CheckpointFunction, "apply", self._begin, self._end),
            _replaced(DistributedDataParallel, "forward", _call_directly),
            _replaced(torch.autograd, "backward", self._note_pass),
            *(_replaced(torch.distributed, name, _nothing) for name in _COLLECTIVES),
        ]
        return self

    def _leave(self, *error: object) -> None:
        while self._undo:
            self._undo.pop()()

    def _note_call(self, module: nn.Module) -> None:
        checkpoint = self._checkpoints[-1] if self._checkpoints else None
        with_grad = torch.is_grad_enabled() or checkpoint is not None
        call = WatchedCall(site_of_call(), checkpoint, with_grad)
        self.calls.setdefault(module, []).append(call)

    def _begin(self, *args: Any) -> None:
        self._checkpoints.append(site_of_call())

    def _end(self, result: Any, *args: Any) -> None:
        self._checkpoints.pop()

    def _note_pass(self, tensors: Any = (), *args: Any, **kwargs: Any) -> None:
        nodes = nodes_from([tensor for _, tensor in walk(tensors)])
        reached = (getattr(node, "variable", None) for node in nodes)
        parameters = frozenset(one for one in reached if one is not None)
        self.passes.append(ReachedParameters(site_of_call(), parameters))


def _replaced(owner: Any, name: str, function: Callable[..., Any]) -> Undo:
    before = getattr(owner, name)
    setattr(owner, name, function)
    return lambda: setattr(owner, name, before)


def _call_directly(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
    return self.module(*args, **kwargs)


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None
