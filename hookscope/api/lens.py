"""Read what each layer of a language model would predict: the logit lens."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.isolation import disable_mha_fast_path
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import describe_run
from hookscope.model_analysis.lens import run_lens
from hookscope.results.lens import Lens
from hookscope.specs.command_options import LensOptions
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request
from hookscope.specs.run_options import RunOptions
from hookscope.tensors.grad_mode import grad_mode


def lens(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram,
    *,
    norm: str | None = None,
    head: str | None = None,
    target: str | int = "argmax",
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
) -> Lens:
    """Read what each layer predicts at each position, by the final norm and the unembedding.

    The logits of a layer are ``head(norm(x))`` with its output ``x``: the logit lens. The model
    runs once. Keywords that ``capture`` also has mean the same here.

    Args:
        norm: name of the final norm, or ``none``. None: the module that returns what the head gets.
        head: name of the unembedding. None: the module that returns the logits.
        target: the token whose rank and probability each cell has: its text, its id, or ``argmax``
            for the token that the whole model predicts at that position.
        layers: patterns of layers that return the residual stream: batch, position, width. None:
            the blocks, and the input of the first one.

    Returns:
        The cells by layer, text and position; padding has none.

    Raises:
        LayerError: there is no such layer, or it does not fit the norm or the head.
        RequestError: the model returns no logits, the blocks or the head cannot be found, or the
            target is out of range.
        InputError: the target is not one token, or the input does not fit.
        ForwardError: the model raised.

    Example:
        >>> import torch, hookscope
        >>> block = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        >>> head = torch.nn.Linear(8, 20)
        >>> net = torch.nn.Sequential(torch.nn.Embedding(20, 8), block, head)
        >>> found = hookscope.lens(net, layers=["1"], input=torch.tensor([[3, 1, 4]]))
        >>> found.head, len(found.cells), found.cell("1").rank
        ('2', 3, 1)
    """
    options = LensOptions(norm, head, target)
    request = Request(
        "lens",
        ModelRequest(
            model, weights, rename, partial, model_args, method, attn, trust, onnx_optimize, adapter
        ),
        LayerSelection(layers, types, depth, leaves),
        InputRequest(input, shape, preprocess, size, mean, std, tokenizer, chat),
        RunOptions(seed, dtype, device, train=train),
    )
    prepared = prepare(request)
    chosen = () if request.layers.everything and not leaves else prepared.layers
    # The fast path of transformers skips layers.
    with grad_mode(False), disable_mha_fast_path(), explain_forward_errors(prepared):
        metadata = describe_run("lens", prepared, request.chosen(options))
        return run_lens(prepared, chosen, options, metadata)
