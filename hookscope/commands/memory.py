"""``hookscope memory``: the peak of the memory of a training step or of inference."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import click

from hookscope.cli import options
from hookscope.cli.commands import Example
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.output_file import Output, one_of
from hookscope.cli.runner import run_analysis
from hookscope.files.garbage import without_collection
from hookscope.specs.memory_options import MemoryOptions, script_path
from hookscope.specs.public import Only, Without, public
from hookscope.specs.request import (
    WEIGHTS_OPTIONS,
    InputRequest,
    LayerSelection,
    LossRequest,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions

if TYPE_CHECKING:
    from hookscope.results.memory import Memory


@public
def memory(
    options: MemoryOptions,
    loss: Annotated[LossRequest, Only("loss")],
    layers: Annotated[LayerSelection, Only("depth")],
    input: Annotated[InputRequest, Only("input", "shape")],
    model: Annotated[ModelRequest, Without(*WEIGHTS_OPTIONS)],
    run: Annotated[RunOptions, Only("dtype")],
    request: Request,
) -> Memory:
    """Return the peak of the memory of a training step, or of inference, without running it.

    The model runs with fake tensors, which have shapes and a device, the CPU, but no values.
    Counted is every storage that an operator of PyTorch returns, from the time it is made until it
    is freed, and what attention, convolutions and normalizations of the CPU hold inside themselves.
    A training step is a later one: the state of the optimizer is there from its beginning,
    gradients are not, and parameters without a gradient have no state.

    A Python file that calls ``backward()`` is a training script: it runs until it first calls its
    model, and the step is that of this model, its batch, its optimizer and its autocast.

    Args:
        loss: as for ``grads``, with class numbers as target. None: the loss that the model returns,
            cross-entropy if it returns class scores, or else the sum of its output.
        depth: add layers that are deeper to the ones above them.

    Raises:
        RequestError: the limit is below what a step of any batch needs.
        ForwardError: the model raised, or what it computes depends on values.

    Example:
        >>> import hookscope
        >>> found = hookscope.memory("resnet18", shape=(8, 3, 64, 64), optimizer="sgd")
        >>> found.parts.parameters, found.parts.total == found.peak
        (46758048, True)
    """
    path = script_path(request)
    if path is not None:
        return _of_script(path, options, loss, layers, run)
    with without_collection():  # no answer depends on when garbage is found
        from hookscope.model_analysis.memory.memory_run import measure

        return measure(request, options)


def _of_script(
    path: str, options: MemoryOptions, loss: LossRequest, layers: LayerSelection, run: RunOptions
) -> Memory:
    """The first step of a training script; the groups change what the script has chosen."""
    from hookscope.training.first_step import first_step

    step = first_step(path)
    own = {"optimizer": step.optimizer, "opt_args": step.opt_args}
    given = {"optimizer": options.optimizer, "opt_args": options.opt_args}
    found: Memory = memory(
        step.module,
        input=step.value,
        **(own if options.optimizer is None else given),
        autocast=options.autocast or step.autocast,
        limit=options.limit,
        loss=loss.loss,
        depth=layers.depth,
        dtype=run.dtype,
    )
    model = {**found.metadata["model"], "spec": path}
    return replace(found, metadata={**found.metadata, "model": model})


EXAMPLES = (
    Example(
        "hookscope memory resnet18 --shape 32x3x224x224 --optimizer adamw --depth 1",
        "The peak of a training step, and what holds it.",
    ),
    Example("hookscope memory resnet18 --shape 32x3x224x224", "The peak of inference."),
    Example(
        "hookscope memory resnet18 --shape 64x3x64x64 --optimizer sgd --limit 180MB --depth 1",
        "The largest batch within a limit, and the layers to checkpoint for this one.",
    ),
)

OUTPUT = Output("File to write: .json or .csv. Default: none.", one_of(".json", ".csv"))


@command(
    "memory",
    options.model,
    options_of(MemoryOptions, "optimizer", "limit", "autocast", "opt_args"),
    options_of(LossRequest, "loss"),
    options.input,
    options.shape,
    options_of(LayerSelection, "depth"),
    options_of(RunOptions, "dtype"),
    OUTPUT.options,
    table_options,
    views="memory",
    examples=EXAMPLES,
    main="optimizer shape limit autocast depth output",
    topics="model-specs inputs losses",
)
def memory_command(ctx: click.Context, **values: Any) -> None:
    """Show the peak memory of a training step or of inference.

    Prints when the peak is reached, what it consists of, and what each layer holds then. No weight
    is allocated: the model runs with fake tensors, which have shapes but no values. With --limit,
    also prints the largest batch that fits, and the layers to checkpoint if this batch does not.

    What an operator allocates and frees inside itself is counted where it is known, as for
    attention and convolutions on a CPU. A training script, as train.py, runs until it first calls
    its model, whose step is shown.
    """
    run_analysis(ctx, memory, values, OUTPUT)
