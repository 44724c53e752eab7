"""One recorded run: forward, or forward and backward, with the edits that were asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from hookscope.edits.editor import Editor
from hookscope.execute import backward, forward, untouched
from hookscope.hooks import Recorder
from hookscope.losses.compute import Loss, compute
from hookscope.prepare import Prepared
from hookscope.records import Capture
from hookscope.tensors import map_tensors


@dataclass(frozen=True)
class Run:
    """What came of a run: the recording with the model's output, what was edited, the loss."""

    capture: Capture
    values: Editor
    gradients: Editor
    loss: Loss | None = None


def run_forward(prepared: Prepared, kinds: Iterable[str], max_bytes: int | None = None) -> Run:
    """Run the model once and record values, those of edited layers before and after.

    Raises:
        ForwardError: the model raised.
        CheckFailed: more than ``max_bytes`` would be recorded.
        EditError: an edit does not fit its layer, or changed nothing.
    """
    recorder = Recorder(prepared.module, prepared.layers, kinds, max_bytes=max_bytes)
    values = Editor(prepared.plan.values, prepared.seed, recorder)
    guard = untouched(prepared.module, train=prepared.train, seed=prepared.seed)
    with guard, torch.no_grad(), values, recorder as shot:
        shot.output = forward(prepared, recorder.capture)
    values.demand_effect()
    return Run(shot, values, Editor((), prepared.seed))


def run_backward(
    prepared: Prepared,
    kinds: Iterable[str],
    *,
    loss: str,
    target: Any,
    reduction: str | None,
    raw: bool,
    max_bytes: int | None = None,
) -> Run:
    """Run the model and a loss backward and record gradients, edited ones before and after.

    Raises:
        LossError: the loss or its target does not fit the output.
        ForwardError: the model raised, forward or backward.
        CheckFailed: more than ``max_bytes`` would be recorded.
        EditError: an edit does not fit its layer, or changed nothing.
    """
    recorder = Recorder(
        prepared.module, prepared.layers, kinds, model_input=True, max_bytes=max_bytes
    )
    values = Editor(prepared.plan.values, prepared.seed)
    gradients = Editor(prepared.plan.gradients, prepared.seed, recorder)
    guard = untouched(prepared.module, train=prepared.train, seed=prepared.seed)
    autograd = torch.enable_grad()
    with guard, torch.inference_mode(False), autograd, values, recorder as found, gradients:
        found.output = forward(prepared, recorder.capture)
        values.demand_effect()
        measured = compute(
            loss,
            found.output,
            target,
            reduction=reduction,
            raw=raw,
            categories=prepared.loaded.categories,
        )
        backward(prepared, measured.value, recorder.capture)
        recorder.ran_backward = True
    gradients.demand_effect()
    found.output = map_tensors(found.output, lambda path, tensor: tensor.detach())
    return Run(found, values, gradients, measured)
