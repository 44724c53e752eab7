"""The value and the gradient of a score at a layer's output, or the gradient at the image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import RequestError
from hookscope.execution.forward import backward, forward
from hookscope.execution.isolation import disable_mha_fast_path, frozen
from hookscope.execution.prepare import Prepared
from hookscope.execution.verification import verify_output_unchanged
from hookscope.files.signal_safety import signal_safe, signal_safe_contextmanager
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import Layer
from hookscope.model_analysis.cams.layer_scan import (
    LayerCandidate,
    LayerScan,
    choose_candidate,
    grid_candidates,
    last_on_grid,
    last_where,
)
from hookscope.model_analysis.cams.scores import Score
from hookscope.specs.model_spec import ONNX
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import TensorPath, as_call, detach_clone, map_tensors


@signal_safe_contextmanager
def differentiable(prepared: Prepared) -> Iterator[None]:
    """Enable autograd, freeze the parameters in the block, and restore the model's state after it.

    The fast path of attention is off, because it would depend on whether a tensor requires grad.
    """
    module = prepared.module
    leaves = frozen(chain(module.parameters(), module.buffers()))
    with (
        prepared.preserved(),
        disable_mha_fast_path(),
        signal_safe(torch.inference_mode(False)),
        grad_mode(True),
        leaves,
    ):
        yield


@dataclass(frozen=True)
class LayerPass:
    """A layer's output that a map is made from, and the run that returned it."""

    candidate: LayerCandidate
    calls: int
    output: Any


def observe_layer(
    prepared: Prepared,
    score: Score,
    path: TensorPath,
    image: Tensor,
    layer: Layer | None,
    *,
    gradient: bool,
) -> LayerPass | None:
    """Run the model; return the value and the gradient that a map needs, or None if not possible.

    The hooks return the model's own tensors, so no second run has to verify the output.
    """
    run = partial(_observe_once, prepared, score, path, image)
    if layer is not None:
        return run(layer, lambda candidates: last_on_grid(candidates, layer), gradient)
    chosen = run(None, None, True)
    if chosen is None or not chosen.candidate.changed_in_place:
        return chosen
    # A second run copies the value before it is changed.
    key = chosen.candidate.key
    return run(chosen.candidate.layer, lambda found: next(c for c in found if c.key == key), True)


def _observe_once(
    prepared: Prepared,
    score: Score,
    path: TensorPath,
    image: Tensor,
    keep: Layer | None,
    pick: Callable[[Sequence[LayerCandidate]], LayerCandidate] | None,
    gradient: bool,
) -> LayerPass | None:
    """Run the model; use the candidate that ``pick`` returns, by default the last one needed."""
    size, _ = score.view_size(prepared, image)
    scan = LayerScan(prepared.module, len(image), size, keep, clones=False)
    with differentiable(prepared), scan:
        leaf = image.detach().clone().requires_grad_(gradient)
        output = forward(prepared, call=_with_image(prepared, path, leaf))
        value = score.value(prepared, output)
        if pick is not None:
            candidate = pick(scan.candidates)
            if gradient and (candidate.cut_off or not any(_find_gradients(value, [candidate]))):
                return None
        else:
            on_grid = grid_candidates(scan.candidates, score.skips(prepared, output))
            index = last_where(partial(_find_gradients, value), on_grid)
            # One without an edge does not depend on the image, as a grid of positions.
            if index < 0 or any(one.edge and one.cut_off for one in on_grid[index:]):
                return None
            candidate = on_grid[index]
            if candidate.tensor is not None:  # else its value is of a second run
                candidate.value = candidate.tensor.detach().clone()
        return LayerPass(candidate, scan.calls[candidate.layer.module], detach_clone(output))


