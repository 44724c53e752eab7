"""Make one step of an optimizer, and record the update of every parameter."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any

import click

from hookscope.cli import options
from hookscope.cli.commands import Example
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.output_file import RECORDING
from hookscope.cli.runner import run_recording
from hookscope.specs.command_options import StepOptions
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.public import PLAIN_LOSS, PLAIN_RUN, public
from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    LossRequest,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions
from hookscope.specs.tensor_key import PARAM_GRAD

if TYPE_CHECKING:
    from hookscope.hooks.capture import Capture


@public
def step(
    options: StepOptions,
    loss: Annotated[LossRequest, PLAIN_LOSS],
    layers: LayerSelection,
    input: InputRequest,
    model: ModelRequest,
    run: Annotated[RunOptions, PLAIN_RUN],
    interventions: Interventions,
    request: Request,
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
    from hookscope.execution.edit_effect import describe_effect
    from hookscope.execution.objective import resolve_loss
    from hookscope.execution.optimizer_step import resolve_optimizer
    from hookscope.execution.prepare import prepare
    from hookscope.execution.provenance import Provenance
    from hookscope.execution.recorded_run import run_step
    from hookscope.execution.trial_pass import check_recording_size
    from hookscope.execution.verification import check_all_ran, verify_output_unchanged
    from hookscope.tensors.grad_mode import grad_mode

    optimizer = resolve_optimizer(options.optimizer, options.lr, options.opt_args)
    objective = resolve_loss(loss, any_output=True)
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


EXAMPLES = (
    Example(
        "hookscope step sample_models/digits.py:trained --optimizer adam --lr 0.001",
        "Adam's first update of each parameter of a trained model.",
    ),
    Example(
        "hookscope step sample_models/digits_exported.pt2 --optimizer rmsprop -l fc",
        "An exported file; all parameters are updated, those of one layer are recorded.",
    ),
    Example(
        "hookscope step sample_models/two_steps.py:TwoSteps --loss sum --lr 0.1"
        " --opt-arg weight_decay=0.5",
        "Gradient descent with weight decay, small enough to check by hand.",
    ),
)


@command(
    "step",
    options.model,
    options_of(StepOptions, "optimizer", "lr", "opt_args"),
    options.loss,
    options.layers,
    options.inputs,
    options.texts,
    options.interventions_of("step"),
    options.run,
    options_of(StepOptions, "strict", "max_bytes"),
    RECORDING.options,
    table_options,
    views="step",
    examples=EXAMPLES,
    main="optimizer lr opt-arg loss target input model-arg output",
    also="no-output compare grad-edit hook hook-kind",
    topics="model-specs layers inputs weights losses edits hooks keys",
)
def step_command(ctx: click.Context, **values: Any) -> None:
    """Run one optimizer step and record the parameter updates.

    Runs the model forward, the loss backward and one step of a new torch optimizer. Writes the
    gradient and the update (new minus old value) of each parameter of the selected layers to a
    safetensors file, and prints their norms and the ratio of update to weight. Without --loss, it
    is cross-entropy, or the sum of an output of one score.
    """
    run_recording(ctx, step, values)
