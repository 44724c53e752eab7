"""Apply one edit at each layer in turn, and measure the effects."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookscope.execution.isolation import disable_mha_fast_path
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import describe_run
from hookscope.files.output_path import check_ending
from hookscope.files.progress import Progress
from hookscope.model_analysis.residual_stream import block_stacks
from hookscope.model_analysis.sweep.effect_measure import resolve_measure
from hookscope.model_analysis.sweep.sweep_run import prepare_sweep, run_sweep
from hookscope.results.sweep import Sweep
from hookscope.specs.choices import DEFAULT_MODEL
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


def sweep(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram = DEFAULT_MODEL,
    *,
    edit: str = "zero",
    positions: str | None = None,
    heads: int | str | None = None,
    experts: bool = False,
    against: str | int | None = None,
    metric: str | None = None,
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
) -> Sweep:
    """Apply one edit at each layer in turn, and measure the change of the model's prediction.

    The model runs once for each layer, or for each position, head or expert of each layer, from
    the same seed. Blocks before the change are not computed again where that is proved to change
    nothing; ``reuse`` of the result says so. Keywords that ``ablate`` also has mean the same here.

    Args:
        edit: an operation of ``--edit`` without a layer, such as ``zero``, ``noise:1std`` or
            ``patch:FILE``, which takes the tensor of the same layer from a capture.
            ``dtype:bfloat16`` rounds the layer's output to that dtype and back.
            ``quantize:BITS`` rounds it to a grid, and ``quantize-weights:BITS`` the weights of the
            layer, each output channel to a symmetric grid of its own; see
            ``hookscope.hooks.edits.edited_weights``.
        positions: ``all`` or positions such as ``"0,2-3"``: edit one position at a time. Without
            ``layers``, those that are edited are then the blocks of the model, which return the
            residual stream, instead of the leaves.
        heads: number of attention heads, or ``auto`` for that of the model's configuration: edit
            one head at a time, in the input of the output projections of attention.
        experts: edit one expert at a time in layers whose experts share parameters, as in
            transformers: ``zero`` or ``scale:A`` multiplies the expert's routing weights.
        against: a class or token. Measures the logit of the target minus that of it too.
        metric: the metric of the map: ``difference``, ``score``, ``loss``, ``kl`` or ``output``.
            None: the first of difference, score and output that is defined.
        target: as for ``ablate``. For a language model also the text of a token, and all metrics
            but ``output`` are of the prediction after the last token.
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
    options = SweepOptions(edit, positions, heads, experts, against, metric)
    loss_request = LossRequest(loss, target, reduction, raw)
    request = Request(
        "sweep",
        ModelRequest(
            model, weights, rename, partial, model_args, method, attn, trust, onnx_optimize, adapter
        ),
        LayerSelection(layers, types, depth, leaves),
        InputRequest(input, shape, preprocess, size, mean, std),
        RunOptions(seed, dtype, device, train=train),
        loss=loss_request,
    )
    if file is not None:
        check_ending(Path(file), ".json")
    # A module of experts is no leaf: it contains their activation function.
    everything = request.layers.everything and not leaves
    selection = replace(request.layers, leaves=leaves or (everything and not experts))
    prepared = prepare(replace(request, layers=selection))
    if everything and positions is not None:  # what a position knows is in the residual stream
        blocks = chain.from_iterable(block_stacks(prepared.module))
        prepared = replace(prepared, layers=tuple(blocks) or prepared.layers)
    # The fast path of transformers skips layers, which then could not be edited.
    with grad_mode(False), disable_mha_fast_path():
        metadata = describe_run("sweep", prepared, request.chosen(options))
        job, result = prepare_sweep(
            prepared,
            options,
            lambda run, clean: resolve_measure(run, clean, loss_request, against),
            metadata,
            resumable=file is not None,
        )
        return run_sweep(job, result, file, progress)
