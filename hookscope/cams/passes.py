"""One run of the model and its score: what came of it at the layers, or at the image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hookscope.cams.scoring import Score
from hookscope.cams.survey import Survey
from hookscope.captures import Capture
from hookscope.errors import RequestError
from hookscope.execute import (
    backward,
    demand_unchanged,
    forward,
    settled,
    untouched,
    without_fast_path,
)
from hookscope.modules import Layer
from hookscope.prepare import Prepared
from hookscope.tensors import Path, as_call, map_tensors


@contextmanager
def _differentiable(prepared: Prepared) -> Iterator[None]:
    """Run the block so that values of it can be differentiated, and leave the model as it was.

    The parameters are frozen meanwhile. Their gradients are no part of any map, and are half the
    work of a backward pass; and then only what is asked about begins the graph. Attention takes its
    fast path where nothing in it requires grad: here never, so that all of a run is of one kind.
    """
    module = prepared.module
    leaves = [t for t in chain(module.parameters(), module.buffers()) if t.requires_grad]
    guard = untouched(module, train=prepared.train, seed=prepared.seed)
    with guard, without_fast_path(), torch.inference_mode(False), torch.enable_grad():
        try:
            for leaf in leaves:
                leaf.requires_grad_(False)
            yield
        finally:
            for leaf in leaves:
                leaf.requires_grad_(True)


def at_layers(
    prepared: Prepared,
    score: Score,
    image: Tensor,
    keep: Layer | None = None,
    differentiate: bool = True,
) -> tuple[Survey, Any]:
    """Run the model on ``image``, and the score backward; tell what the layers return.

    Args:
        prepared: the model and its input.
        score: what is differentiated; its classes are settled if they are not yet.
        image: the images in the input.
        keep: the layer whose values and gradients are kept.
        differentiate: whether gradients are wanted.

    Returns:
        What was seen, and the model's output.
    """
    survey = Survey(prepared.module, len(image), (image.shape[2], image.shape[3]), keep)
    with _differentiable(prepared), survey:
        output = forward(prepared)
        found = score.of(prepared, output)
        if differentiate and found.value.requires_grad:
            backward(prepared, found.value, Capture())
        return survey, settled(output)


def demand_unchanged_by_hooks(prepared: Prepared, output: Any) -> None:
    """Demand that a run as ``at_layers`` makes it, but without hooks, gives the same ``output``.

    Frozen weights are multiplied another way, which may change the last bits: so here they are
    frozen too.

    Raises:
        CheckFailed: it does not.
    """
    with _differentiable(prepared):
        demand_unchanged(prepared, output, excuse_noise=True)


def at_image(prepared: Prepared, score: Score, path: Path, image: Tensor) -> tuple[Any, Tensor]:
    """Run the model on ``image``; return its output, and the gradient of the score at the image.

    Raises:
        RequestError: the score does not depend on the image in a way that has a gradient.
    """
    with _differentiable(prepared):
        leaf = image.detach().clone().requires_grad_()
        output = forward(prepared, call=_with_image(prepared, path, leaf))
        found = score.of(prepared, output)
        if found.value.requires_grad:
            backward(prepared, found.value, Capture())
        output = settled(output)
    if leaf.grad is None:
        raise RequestError(
            "The score has no gradient at the image: the model cuts the way from one to the other,"
            " as torch.no_grad, detach and rounding do.",
            "Choose a method that needs none, eigencam or scorecam.",
        )
    return output, leaf.grad


def run_on(prepared: Prepared, path: Path, image: Tensor) -> Any:
    """Return the output for ``image`` of a run that is not differentiated."""
    guard = untouched(prepared.module, train=prepared.train, seed=prepared.seed)
    with guard, torch.no_grad():
        return settled(forward(prepared, call=_with_image(prepared, path, image)))


def _with_image(prepared: Prepared, path: Path, image: Tensor) -> Any:
    """What the model is called with, other images in the place of its own; it may change it all."""
    call = as_call(prepared.value)
    return map_tensors(call, lambda here, own: (image if here == path else own.detach()).clone())
