"""The layers of a model that return tensors on an image grid, and those the score depends on."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from hookscope.errors import RequestError
from hookscope.extraction.axes import ImageGrid, find_image_grid
from hookscope.files.signal_safety import SignalSafeContext
from hookscope.files.words import shape_text
from hookscope.hooks.layers import Layer, layers_of
from hookscope.hooks.module_call import CallSubscriber, ModuleCall, what_of
from hookscope.hooks.registry import CallRegistry
from hookscope.results.records import key_of
from hookscope.specs.tensor_key import OUTPUT
from hookscope.tensors.grad_mode import carries_gradient
from hookscope.tensors.nested import TensorPath, map_tensors, walk

_ATTENTION_CLASS = re.compile("attention|attn", re.IGNORECASE)

RECENT = 32  # outputs on a grid whose tensors a run that looks for a layer keeps alive


@dataclass(eq=False)
class LayerCandidate:
    """One tensor that a call of a layer returned."""

    layer: Layer
    call: int
    path: TensorPath
    shape: tuple[int, ...]
    grid: ImageGrid | None
    needed: bool = False
    value: Tensor | None = None
    gradient: Tensor | None = None
    tensor: Tensor | None = None
    version: int = 0
    is_view: bool = False
    edge: GradientEdge | None = None
    attention: nn.Module | None = None

    @property
    def changed_in_place(self) -> bool:
        """Whether the tensor, or one that shares its memory, may have changed since its return."""
        return self.tensor is None or self.tensor._version != self.version

    @property
    def cut_off(self) -> bool:
        """Whether autograd cannot give all of its gradient.

        A view that is changed in place gets another edge.
        """
        return self.edge is None or (self.is_view and self.changed_in_place)

    @property
    def key(self) -> str:
        """The tensor's name in a capture."""
        return key_of(self.layer.name, self.call, what_of(OUTPUT, self.path))


