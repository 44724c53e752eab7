"""Apply one edit at each layer in turn, and measure the effects."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated

from hookscope.api.public import NO_TEXTS, PLAIN_LOSS, PLAIN_RUN, public
from hookscope.execution.isolation import disable_mha_fast_path
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import describe_run
from hookscope.files.output_path import check_ending
from hookscope.files.progress import Progress
from hookscope.model_analysis.residual_stream import block_stacks
from hookscope.model_analysis.sweep.effect_measure import resolve_measure
from hookscope.model_analysis.sweep.sweep_run import prepare_sweep, run_sweep
from hookscope.results.sweep import Sweep
from hookscope.specs.command_options import SweepOptions
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
def sweep(
    options: SweepOptions,
    loss: Annotated[LossRequest, PLAIN_LOSS],
    layers: LayerSelection,
    input: Annotated[InputRequest, NO_TEXTS],
    model: ModelRequest,
    run: Annotated[RunOptions, PLAIN_RUN],
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
    request = Request("sweep", model, layers, input, run, loss=loss)
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
            lambda run, clean: resolve_measure(run, clean, loss, options.against),
            metadata,
            resumable=file is not None,
        )
        return run_sweep(job, result, file, progress)
