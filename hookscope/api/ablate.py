"""Ablate layers or channels one at a time, and rank them by the effect."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookscope.execution.isolation import disable_mha_fast_path
from hookscope.execution.objective import resolve_loss
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import describe_run
from hookscope.files.output_path import check_ending
from hookscope.files.progress import Progress
from hookscope.model_analysis.ablation.ablation_run import prepare_ablation, run_ablation
from hookscope.model_analysis.ablation.baseline import resolve_baseline
from hookscope.results.ablation import Ablation
from hookscope.specs.choices import DEFAULT_MODEL
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


def ablate(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
    *,
    by: str = "zero",
    channels: bool = False,
    rank: str | None = None,
    loss: str | Callable[..., Any] | None = None,
    target: Any = "argmax",
    reduction: str | None = None,
    raw: bool = False,
    layers: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    input: Any = None,
    shape: Sequence[int] | None = None,
    preprocess: str | None = None,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    chat: bool = False,
    weights: str | os.PathLike[str] = "random",
    rename: Mapping[str, str] | None = None,
    partial: bool = False,
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    attn: str | None = None,
    trust: bool = False,
    onnx_optimize: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    train: bool = False,
    file: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Ablation:
    """Ablate each selected layer in turn, and rank the layers by the change of the output.

    An ablation is an edit of a layer's output, in all of its calls. The model runs once for each,
    from the same seed. Keywords that ``grads`` also has mean the same here.

    Args:
        by: ``zero``; ``mean``, each channel's mean over the batch and all positions; or ``noise``,
            standard normal noise times the output's standard deviation, added to it.
        channels: ablate every channel of every layer separately.
        rank: what to sort by, the largest change first: ``score``, the target's mean logit over the
            batch; ``loss``; or ``output``, the norm of the difference from the clean output over
            the norm of the clean output. None: ``score`` if there is one, else ``output``.
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
    options = AblateOptions(by, channels, rank)
    loss_request = LossRequest(loss, target, reduction, raw)
    request = Request(
        "ablate",
        ModelRequest(
            model, weights, rename, partial, model_args, method, attn, trust, onnx_optimize, adapter
        ),
        LayerSelection(layers, types, depth, leaves),
        InputRequest(input, shape, preprocess, size, mean, std, tokenizer, chat),
        RunOptions(seed, dtype, device, train=train),
        loss=loss_request,
    )
    if file is not None:
        check_ending(Path(file), ".json")
    objective = resolve_loss(loss_request)
    selection = replace(request.layers, leaves=leaves or request.layers.everything)
    prepared = prepare(replace(request, layers=selection))
    baseline = functools.partial(
        resolve_baseline, prepared, request=loss_request, rank=rank, objective=objective
    )
    # The fast path of transformers skips layers, which then could not be ablated.
    with grad_mode(False), disable_mha_fast_path():
        metadata = describe_run("ablate", prepared, request.chosen(options))
        run, result = prepare_ablation(
            prepared, by, channels, rank, baseline, metadata, resumable=file is not None
        )
        return run_ablation(run, result, file, progress)
