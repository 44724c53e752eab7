"""Run a model forward and a loss backward, and record the gradients."""

from __future__ import annotations

import functools
from typing import Annotated

from hookscope.api.public import PLAIN_LOSS, Only, public
from hookscope.execution.edit_effect import describe_effect
from hookscope.execution.objective import resolve_loss
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import Provenance
from hookscope.execution.recorded_run import run_backward
from hookscope.execution.size_estimate import check_recording_size
from hookscope.execution.verification import check_all_ran, verify_output_unchanged
from hookscope.hooks.capture import Capture
from hookscope.specs.command_options import GradsOptions
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.record_kinds import OP_GRAD
from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    LossRequest,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions
from hookscope.tensors.grad_mode import grad_mode


@public
def grads(
    loss: Annotated[LossRequest, Only(*PLAIN_LOSS.names, "penalty")],
    layers: LayerSelection,
    input: InputRequest,
    model: ModelRequest,
    run: Annotated[
        RunOptions, Only("seed", "dtype", "device", "device_map", "max_memory", "train")
    ],
    interventions: Interventions,
    options: GradsOptions,
) -> Capture:
    """Run a model forward and a loss backward; return the gradients at the selected layers.

    The gradient at the model's own input is always recorded. The model runs once more without
    hooks, and its output must be bit-identical; a non-deterministic model gets a warning, or with
    ``verify`` an error.

    Args:
        compare: run once more without edits, and report the change of every recorded gradient.
        hook_kind: besides ``forward`` and ``forward_pre``: ``backward``, called with
            ``(module, grad_input, grad_output)``, whose result replaces the gradient at the
            module's inputs; ``backward_pre``, ``(module, grad_output)``, the one at its outputs;
            ``tensor``, ``(grad)``, the same for one output tensor at a time.

    Raises:
        HookError: a hook raised; its ``capture`` has what was recorded before.
        LossError: the loss or its target does not fit the output.
        EditError: an edit cannot be read, does not fit its layer, or changed nothing.
        ForwardError: the model raised, forward or backward.
        CheckFailed: ``verify``, ``strict`` or ``max_bytes`` was not met.

    Example:
        >>> import hookscope
        >>> found = hookscope.grads("resnet18", loss="kl", target=3, layers=["fc"])
        >>> [record.key for record in found.records]
        ['fc/output.grad', 'fc/bias.grad', 'fc/weight.grad', './input.0.grad']
    """
    request = Request("grads", model, layers, input, run, interventions, loss)
    kinds = options.kinds | ({OP_GRAD} if options.ops else set())
    objective = resolve_loss(loss)
    prepared = prepare(request)
    check_recording_size(prepared, kinds, options.max_bytes)
    again = functools.partial(run_backward, kinds=kinds, objective=objective)
    with (
        Provenance("grads", prepared, request.chosen(options)) as provenance,
        grad_mode(True),
    ):
        backward = again(prepared, max_bytes=options.max_bytes)
        capture = provenance.capture = backward.capture
        verify_output_unchanged(
            prepared, capture.output, excuse_noise=not options.verify, recorded=len(capture)
        )
        capture.metadata = provenance.metadata() | backward.metadata
        capture.metadata |= describe_effect(prepared, backward, again, interventions.compare)
    if options.verify:
        capture.metadata["verified"] = True
    if options.strict:
        check_all_ran(capture)
    return capture
