"""Make one step of an optimizer, and record the update of every parameter."""

from __future__ import annotations

import functools
from typing import Annotated

from hookscope.api.public import PLAIN_LOSS, PLAIN_RUN, public
from hookscope.execution.edit_effect import describe_effect
from hookscope.execution.objective import resolve_loss
from hookscope.execution.optimizer_step import resolve_optimizer
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import Provenance
from hookscope.execution.recorded_run import run_step
from hookscope.execution.size_estimate import check_recording_size
from hookscope.execution.verification import check_all_ran, verify_output_unchanged
from hookscope.hooks.capture import Capture
from hookscope.specs.command_options import StepOptions
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.record_kinds import PARAM_GRAD
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
def step(
    options: StepOptions,
    loss: Annotated[LossRequest, PLAIN_LOSS],
    layers: LayerSelection,
    input: InputRequest,
    model: ModelRequest,
    run: Annotated[RunOptions, PLAIN_RUN],
    interventions: Interventions,
) -> Capture:
    """Make one step of an optimizer; return each parameter's gradient and its update.

    Runs the model forward, the loss backward, and a step of the ``torch.optim`` optimizer from its
    initial state, without momentum. Every parameter that requires grad is updated. Recorded are
    those of the selected layers: ``fc/weight.grad``, and ``fc/weight.update``, the value after the
    step minus the one before. The parameters, buffers and gradients of a live model are restored.

    Args:
        compare: make the step once more without edits and hooks, and report the change of every
            recorded gradient and update.
        hook_kind: besides those of ``grads``: ``step_pre`` and ``step_post``, called with
            ``(optimizer, args, kwargs)`` before and after the step. The update includes their
            changes to gradients and parameters.

    Raises:
        RequestError: there is no such optimizer or argument, or no parameter requires grad.
        LossError: the loss or its target does not fit the output.
        ForwardError: the model raised, forward or backward.
        CheckFailed: ``strict`` or ``max_bytes`` was not met.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Linear(4, 1)
        >>> made = hookscope.step(net, input=torch.ones(2, 4), loss="sum", lr=0.5)
        >>> made["./weight.grad"]
        tensor([[2., 2., 2., 2.]])
        >>> [record.key for record in made.records if record.kind == "param.update"]
        ['./bias.update', './weight.update']
    """
    request = Request("step", model, layers, input, run, interventions, loss)
    optimizer = resolve_optimizer(options.optimizer, options.lr, options.opt_args)
    objective = resolve_loss(loss)
    prepared = prepare(request)
    check_recording_size(prepared, {PARAM_GRAD}, options.max_bytes)
    again = functools.partial(run_step, objective=objective, optimizer=optimizer)
    with (
        Provenance("step", prepared, request.chosen(options)) as provenance,
        grad_mode(True),
    ):
        made = again(prepared, max_bytes=options.max_bytes)
        capture = provenance.capture = made.capture
        if prepared.interventions.passes_clones:
            verify_output_unchanged(
                prepared, capture.output, excuse_noise=True, recorded=len(capture)
            )
        capture.metadata = provenance.metadata() | made.metadata
        capture.metadata |= describe_effect(prepared, made, again, interventions.compare)
    if options.strict:
        check_all_ran(capture)
    return capture
