"""Recording: hooks on chosen layers that keep what goes through them, values and gradients.

What is recorded is the value at that moment. Outputs are cloned as the module returns them and
inputs before it runs, so no later in-place change can show.

Gradients come from tensor hooks, since module backward hooks crash most models that work in place.
A forward hook hands on a clone of each output and listens to the clone: what arrives is the
gradient of the loss with respect to the value as returned. A pre-hook hands the module its own
clone of each input and listens to that: what arrives is the share that flows back through this
module alone.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.captures import Capture
from hookscope.coverage import summarize_coverage
from hookscope.hooks import HookSet, inside_backward, what_of
from hookscope.keeper import Keeper, Slot
from hookscope.kinds import (
    INPUT,
    INPUT_GRAD,
    OUTPUT,
    OUTPUT_GRAD,
    PARAM_GRAD,
    UNEDITED,
)
from hookscope.lending import Lent, give_back, memory_of, shared_memory
from hookscope.module_tree import ROOT
from hookscope.modules import Layer, layers_of
from hookscope.tensors import Path, closed_types, map_tensors, walk

log = logging.getLogger("hookscope")

UNFINISHED = "the run ended before it"
OFFLOADED = "offloaded: it holds no values but while its module runs"


@dataclass
class Call:
    """One call of a module that is under way. ``number`` is 0 for one that is not recorded."""

    number: int
    lent: list[Lent]
    handled: BaseException | None = None  # that which was being handled when it began


class Recorder:
    """Records the chosen layers of a model while the ``with`` block runs.

    Args:
        model: the model whose layers these are.
        layers: which modules to hook.
        kinds: what to keep, of ``output``, ``input``, ``output.grad``, ``input.grad`` and
            ``param.grad``.
        model_input: keep the gradient at the model's own input whatever else is chosen.
        max_bytes: stop with CheckFailed once more than this has been recorded.
        keeper: what keeps it, or only looks at it.

    Recording values changes nothing in the model. Recording gradients hands clones on, which a
    model notices if it counts on a tensor being the very one that it has elsewhere: it changes the
    result of a module in place and then reads what it was made of, say. ``doubts`` names the cases
    that can be seen from here; only a run without hooks is proof.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Iterable[Layer],
        kinds: Iterable[str],
        *,
        model_input: bool = False,
        max_bytes: int | None = None,
        keeper: Callable[[HookSet, int | None], Keeper] = Keeper,
    ) -> None:
        self.model = model
        self.layers = tuple(layers)
        self.kinds = frozenset(kinds)
        self.model_input = model_input
        self._hooks = HookSet(model)
        self.keeper = keeper(self._hooks, max_bytes)
        self.capture = self.keeper.capture
        self._calls: dict[nn.Module, int] = {}
        self._running: dict[nn.Module, list[Call]] = {}
        self._passed_on: list[tuple[str, Tensor, int]] = []
        self.ran_backward = False
        self.outside = "outside the loss"  # why no gradient came after a backward pass
        self._own = {layer.module for layer in self.layers} | {model}
        self._noticed: list[str] = []
        self._kept_of = self._wanted()

    def __deepcopy__(self, memo: dict[int, Any]) -> Recorder:
        return self  # the hooks of a model's copy are this recorder's, which knows them as foreign

    def __enter__(self) -> Capture:
        with self._hooks.attaching() as hooks:
            if hooks.stands_in_for_compiled:
                log.info("torch.compile: run without compiled code, in which no hook would fire")
            for layer, kinds in self._kept_of.items():
                self._attach(layer, kinds)
            if PARAM_GRAD in self.kinds:
                self._attach_parameters()
            self.keeper.open = True
        return self.capture

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.keeper.open = False
        self._hooks.__exit__()
        arrived = any(record.kind.endswith(".grad") for record in self.capture.records)
        ran = self.ran_backward or arrived
        reason = self.outside if ran else "backward() did not run"
        reason = reason if error is None else UNFINISHED
        for slot in self.keeper.waiting:
            # What is changed in place goes on as the tensor that it is a view of, and so do views
            # of that made before: their own place in the graph leads nowhere.
            shared = (
                ", but for tensors that share its memory"
                if slot.view and reason == self.outside
                else ""
            )
            self.keeper.miss(
                slot, reason + shared if self._calls.get(slot.layer.module) else "never ran"
            )
        self.capture.absent = tuple(self.keeper.absent)
        coverage = summarize_coverage(self.model, self.layers, self._calls)
        if error is not None:
            silent = tuple(replace(one, reason=UNFINISHED) for one in coverage.silent)
            coverage = replace(coverage, silent=silent)
        self.capture.coverage = coverage

    @property
    def doubts(self) -> list[str]:
        """Modules of which a tensor was changed in place that shares memory with another one."""
        changed = [name for name, clone, version in self._passed_on if clone._version != version]
        return list(dict.fromkeys((*changed, *self._noticed)))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing within the block: its backward passes belong to something else."""
        self.keeper.open = False
        try:
            yield
        finally:
            self.keeper.open = True

    def _wanted(self) -> dict[Layer, frozenset[str]]:
        """The layers to hook and what to keep of each."""
        wanted = dict.fromkeys(self.layers, self.kinds)
        if self.model_input:
            root = next((x for x in self.layers if x.name == ROOT), Layer(ROOT, self.model))
            wanted[root] = wanted.get(root, frozenset()) | {INPUT_GRAD}
        return wanted

    def _attach(self, layer: Layer, kinds: frozenset[str]) -> None:
        module = layer.module
        self._hooks.before(module, partial(self._before, layer, kinds))
        self._hooks.after(module, partial(self._after, layer, kinds), always=True)

    def _attach_parameters(self) -> None:
        """Listen to each distinct parameter of the chosen layers, under the first of its names."""
        owners: dict[nn.Parameter, list[tuple[Layer, str]]] = {}
        for layer in layers_of(self.model):
            for name, parameter in layer.module.named_parameters(recurse=False):
                owners.setdefault(parameter, []).append((layer, name))
        chosen = set(self.layers)
        for parameter, owned in owners.items():
            first = next((owner for owner in owned if owner[0] in chosen), None)
            if first is None:
                continue
            layer, name = first
            others = [owner for owner in owned if owner != first]
            slot = Slot(layer, 1, f"{name}.grad", PARAM_GRAD)
            if not parameter.requires_grad or parameter.is_meta:
                self.keeper.miss(slot, OFFLOADED if parameter.is_meta else "frozen")
                continue
            names = [(alias, name) for alias in layer.aliases]
            names += [(one, n) for x, n in others for one in (x.name, *x.aliases)]
            aliases = tuple(f"{module}/{n}" for module, n in names)
            self.keeper.listen_to_parameter(slot, parameter, aliases)

    def _before(
        self,
        layer: Layer,
        kinds: frozenset[str],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not self.keeper.open or layer.module not in self._own:
            return None
        module = layer.module  # which it is not in a replica of the model
        running = self._running.setdefault(module, [])
        if inside_backward():  # activation checkpointing runs a forward pass again: not a new call
            running.append(Call(0, []))
            return None
        number = self._calls[module] = self._calls.get(module, 0) + 1
        call = Call(number, [], sys.exc_info()[1])
        running.append(call)
        self.keeper.under_way += 1
        if INPUT in kinds:
            self._keep(layer, number, INPUT, (args, kwargs))
        if INPUT_GRAD not in kinds:
            return None
        self._tell_repeats(layer, number, INPUT, (args, kwargs))
        lent: tuple[tuple[Any, ...], dict[str, Any]]
        lent = map_tensors((args, kwargs), partial(self._lend, layer, call))
        return lent

    def _after(
        self,
        layer: Layer,
        kinds: frozenset[str],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> Any:
        if not self.keeper.open or layer.module not in self._own:
            return None
        running = self._running.get(layer.module)
        call = running.pop() if running else Call(0, [])
        if not call.number:
            return None
        self.keeper.under_way -= 1
        shared = shared_memory([lent.original for lent in call.lent])
        for lent in call.lent:
            if not give_back(lent) or (lent.changed and memory_of(lent.original) in shared):
                self._noticed.append(layer.name)
        if sys.exc_info()[1] is not call.handled:  # PyTorch calls this hook for a failure too
            self.keeper.miss(Slot(layer, call.number, OUTPUT, OUTPUT), "an error ended its call")
            return None
        if OUTPUT in kinds:
            self._keep(layer, call.number, OUTPUT, output)
        if OUTPUT_GRAD not in kinds:
            return None
        if OUTPUT not in kinds:
            self._tell_closed(layer, call.number, OUTPUT, OUTPUT_GRAD, output)
        held = list(module.buffers(recurse=False))
        older = {memory_of(t) for _, t in walk((args, kwargs, held))}
        older |= shared_memory([t for _, t in walk(output)])
        self._tell_repeats(layer, call.number, OUTPUT, output)
        return map_tensors(output, partial(self._pass_on, layer, call, older))

    def _keep(self, layer: Layer, call: int, kind: str, value: Any) -> None:
        """Record a clone of every tensor in ``value``."""
        for path, tensor in walk(value):
            self.keeper.keep(Slot(layer, call, what_of(kind, path), kind), tensor)
        self._tell_closed(layer, call, kind, kind, value)

    def keep_edited(
        self, layer: Layer, call: int, what: str, kind: str, before: Tensor, after: Tensor
    ) -> None:
        """Record a tensor as it was before an edit, and what went on where nothing else does."""
        kept = [(UNEDITED, before)]
        if kind not in self._kept_of.get(layer, ()):
            kept.append(("", after))
        for mark, tensor in kept:
            self.keeper.keep(Slot(layer, call, what + mark, kind + mark), tensor)

    def _tell_closed(self, layer: Layer, call: int, what: str, kind: str, value: Any) -> None:
        """Name what holds tensors out of reach, and an output without any tensor."""
        closed = closed_types(value)
        for name in closed:
            reason = f"a {name} object, which hookscope does not open"
            self.keeper.miss(Slot(layer, call, what, kind), reason)
        if what == OUTPUT and not closed and next(walk(value), None) is None:
            self.keeper.miss(Slot(layer, call, what, kind), "no tensor came out")

    def _lend(self, layer: Layer, call: Call, path: Path, tensor: Tensor) -> Tensor:
        """The module's own clone of an input, listened to."""
        kind = INPUT_GRAD
        slot = Slot(layer, call.number, f"{what_of(INPUT, path)}.grad", kind)
        original = tensor
        if layer.name == ROOT and _can_carry_gradient(tensor) and not tensor.requires_grad:
            own = tensor.detach()  # the caller's tensor stays as it is
            tensor = (own.clone() if own.is_inference() else own).requires_grad_()
        clone = self.keeper.listened(slot, tensor)
        if clone is not original:
            call.lent.append(Lent(original, clone, clone._version))
        return clone

    def _pass_on(
        self, layer: Layer, call: Call, older: set[int], path: Path, tensor: Tensor
    ) -> Tensor:
        """A clone of an output, listened to."""
        kind = OUTPUT_GRAD
        slot = Slot(layer, call.number, f"{what_of(OUTPUT, path)}.grad", kind)
        clone = self.keeper.listened(slot, tensor)
        if clone is not tensor and memory_of(tensor) in older:
            self._passed_on.append((layer.name, clone.detach(), clone._version))
        return clone

    def _tell_repeats(self, layer: Layer, call: int, kind: str, value: Any) -> None:
        """Name the places of a tensor that stands in ``value`` more than once.

        Self-attention is called with one tensor as query, key and value, and computes otherwise
        when they are not the same: so one clone stands in all three, with one gradient.
        """
        first: dict[int, str] = {}
        for path, tensor in walk(value):
            what = what_of(kind, path)
            if first.setdefault(id(tensor), what) != what:
                reason = f"the same tensor as {first[id(tensor)]}"
                self.keeper.miss(Slot(layer, call, f"{what}.grad", f"{kind}.grad"), reason)


def _can_carry_gradient(tensor: Tensor) -> bool:
    return torch.is_grad_enabled() and (tensor.is_floating_point() or tensor.is_complex())
