"""One run that tells which layers return something on a grid, and which of it the score needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from hookscope.errors import RequestError
from hookscope.hooks.layers import Layer, layers_of
from hookscope.hooks.registry import HookSet, inside_backward, what_of
from hookscope.results.records import key_of
from hookscope.specs.record_kinds import OUTPUT
from hookscope.tensors.gradient_gate import carries_gradient
from hookscope.tensors.image_grid import ImageGrid, find_image_grid
from hookscope.tensors.interrupts import SignalSafeContext
from hookscope.tensors.nested import TensorPath, map_tensors

RECENT = 16  # outputs on a grid that a run which looks for a layer holds on to


@dataclass(eq=False)
class LayerCandidate:
    """One tensor that a call of a layer returned.

    ``needed`` tells whether the score has a gradient that is not zero at some position of the grid:
    what a vision transformer's last layers return for the patches goes nowhere. ``value`` and
    ``gradient`` are those of the layer that is kept. ``tensor``, its ``version`` when it was
    returned, and ``edge``, its place in autograd's graph, are there where hooks only observe.
    """

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
    edge: GradientEdge | None = None

    @property
    def changed_in_place(self) -> bool:
        """Whether the tensor, or one that shares its memory, was changed after it was returned."""
        return self.tensor is None or self.tensor._version != self.version

    @property
    def cut_off(self) -> bool:
        """Whether its gradient cannot be asked for, or only in part.

        A view that is changed in place gets another edge, and what flows through the tensor that it
        is a view of passes the first one by.
        """
        view = self.tensor is None or self.tensor._is_view()
        return self.edge is None or (view and self.changed_in_place)

    @property
    def key(self) -> str:
        """The tensor's name in a capture."""
        return key_of(self.layer.name, self.call, what_of(OUTPUT, self.path))


