"""Run a model forward and a loss backward, and record the gradients."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Annotated, Any

import click

from hookscope.cli import options
from hookscope.cli.commands import Example
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.output_file import RECORDING
from hookscope.cli.runner import run_recording
from hookscope.commands.subject import find_subject
from hookscope.specs.command_options import GradsOptions
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.public import PLAIN_LOSS, Only, handles, public
from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    LossRequest,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions
from hookscope.specs.subject_kinds import RUNS
from hookscope.specs.tensor_key import OP_GRAD

if TYPE_CHECKING:
    from hookscope.hooks.capture import Capture


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
    request: Request,
) -> Capture:
    """Run a model forward and a loss backward; return the gradients at the selected layers.

    The gradient at the model's own input is always recorded. The model runs once more without
    hooks, and its output must be bit-identical; a non-deterministic model gets a warning, or with
    ``verify`` an error.

    With the folder of a training run that ``hookscope run`` started and that goes on now, the
    gradients of its next step are recorded, and the training is not changed. The keywords
    ``layers``, ``what`` and ``max_bytes`` apply to it.

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
        StoreError: a training ended before its next step did.
        RequestError: no program answers in the folder of a run, or it is another user's.

    Example:
        >>> import hookscope
        >>> found = hookscope.grads("resnet18", loss="kl", target=3, layers=["fc"])
        >>> [record.key for record in found.records]
        ['fc/output.grad', 'fc/bias.grad', 'fc/weight.grad', './input.0.grad']
    """
    from hookscope.execution.edit_effect import describe_effect
    from hookscope.execution.objective import resolve_loss
    from hookscope.execution.prepare import prepare
    from hookscope.execution.provenance import Provenance
    from hookscope.execution.recorded_run import run_backward
    from hookscope.execution.trial_pass import check_recording_size
    from hookscope.execution.verification import check_all_ran, verify_output_unchanged
    from hookscope.tensors.grad_mode import grad_mode

    kinds = options.kinds | ({OP_GRAD} if options.ops else set())
    objective = resolve_loss(loss, any_output=True)
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


grads.find_subject = find_subject


@handles(grads, RUNS)
def grads_of_next_step(
    model: str | os.PathLike[str],
    *,
    layers: Annotated[LayerSelection, Only("layers")],
    options: Annotated[GradsOptions, Only("what", "max_bytes")],
) -> Capture:
    """Record the gradients of the next step of a training that runs now."""
    from hookscope.commands.capture import ask_for_capture
    from hookscope.specs.program_options import ProgramOptions

    asked = ProgramOptions(capture=True, what=tuple(options.kinds), max_bytes=options.max_bytes)
    return ask_for_capture(model, asked, layers)


EXAMPLES = (
    Example(
        "hookscope grads --loss kl --target 3",
        "Gradients of the KL divergence of resnet18's prediction from class 3.",
    ),
    Example(
        "hookscope grads --input img.png --loss logit --layer fc --what output,param",
        "Gradients of the highest class score.",
    ),
    Example(
        'hookscope grads sample_models/digits.py:trained --grad-edit "relu2=clip:0.01"',
        "Clip the gradient at one layer; earlier layers receive the clipped one.",
    ),
    Example(
        "hookscope grads sample_models/two_steps.py:TwoSteps --loss sum --what output,input,param",
        "A model small enough to check by hand.",
    ),
    Example(
        "hookscope grads sample_models/digits.py:trained --target 3 --hook"
        " conv2=sample_models/own_hook.py:clip --hook-kind tensor --hook-arg largest=0.01",
        "Clip gradients with a custom hook.",
    ),
    Example(
        "hookscope grads sample_models/digits.py:trained"
        " --loss sample_models/margin.py:margin --target 5",
        "A custom loss.",
    ),
    Example(
        "hookscope grads sample_models/two_steps.py:TwoSteps --penalty gp",
        "The gradient penalty of Wasserstein GANs: here the norm is 4 and the penalty 9.",
    ),
)


@command(
    "grads",
    options.model,
    options.loss,
    options_of(LossRequest, "penalty"),
    options.layers,
    options_of(GradsOptions, "what", "ops"),
    options.inputs,
    options.texts,
    options.interventions_of("grads"),
    options.run,
    options.device_map,
    options_of(GradsOptions, "verify", "strict", "max_bytes"),
    RECORDING.options,
    table_options,
    views="grads",
    examples=EXAMPLES,
    main="loss target layer input model-arg grad-edit output no-output",
    also="compare hook hook-kind ops penalty raw reduction shape what",
    topics="model-specs layers inputs weights losses edits hooks keys",
)
def grads_command(ctx: click.Context, **values: Any) -> None:
    """Run a model backward and record the gradients.

    Writes the gradients of a loss at layer outputs, parameters and the model's input to a
    safetensors file, and prints a table of them. A gradient that does not exist is listed with the
    reason, not as zero. Without --loss, it is cross-entropy, or the sum of an output of one score.

    With --penalty gp the loss is summed over the batch (default: --loss sum over all outputs), and
    the gradients are those of the batch mean of (norm - 1)^2, where norm is the norm of that sum's
    gradient at one sample's input (Gulrajani et al., 2017).

    The folder of a training run stands for its model if 'hookscope run' started it and it goes on
    now: the gradients of the next step are recorded, and the training is not changed. Only --layer,
    --what and --max-bytes apply.
    """
    run_recording(ctx, grads, values)
