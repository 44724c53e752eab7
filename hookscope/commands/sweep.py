"""Apply one edit at each layer in turn, and measure the effects."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from hookscope.cli import options
from hookscope.cli.commands import Example
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.output_file import ANALYSIS
from hookscope.cli.runner import run_analysis
from hookscope.files.output_path import check_ending
from hookscope.files.progress_types import Progress
from hookscope.specs.command_options import SweepOptions
from hookscope.specs.public import NO_TEXTS, PLAIN_LOSS, PLAIN_RUN, public
from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    LossRequest,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions

if TYPE_CHECKING:
    from hookscope.results.sweep import Sweep


@public
def sweep(
    options: SweepOptions,
    loss: Annotated[LossRequest, PLAIN_LOSS],
    layers: LayerSelection,
    input: Annotated[InputRequest, NO_TEXTS],
    model: ModelRequest,
    run: Annotated[RunOptions, PLAIN_RUN],
    request: Request,
    *,
    file: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Apply one edit at each layer in turn, and measure the change of the model's prediction.

    The model runs once for each layer, or for each position, head or expert of each layer, from
    the same seed. Blocks before the change are not computed again where that is proved to change
    nothing; ``reuse`` of the result says so.

    Args:
        loss: as for ``ablate``.
        target: as for ``ablate``. For a language model also the text of a token, and all metrics
            but ``output`` are of the prediction after the last token.
        layers: layer patterns. By default, without types or depth: all leaf modules, and with
            ``positions`` the blocks of the model.
        file: a JSON file that the result is written to every few seconds and at the end. If it has
            a part of the same sweep, the run resumes from it.
        progress: called with the number of runs done and the total.

    Raises:
        RequestError: an option cannot be parsed, the edit fits no layer, or a position or the
            number of heads does not fit.
        LossError: the loss or a target does not fit the output.
        InputError: a target is not one token of the vocabulary.
        ForwardError: the model raised without the edit.
        CheckFailed: the model failed with every edit.
        StoreError: the file cannot be written.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> found = hookscope.sweep(net, edit="scale:1", input=torch.ones(2, 4), leaves=True)
        >>> found.layers, [cell.score for cell in found.cells]
        (('0', '1', '2'), [0.0, 0.0, 0.0])
    """
    from hookscope.execution.isolation import disable_mha_fast_path
    from hookscope.execution.prepare import prepare
    from hookscope.execution.provenance import describe_run
    from hookscope.model_analysis.residual_stream import block_stacks
    from hookscope.model_analysis.sweep.edit_scan import make_runs
    from hookscope.model_analysis.sweep.effect_measure import measure_prediction
    from hookscope.model_analysis.sweep.sweep_run import prepare_sweep
    from hookscope.tensors.grad_mode import grad_mode

    if file is not None:
        check_ending(Path(file), ".json")
    # A module of experts is no leaf: it contains their activation function.
    everything = layers.everything and not layers.leaves
    leaves = layers.leaves or (everything and not options.experts)
    prepared = prepare(replace(request, layers=replace(layers, leaves=leaves)))
    # What a position knows is in the residual stream.
    if everything and options.positions is not None:
        blocks = chain.from_iterable(block_stacks(prepared.module))
        prepared = replace(prepared, layers=tuple(blocks) or prepared.layers)
    # The fast path of transformers skips layers, which then could not be edited.
    with grad_mode(False), disable_mha_fast_path():
        metadata = describe_run("sweep", prepared, request.chosen(options))
        job, result = prepare_sweep(
            prepared,
            options,
            lambda run, clean: measure_prediction(run, clean, loss, options.against),
            metadata,
            resumable=file is not None,
        )
        return make_runs(result, job.order, job.run, file, progress)


EXAMPLES = (
    Example(
        "hookscope sweep sample_models/digits.py:trained --edit zero",
        "How much each layer changes the output if it gives zeros.",
    ),
    Example(
        "hookscope sweep sample_models/digits.py:trained --edit noise:1std --metric kl",
        "The same for noise, ranked by the divergence of the prediction.",
    ),
    Example(
        'hookscope sweep hf:sample_models/capitals -i "text:the capital of Italy is" --edit'
        ' zero --layer "model.layers.?" --positions all --target " Rome" --against " Paris"',
        "Which layers and positions an answer depends on.",
    ),
    Example(
        'hookscope sweep hf:sample_models/capitals -i "text:the capital of Italy is" --edit'
        ' zero --layer "*.o_proj" --heads auto -o heads.html',
        "The attention heads of a model, as a page.",
    ),
    Example(
        "hookscope sweep sample_models/digits.py:trained -i sample_models/five.png --edit"
        " quantize-weights:3 --metric kl",
        "How much each layer depends on the precision of its weights.",
    ),
)

MEANINGS = {
    "Edits (--edit)": [
        ("patch:FILE", "the tensor of the same layer in a capture"),
        ("zero, mean, noise:1std, scale:A, add:FILE#KEY, ...", "as in --edit LAYER=OPERATION"),
        (
            "quantize-weights:BITS",
            "weights rounded: each output channel to a symmetric grid of its own",
        ),
        ("quantize:BITS", "output rounded: one grid for the tensor"),
        ("dtype:bfloat16", "output rounded to bfloat16 and back"),
    ],
    "Metrics (--metric)": [
        ("difference", "change of the logit of --target minus that of --against"),
        ("score", "change of the target's logit"),
        ("loss", "change of the loss"),
        ("kl", "divergence from the prediction without the edit, in nats"),
        ("output", "norm of the change of the output, divided by the norm of the output"),
    ],
}


@command(
    "sweep",
    options.model,
    options_of(SweepOptions),
    options.loss,
    options.layers_by_default("leaves; with --positions the blocks of the model"),
    options.inputs,
    options.run,
    ANALYSIS.options,
    table_options,
    views="sweep",
    examples=EXAMPLES,
    main="layer edit positions target against input model-arg output",
    also="no-output heads metric",
    notes=MEANINGS,
    topics="model-specs layers edits inputs weights losses",
)
def sweep_command(ctx: click.Context, **values: Any) -> None:
    """Apply one edit at each layer, position, head or expert in turn.

    Runs the model once for each selected layer with the edit, or once for each position, attention
    head or expert of each layer, and shows the change of the prediction as a map. For a language
    model, it is the prediction after the last token. A JSON file is written during the run: after
    an interruption, the same command resumes.
    """
    run_analysis(ctx, sweep, values, ANALYSIS, "sweeping", "runs")
