"""The user's own hooks in force: attached together, taken off together, and counted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from hookscope.hooks.layers import Layer
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.registry import HookSet
from hookscope.hooks.tensor_store import Keeper, Slot
from hookscope.hooks.user_hooks.binding import OwnHook
from hookscope.hooks.user_hooks.fitting import Fitting
from hookscope.specs.choices import GRADIENT_HOOKS, STEP_HOOKS
from hookscope.specs.record_kinds import EMITTED
from hookscope.tensors.interrupts import restoring

log = logging.getLogger("hookscope")


@restoring
def attached(
    model: nn.Module,
    hooks: Iterable[OwnHook],
    recorder: Recorder | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Iterator[None]:
    """Run ``hooks`` at their layers, or around the steps of ``optimizer``, within the block.

    Without a recorder nothing that they emit is kept.
    """
    keep = None if recorder is None else partial(_keep, recorder.keeper)
    fittings = {hook: [Fitting(hook, layer, keep) for layer in hook.layers] for hook in hooks}
    every = [fitting for fitted in fittings.values() for fitting in fitted]
    try:
        with HookSet(model) as hook_set:
            back = [fitting for fitting in every if fitting.hook.kind in GRADIENT_HOOKS]
            others = [fitting for fitting in every if fitting not in back]
            for fitting in (*others, *reversed(back)):  # a gradient meets first what came last
                if fitting.hook.kind not in STEP_HOOKS:
                    fitting.attach(hook_set)
                elif optimizer is not None:
                    fitting.attach_to_step(hook_set, optimizer)
            yield
    finally:
        for fitting in every:
            fitting.open = False
    if keep is not None:
        for hook, fitted in fittings.items():
            _tell(hook, [fitting.runs for fitting in fitted])


def _keep(keeper: Keeper, layer: Layer, call: int, name: str, tensor: Tensor) -> None:
    keeper.keep(Slot(layer, call, name, EMITTED), tensor)


def _tell(hook: OwnHook, runs: list[int]) -> None:
    if not any(runs):
        log.warning("hook %s (%s) never ran at any of %d layers", hook.label, hook.kind, len(runs))
        return
    times = f"{sum(runs)} time{'' if sum(runs) == 1 else 's'}"
    where = f" at {sum(map(bool, runs))} of {len(runs)} layer{'' if len(runs) == 1 else 's'}"
    place = "" if hook.kind in STEP_HOOKS else where
    log.info("hook: %s (%s) ran %s%s", hook.label, hook.kind, times, place)
