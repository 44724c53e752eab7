"""Ablate layers or channels one at a time, and rank them by the effect."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from hookscope.api.public import PLAIN_LOSS, PLAIN_RUN, public
from hookscope.execution.isolation import disable_mha_fast_path
from hookscope.execution.objective import resolve_loss
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import describe_run
from hookscope.files.output_path import check_ending
from hookscope.files.progress import Progress
from hookscope.model_analysis.ablation_run import prepare_ablation, resolve_baseline, run_ablation
from hookscope.results.ablation import Ablation
from hookscope.specs.command_options import AblateOptions
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
def ablate(
    options: AblateOptions,
    loss: Annotated[LossRequest, PLAIN_LOSS],
    layers: LayerSelection,
    input: InputRequest,
    model: ModelRequest,
    run: Annotated[RunOptions, PLAIN_RUN],
    *,
    file: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Ablation:
    """Ablate each selected layer in turn, and rank the layers by the change of the output.

    An ablation is an edit of a layer's output, in all of its calls. The model runs once for each,
    from the same seed.

    Args:
        loss: as for ``grads``. None: ``ce`` if the output has class scores, else no loss.
        target: as for ``grads``. ``argmax`` is the class predicted by the run without ablation.
        layers: layer patterns. By default, without types or depth: all leaf modules.
        file: a JSON file that the result is written to every few seconds and at the end. If it has
            a part of the same ablation, the run resumes from it.
        progress: called with the number of ablations done and the total.

    Raises:
        RequestError: ``by`` or ``rank`` is not one of these values, or no layer can be ablated.
        LossError: the loss or its target does not fit the output, or the metric to rank by is not
            defined for it.
        ForwardError: the model raised without ablation.
        CheckFailed: every ablation failed.
        StoreError: the file cannot be written.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Flatten())
        >>> found = hookscope.ablate(net, input=torch.ones(2, 4), rank="output")
        >>> [(ablation.layer, ablation.output) for ablation in found.ablations]
        [('0', 1.0), ('1', 1.0), ('2', 1.0)]
    """
    request = Request("ablate", model, layers, input, run, loss=loss)
    if file is not None:
        check_ending(Path(file), ".json")
    objective = resolve_loss(loss)
    selection = replace(layers, leaves=layers.leaves or layers.everything)
    prepared = prepare(replace(request, layers=selection))
    baseline = functools.partial(
        resolve_baseline, prepared, request=loss, rank=options.rank, objective=objective
    )
    # The fast path of transformers skips layers, which then could not be ablated.
    with grad_mode(False), disable_mha_fast_path():
        metadata = describe_run("ablate", prepared, request.chosen(options))
        job, result = prepare_ablation(
            prepared,
            options.by,
            options.channels,
            options.rank,
            baseline,
            metadata,
            resumable=file is not None,
        )
        return run_ablation(job, result, file, progress)
