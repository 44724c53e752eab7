"""Attribute the score of a target to the tokens of the input."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.prepare import prepare
from hookscope.execution.provenance import describe_run
from hookscope.files.progress import Progress
from hookscope.model_analysis.attribution import run_attribution
from hookscope.results.attribution import Attribution
from hookscope.specs.attribution_options import INTEGRATED, AttributeOptions
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request
from hookscope.specs.run_options import RunOptions


def attribute(
    model: str | os.PathLike[str] | nn.Module | torch.export.ExportedProgram,
    *,
    by: str = INTEGRATED,
    target: str | int = "argmax",
    against: str | int | None = None,
    position: int | None = None,
    steps: int | None = None,
    baseline: str | int | None = None,
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
    progress: Progress | None = None,
) -> Attribution:
    """Attribute the logit of a next token, or of a class, to the tokens of the input.

    The input that is differentiated or replaced is the output of the module that embeds the token
    ids. The attribution of a token is summed over the width. Padding has none. Keywords that
    ``capture`` also has mean the same here. For images, see ``cam``.

    Args:
        by: ``integrated`` (integrated gradients), ``gradxinput`` (gradient times input),
            ``occlusion`` (one run for each token) or ``rollout`` (attention rollout, which does not
            depend on the target). ``hookscope.specs.attribution_options.METHODS`` has the formulas
            and the papers.
        target: the token or class whose logit is the score: its text, its id, or ``argmax`` for the
            one that the model predicts.
        against: a token or class whose logit is subtracted from the score.
        position: the position after which the token is predicted, without padding; negative from
            the end. None for the last one.
        steps: for ``integrated``: points of the Gauss-Legendre quadrature; None for 50.
        baseline: for ``integrated`` and ``occlusion``: ``zero``, an embedding of zeros; ``mean``,
            the mean of all embeddings; or a token, by its text or id. None for ``zero``, and for
            ``mean`` where integrated gradients from ``zero`` do not add up.
        progress: called with the number of runs done and the total, by ``integrated`` and
            ``occlusion``.

    Returns:
        The tokens of each text with their attributions; the score, that of the baseline, and the
        sum of the attributions.

    Raises:
        RequestError: no module embeds the tokens, the model returns no logits, the target is out of
            range, or the score has no gradient.
        InputError: the input has no token ids, or the target is not one token.
        ForwardError: the model raised.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20))
        >>> found = hookscope.attribute(net, input=torch.tensor([[3, 1, 4]]), by="occlusion")
        >>> [one.score for one in found.rows[0].tokens[:2]]  # it reads the last token alone
        [0.0, 0.0]
        >>> found.rows[0].total == found.rows[0].difference
        True
    """
    options = AttributeOptions(by, target, against, position, steps, baseline)
    request = Request(
        "attribute",
        ModelRequest(
            model, weights, rename, partial, model_args, method, attn, trust, onnx_optimize, adapter
        ),
        LayerSelection(),
        InputRequest(input, shape, preprocess, size, mean, std, tokenizer, chat),
        RunOptions(seed, dtype, device, train=train),
    )
    prepared = prepare(request)
    with explain_forward_errors(prepared):
        metadata = describe_run("attribute", prepared, request.chosen(options))
        return run_attribution(prepared, options, metadata, progress)
