"""One run of the model and its score: what came of it at the layers, or at the image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hookscope.analysis.cams.class_score import ClassScore
from hookscope.analysis.cams.layer_scan import (
    LayerCandidate,
    LayerScan,
    choose_candidate,
    grid_candidates,
    last_on_grid,
    last_where,
)
from hookscope.errors import RequestError
from hookscope.execution.forward import (
    backward,
    detach_clone,
    disable_mha_fast_path,
    forward,
    frozen,
    preserve_model_state,
    verify_output_unchanged,
)
from hookscope.execution.losses.loss import class_scores
from hookscope.execution.prepare import Prepared
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import Layer
from hookscope.tensors.interrupts import signal_safe, signal_safe_contextmanager
from hookscope.tensors.nested import TensorPath, as_call, map_tensors


@signal_safe_contextmanager
def _differentiable(prepared: Prepared) -> Iterator[None]:
    """Run the block so that values of it can be differentiated, and leave the model as it was.

    The parameters are frozen meanwhile. Their gradients are no part of any map, and are half the
    work of a backward pass; and then only what is asked about begins the graph. Attention takes its
    fast path where nothing in it requires grad: here never, so that all of a run is of one kind.
    """
    module = prepared.module
    guard = preserve_model_state(module, train=prepared.train, seed=prepared.seed)
    leaves = frozen(chain(module.parameters(), module.buffers()))
    with guard, disable_mha_fast_path(), torch.inference_mode(False), torch.enable_grad(), leaves:
        yield


@dataclass(frozen=True)
class LayerPass:
    """One layer's output that a map is made from, and the run in which it was returned.

    Attributes:
        spot: with its value and, where one was asked for, its gradient.
        calls: how often the layer ran.
        output: of the model.
    """

    spot: LayerCandidate
    calls: int
    output: Any


def observe_layer(
    prepared: Prepared,
    score: ClassScore,
    path: TensorPath,
    image: Tensor,
    layer: Layer | None,
    *,
    gradient: bool,
) -> LayerPass | None:
    """Run the model once with hooks that change nothing, and ask autograd for what a map needs.

    The model gets its own tensors, so its output needs no second run to compare with. The graph
    begins at the image, and a gradient is computed only from the score back to the layer.

    Args:
        prepared: the model and its input.
        score: what is differentiated; its classes are settled if they are not yet.
        path: where in the input the images are.
        image: the images in the input.
        layer: the layer to use; None for the last one on a grid that the score needs.
        gradient: whether the gradient at a named layer is wanted.

    Returns:
        None where this way does not reach: no gradient connects the score with the layer and the
        image, or a view was changed in place. ``clone_at_layer`` tells what can be told then.

    Raises:
        RequestError: the named layer never ran, or returned nothing on a grid.
    """
    run = partial(_observe_once, prepared, score, path, image)
    if layer is not None:
        return run(layer, lambda spots: last_on_grid(spots, layer), gradient)
    chosen = run(None, None, True)
    if chosen is None or not chosen.spot.changed_in_place:
        return chosen
    # Once more, to copy the value before it is changed.
    key = chosen.spot.key
    return run(chosen.spot.layer, lambda spots: next(s for s in spots if s.key == key), True)


def _observe_once(
    prepared: Prepared,
    score: ClassScore,
    path: TensorPath,
    image: Tensor,
    keep: Layer | None,
    pick: Callable[[Sequence[LayerCandidate]], LayerCandidate] | None,
    gradient: bool,
) -> LayerPass | None:
    """Run the model; use the output that ``pick`` returns, by default the last that is needed."""
    size = (image.shape[2], image.shape[3])
    survey = LayerScan(prepared.module, len(image), size, keep, clones=False)
    with _differentiable(prepared), survey:
        leaf = image.detach().clone().requires_grad_(gradient)
        output = forward(prepared, call=_with_image(prepared, path, leaf))
        value = score.of(prepared, output).value
        if pick is not None:
            spot = pick(survey.spots)
            if gradient and (spot.cut_off or not any(_find_gradients(value, [spot]))):
                return None
        else:
            on_grid = grid_candidates(survey.spots, class_scores(output))
            index = last_where(partial(_find_gradients, value), on_grid)
            if index < 0 or any(spot.cut_off for spot in on_grid[index:]):
                return None
            spot = on_grid[index]
            assert spot.tensor is not None
            spot.value = spot.tensor.detach().clone()
        return LayerPass(spot, survey.calls[spot.layer.module], detach_clone(output))


def _find_gradients(value: Tensor, spots: Sequence[LayerCandidate]) -> list[bool]:
    """Find the gradients at ``spots``; tell for each whether it is not zero on the grid."""
    edges = [spot.edge for spot in spots if spot.edge is not None]
    if edges and value.requires_grad:
        try:
            found = torch.autograd.grad(value, edges, retain_graph=True, allow_unused=True)
        except RuntimeError:  # reentrant checkpointing, say, allows a plain backward alone
            return [False for _ in spots]
        by_edge = dict(zip(edges, found, strict=True))
        for spot in spots:
            spot.gradient = None if spot.edge is None else by_edge[spot.edge]
            if spot.gradient is not None and spot.grid is not None:
                spot.needed = bool(spot.grid.maps(spot.gradient).count_nonzero())
    return [spot.needed for spot in spots]


def clone_at_layer(
    prepared: Prepared, score: ClassScore, image: Tensor, layer: Layer | None, *, gradient: bool
) -> LayerPass:
    """Return what ``observe`` does from a run in which layers hand on clones of their outputs.

    That works wherever autograd does: graphs may begin at any layer. A run without hooks proves
    that the clones change nothing.

    Raises:
        RequestError: there is no such layer, or nothing on a grid that the score needs.
        CheckFailed: the model's output with hooks is another one than without.
    """
    chosen = None
    if layer is None:  # nothing is kept in the run that finds it, as that would be all
        survey, output = scan_layers(prepared, score, image)
        chosen = choose_candidate(survey.spots, class_scores(output), needed=gradient)
        layer = chosen.layer
    survey, output = scan_layers(prepared, score, image, layer, gradient)
    own = {spot.key: spot for spot in survey.spots}
    spot = own[chosen.key] if chosen else last_on_grid(survey.spots, layer)
    verify_unchanged_by_hooks(prepared, output)
    return LayerPass(spot, survey.calls[layer.module], output)


def scan_layers(
    prepared: Prepared,
    score: ClassScore,
    image: Tensor,
    keep: Layer | None = None,
    differentiate: bool = True,
) -> tuple[LayerScan, Any]:
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
    size = (image.shape[2], image.shape[3])
    survey = LayerScan(prepared.module, len(image), size, keep, clones=True)
    with _differentiable(prepared), survey:
        output = forward(prepared)
        found = score.of(prepared, output)
        if differentiate and found.value.requires_grad:
            backward(prepared, found.value, Capture())
        return survey, detach_clone(output)


def verify_unchanged_by_hooks(prepared: Prepared, output: Any) -> None:
    """Demand that a run as ``scan_layers`` makes it, but without hooks, gives the same ``output``.

    Frozen weights are multiplied another way, which may change the last bits: so here they are
    frozen too.

    Raises:
        CheckFailed: it does not.
    """
    with _differentiable(prepared):
        verify_output_unchanged(prepared, output, excuse_noise=True)


def gradient_at_image(
    prepared: Prepared, score: ClassScore, path: TensorPath, image: Tensor
) -> tuple[Any, Tensor]:
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
        output = detach_clone(output)
    if leaf.grad is None:
        raise RequestError(
            "The score has no gradient at the image: the model cuts the way from one to the other,"
            " as torch.no_grad, detach and rounding do.",
            "Choose a method that needs none, eigencam or scorecam.",
        )
    return output, leaf.grad


def run_on_image(prepared: Prepared, path: TensorPath, image: Tensor) -> Any:
    """Return the output for ``image`` of a run that is not differentiated."""
    guard = preserve_model_state(prepared.module, train=prepared.train, seed=prepared.seed)
    with guard, signal_safe(torch.no_grad()):
        return detach_clone(forward(prepared, call=_with_image(prepared, path, image)))


def _with_image(prepared: Prepared, path: TensorPath, image: Tensor) -> Any:
    """What the model is called with, other images in the place of its own; it may change it all."""
    call = as_call(prepared.value)
    return map_tensors(call, lambda here, own: (image if here == path else own.detach()).clone())