def _find_gradients(value: Tensor, candidates: Sequence[LayerCandidate]) -> list[bool]:
    """Set the gradients of ``candidates``; return for each whether it is not zero on the grid."""
    edges = [candidate.edge for candidate in candidates if candidate.edge is not None]
    if edges and value.requires_grad:
        try:
            grads = torch.autograd.grad(value, edges, retain_graph=True, allow_unused=True)
        except RuntimeError:  # reentrant checkpointing, for example, allows only backward()
            return [False for _ in candidates]
        by_edge = dict(zip(edges, grads, strict=True))
        for candidate in candidates:
            candidate.gradient = None if candidate.edge is None else by_edge[candidate.edge]
            if candidate.gradient is not None and candidate.grid is not None:
                candidate.needed = bool(candidate.grid.maps(candidate.gradient).count_nonzero())
    return [candidate.needed for candidate in candidates]


def clone_at_layer(
    prepared: Prepared, score: Score, image: Tensor, layer: Layer | None, *, gradient: bool
) -> LayerPass:
    """Do what ``observe_layer`` does with clones, wherever autograd works; verify the output."""
    chosen = None
    if layer is None:  # the run that looks for the layer stores no values: it would store all
        scan, output = scan_layers(prepared, score, image)
        skips = score.skips(prepared, output)
        chosen = choose_candidate(scan.candidates, skips, needed=gradient)
        layer = chosen.layer
    scan, output = scan_layers(prepared, score, image, layer, gradient)
    by_key = {candidate.key: candidate for candidate in scan.candidates}
    candidate = by_key[chosen.key] if chosen else last_on_grid(scan.candidates, layer)
    verify_unchanged_by_hooks(prepared, output)
    return LayerPass(candidate, scan.calls[layer.module], output)


def scan_layers(
    prepared: Prepared,
    score: Score,
    image: Tensor,
    keep: Layer | None = None,
    differentiate: bool = True,
) -> tuple[LayerScan, Any]:
    """Run the model forward and the score backward with clones; return what the layers returned."""
    size, _ = score.view_size(prepared, image)
    # onnxruntime computes no gradients, and its values cannot be replaced.
    clones = prepared.loaded.source != ONNX
    scan = LayerScan(prepared.module, len(image), size, keep, clones=clones)
    with differentiable(prepared), scan:
        output = forward(prepared)
        value = score.value(prepared, output)
        if differentiate and value.requires_grad:
            backward(prepared, value, Capture())
        return scan, detach_clone(output)


def verify_unchanged_by_hooks(prepared: Prepared, output: Any) -> None:
    """Check that a run without hooks gives the same ``output`` as ``scan_layers``.

    The weights are frozen in both: kernels for weights that require grad may give other last bits.
    """
    with differentiable(prepared):
        verify_output_unchanged(prepared, output, excuse_noise=True)


def gradient_at_image(
    prepared: Prepared, score: Score, path: TensorPath, image: Tensor
) -> tuple[Any, Tensor]:
    """Run the model on ``image``; return its output and the gradient of the score at the image."""
    with differentiable(prepared):
        leaf = image.detach().clone().requires_grad_()
        output = forward(prepared, call=_with_image(prepared, path, leaf))
        value = score.value(prepared, output)
        if value.requires_grad:
            backward(prepared, value, Capture())
        output = detach_clone(output)
    if leaf.grad is None:
        raise RequestError(
            "The score has no gradient at the image: something in the model stops gradients, such"
            " as torch.no_grad, detach or rounding.",
            "Use --by eigencam or --by scorecam, which need no gradient.",
        )
    return output, leaf.grad


def run_on_image(prepared: Prepared, path: TensorPath, image: Tensor) -> Any:
    """Return the model's output for ``image``, from a run without autograd."""
    with prepared.preserved(), grad_mode(False):
        return detach_clone(forward(prepared, call=_with_image(prepared, path, image)))


def _with_image(prepared: Prepared, path: TensorPath, image: Tensor) -> Any:
    """Copies of the model's arguments, with ``image`` in place of its own images."""
    call = as_call(prepared.value)

    def copy_of(here: TensorPath, own: Tensor) -> Tensor:  # a detector takes images without N
        return (image.reshape(own.shape) if here == path else own.detach()).clone()

    return map_tensors(call, copy_of)