class LayerScan(SignalSafeContext["LayerScan"]):
    """Lists what every layer of a model returns while the ``with`` block runs.

    Args:
        model: the model that is going to run.
        batch: how many images it gets.
        image: their height and width.
        keep: the one layer to keep values and gradients of; None to learn of all which the score
            needs.
        clones: hand on clones and listen to their gradients, which works wherever autograd does,
            also where no gradient reaches the image. Without it the model gets its own tensors, and
            only their edges in the graph are noted, at which ``torch.autograd.grad`` can ask.

    Attributes:
        spots: what was returned, in the order in which the calls ended.
        calls: how often each module ran.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: int,
        image: tuple[int, int],
        keep: Layer | None = None,
        *,
        clones: bool,
    ) -> None:
        self.spots: list[LayerCandidate] = []
        self.calls: dict[nn.Module, int] = {}
        self._model, self._batch, self._image = model, batch, image
        self._keep = keep
        self._clones = clones
        self._recent: deque[LayerCandidate] = deque()
        self._hooks = HookSet(model)
        self._known: dict[tuple[int, int], None] = {}

    def _enter(self) -> LayerScan:
        with self._hooks.attaching() as hooks:
            for layer in layers_of(self._model):
                hooks.after(layer.module, partial(self._after, layer))
        return self

    def _leave(self, *error: object) -> None:
        self._hooks.__exit__(None, None, None)

    def _after(self, layer: Layer, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if inside_backward():  # activation checkpointing runs it again
            return None
        call = self.calls[layer.module] = self.calls.get(layer.module, 0) + 1
        return map_tensors(output, partial(self._look, layer, call))

    def _look(self, layer: Layer, call: int, path: TensorPath, tensor: Tensor) -> Tensor:
        shape = tuple(tensor.shape)
        grid = None
        if tensor.is_floating_point():
            grid = find_image_grid(shape, self._batch, self._image, self._known)
        spot = LayerCandidate(layer, call, path, shape, grid)
        self.spots.append(spot)
        if grid is None:
            return tensor
        if grid.layout != "NLC":
            self._known[grid.height, grid.width] = None
        if self._keep is not None:
            if self._keep.module is not layer.module:
                return tensor
            spot.value = tensor.detach().clone()
        if not self._clones:
            self._observe(spot, tensor)
            return tensor
        # Gradients begin here where they have not before. What is done in place later is done to
        # the clone.
        begun = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        clone = begun.clone()
        if clone.requires_grad:  # not where the model itself turned gradients off
            self._hooks.listen(clone, partial(self._arrived, spot, grid))
        return clone

    def _observe(self, spot: LayerCandidate, tensor: Tensor) -> None:
        if carries_gradient(tensor):
            # The edge of this moment: a later change in place gives the tensor another one.
            spot.edge, spot.version = get_gradient_edge(tensor), tensor._version
        spot.tensor = tensor
        self._recent.append(spot)
        if len(self._recent) > RECENT:
            self._recent.popleft().tensor = None

    def _arrived(self, spot: LayerCandidate, grid: ImageGrid, grad: Tensor | None) -> None:
        if grad is None:
            return
        spot.needed = spot.needed or bool(grid.maps(grad).count_nonzero())
        if self._keep is not None:
            spot.gradient = grad.detach().clone()


def last_where(
    holds: Callable[[Sequence[LayerCandidate]], Iterable[bool]], spots: Sequence[LayerCandidate]
) -> int:
    """Return the index of the last spot for which ``holds`` is true; -1 where there is none.

    ``holds`` is called with the last one, then with the two before it, the four before these, and
    so on: each call may be a backward pass, as short as the way to the first of its spots.

    Example:
        >>> last_where(lambda few: [spot > 4 for spot in few], [7, 1, 5, 2, 3])
        2
    """
    end, count = len(spots), 1
    while end > 0:
        start = max(end - count, 0)
        found = [start + i for i, true in enumerate(holds(spots[start:end])) if true]
        if found:
            return found[-1]
        end, count = start, count * 2
    return -1


def grid_candidates(spots: Sequence[LayerCandidate], scores: Tensor) -> list[LayerCandidate]:
    """Return the spots that may explain ``scores``, the model's class scores, (N, C) and any more.

    The scores of a segmentation are on a grid too and explain nothing; and weights of attention,
    whose sides are numbers of tokens, are no picture.
    """
    lengths = {spot.shape[1] for spot in spots if spot.grid and spot.grid.layout == "NLC"}
    return [
        spot
        for spot in spots
        if spot.grid
        and not (scores.ndim > 2 and len(spot.shape) == 4 and spot.shape[1] == scores.shape[1])
        and (spot.grid.layout == "NLC" or not {spot.grid.height, spot.grid.width} & lengths)
    ]


def choose_candidate(
    spots: Sequence[LayerCandidate], scores: Tensor, *, needed: bool
) -> LayerCandidate:
    """Return the last spot on a grid that the score needs.

    Args:
        spots: in the order in which the calls ended.
        scores: the model's class scores, (N, C) and any more.
        needed: whether one will do only if the score needs it.

    Raises:
        RequestError: there is none.
    """
    on_grid = grid_candidates(spots, scores)
    chosen = next((spot for spot in reversed(on_grid) if spot.needed), None)
    if chosen is not None:
        return chosen
    if on_grid and not needed:
        return on_grid[-1]
    if on_grid:
        raise RequestError(
            f"The score has no gradient at any of the {len(on_grid)} layers' outputs on a grid.",
            "Choose another --target, or trained weights with --weights (a last layer of zeros has"
            " no gradient), or --by eigencam.",
        )
    raise RequestError(
        "No layer of this model returns something on a grid: maps (N, C, H, W) or (N, H, W, C), or"
        " tokens (N, L, C) whose number fits the image.",
        "saliency and integrated explain the image itself and need no such layer.",
    )


def last_on_grid(spots: Sequence[LayerCandidate], layer: Layer) -> LayerCandidate:
    """Return the last spot on a grid of one layer.

    Raises:
        RequestError: the layer never ran, or what it returned lies on no grid.
    """
    own = [spot for spot in spots if spot.layer.module is layer.module]
    found = next((spot for spot in reversed(own) if spot.grid), None)
    if found is not None:
        return found
    if not own:
        raise RequestError(
            f"The layer {layer.name} ({layer.type}) never ran, or returned no tensor.",
            "Name another one, or leave out --layer.",
        )
    shapes = " and ".join("x".join(map(str, spot.shape)) or "one number" for spot in own[-3:])
    raise RequestError(
        f"What the layer {layer.name} ({layer.type}) returns lies on no grid: {shapes}.",
        "Name a layer with maps or patches, or leave out --layer for the last one.",
    )