class LayerScan(CallSubscriber, SignalSafeContext["LayerScan"]):
    """Lists the tensors that the layers of a model return while the ``with`` block runs."""

    def __init__(
        self,
        model: nn.Module,
        batch: int,
        image: tuple[int, ...],
        keep: Layer | None = None,
        *,
        clones: bool,
    ) -> None:
        self.candidates: list[LayerCandidate] = []
        self._model, self._batch, self._image = model, batch, image
        self._keep = keep
        self._clones = clones
        self._recent: deque[LayerCandidate] = deque()
        self._registry = CallRegistry(model)
        self.calls = self._registry.counts
        self._known: dict[tuple[int, ...], None] = {}
        self._seen: set[tuple[torch.dtype, torch.Size]] = set()
        self._attention_of = _attention_of_parts(model)

    def _enter(self) -> LayerScan:
        if self._keep is None:
            self._registry.subscribe(self, layers_of(self._model))
        else:
            self._registry.subscribe(self, [self._keep])
            self._registry.hooks.after_any(self._find_grids)
        return self

    def _leave(self, *error: object) -> None:
        self._registry.unsubscribe(self)

    def after_call(self, call: ModuleCall, state: None) -> None:
        """List what a call returned."""
        if not call.number or call.failed:
            return
        call.output = map_tensors(call.output, partial(self._look, call.layer, call.number))

    def _find_grids(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Find the grids of what a module returned."""
        for _, tensor in walk(output, whole=True):
            if (tensor.dtype, tensor.shape) not in self._seen:
                self._find_grid(tensor, type(module).__name__)
                if len(self._image) > 1:  # the grid of a signal depends on more than its shape
                    self._seen.add((tensor.dtype, tensor.shape))

    def _find_grid(self, tensor: Tensor, type: str) -> ImageGrid | None:
        """Find the grid of a tensor; those of maps tell later what grid a row of tokens has."""
        if not tensor.is_floating_point():
            return None
        grid = find_image_grid(tuple(tensor.shape), self._batch, self._image, self._known, type)
        if grid is not None and grid.layout != "NLC":
            self._known[grid.sides] = None
        return grid

    def _look(self, layer: Layer, call: int, path: TensorPath, tensor: Tensor) -> Tensor:
        grid = self._find_grid(tensor, layer.type)
        candidate = LayerCandidate(
            layer,
            call,
            path,
            tuple(tensor.shape),
            grid,
            attention=self._attention_of.get(layer.module),
        )
        self.candidates.append(candidate)
        if grid is None:
            return tensor
        if self._keep is not None:
            candidate.value = tensor.detach().clone()
        if not self._clones:
            self._observe(candidate, tensor)
            return tensor
        # The graph begins here if it has not begun before. Later in-place operations change the
        # clone.
        source = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        clone = source.clone()
        if clone.requires_grad:  # not if the model itself turned gradients off
            self._registry.hooks.listen(clone, partial(self._on_grad, candidate, grid))
        return clone

    def _observe(self, candidate: LayerCandidate, tensor: Tensor) -> None:
        if carries_gradient(tensor):
            # A later in-place operation gives the tensor another edge.
            candidate.edge, candidate.version = get_gradient_edge(tensor), tensor._version
        candidate.tensor, candidate.is_view = tensor, tensor._is_view()
        self._recent.append(candidate)
        if len(self._recent) > RECENT:
            self._recent.popleft().tensor = None

    def _on_grad(self, candidate: LayerCandidate, grid: ImageGrid, grad: Tensor | None) -> None:
        if grad is None:
            return
        candidate.needed = candidate.needed or bool(grid.maps(grad).count_nonzero())
        if self._keep is not None:
            candidate.gradient = grad.detach().clone()


def _attention_of_parts(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """Map the parts of attention modules to these: the innermost whose class is named so."""
    named = [m for m in model.modules() if _ATTENTION_CLASS.search(type(m).__name__)]
    innermost = [
        m for m in named if not any(part in named for part in m.modules() if part is not m)
    ]
    return {part: module for module in innermost for part in module.modules() if part is not module}


def last_where(
    holds: Callable[[Sequence[LayerCandidate]], Iterable[bool]],
    candidates: Sequence[LayerCandidate],
) -> int:
    """Return the index of the last candidate for which ``holds`` is true; -1 if there is none.

    ``holds`` gets the last one, the two before it, the four before these, and so on, because each
    call may be a backward pass to the first of its candidates.
    """
    end, count = len(candidates), 1
    while end > 0:
        start = max(end - count, 0)
        indices = [start + i for i, true in enumerate(holds(candidates[start:end])) if true]
        if indices:
            return indices[-1]
        end, count = start, count * 2
    return -1


def grid_candidates(
    candidates: Sequence[LayerCandidate], skips: Callable[[LayerCandidate], bool]
) -> list[LayerCandidate]:
    """Return the candidates on a grid that can explain the model's score.

    What ``skips`` is true for, attention weights, queries, keys and values are left out.
    """
    suitable = [
        (candidate, grid)
        for candidate, grid in _without_attention_weights(candidates)
        if not skips(candidate)
    ]
    attends = {candidate.layer.module for candidate, grid in suitable if grid.layout == "NLC"}
    return [
        candidate
        for candidate, grid in suitable
        if grid.layout != "NLC" or candidate.attention not in attends
    ]


def _without_attention_weights(
    candidates: Sequence[LayerCandidate],
) -> list[tuple[LayerCandidate, ImageGrid]]:
    """The candidates on a grid whose sides are not numbers of tokens, each with its grid."""
    on_grid = [(candidate, candidate.grid) for candidate in candidates if candidate.grid]
    lengths = {candidate.shape[1] for candidate, grid in on_grid if grid.layout == "NLC"}
    return [
        (candidate, grid)
        for candidate, grid in on_grid
        if grid.layout == "NLC" or not _are_tokens(candidate.shape, grid, lengths)
    ]


def _are_tokens(shape: tuple[int, ...], grid: ImageGrid, lengths: set[int]) -> bool:
    """Whether the sides of a grid are numbers of tokens; those of a signal are (N, L, L)."""
    if len(grid.sides) == 1:
        return shape[1] == shape[2] and shape[1] in lengths
    return not lengths.isdisjoint(grid.sides)


def choose_candidate(
    candidates: Sequence[LayerCandidate],
    skips: Callable[[LayerCandidate], bool],
    *,
    needed: bool,
) -> LayerCandidate:
    """Return the last candidate on a grid that the score needs."""
    on_grid = grid_candidates(candidates, skips)
    chosen = next((candidate for candidate in reversed(on_grid) if candidate.needed), None)
    if chosen is not None:
        return chosen
    if on_grid and not needed:
        return on_grid[-1]
    if on_grid:
        classes = {type(candidate.layer.module).__name__ for candidate in candidates}
        attends = any(map(_ATTENTION_CLASS.search, classes))
        methods = "rollout, --by eigencam" if attends else "eigencam"
        raise RequestError(
            f"The score has no gradient at any of the {len(on_grid)} spatial layer outputs.",
            "An untrained last layer of zeros passes no gradient back for any target: load trained"
            f" weights with --weights, or choose --by {methods}.",
        )
    raise RequestError(
        "No layer of this model has a spatial output: maps (N, C, H, W) or (N, H, W, C), those of"
        " a volume or a signal, or tokens (N, L, C) whose number fits the input.",
        "Use --by saliency or --by integrated, which need no such layer.",
    )


def last_on_grid(candidates: Sequence[LayerCandidate], layer: Layer) -> LayerCandidate:
    """Return the last candidate on a grid of one layer."""
    of_layer = [candidate for candidate in candidates if candidate.layer.module is layer.module]
    on_grid = _without_attention_weights(of_layer)
    if on_grid:
        return on_grid[-1][0]
    if not of_layer:
        raise RequestError(
            f"Layer {layer.title} ({layer.type}) never ran, or returned no tensor.",
            "Name another layer, or leave out --layer.",
        )
    sizes = (shape_text(candidate.shape, "one number") for candidate in of_layer[-3:])
    shapes = " and ".join(sizes)
    raise RequestError(
        f"Layer {layer.title} ({layer.type}) has no spatial output ({shapes}); a map needs one.",
        "Name a layer that returns feature maps or patches, or leave out --layer for the last one.",
    )
