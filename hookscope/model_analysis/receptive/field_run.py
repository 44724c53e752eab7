"""A pass that finds the receptive field of each layer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import RequestError
from hookscope.execution.failures.failure_explanation import explain_forward_errors
from hookscope.execution.forward import forward
from hookscope.execution.isolation import disable_mha_fast_path, frozen
from hookscope.execution.prepare import Prepared
from hookscope.files.signal_safety import signal_safe, signal_safe_contextmanager
from hookscope.files.words import shape_text
from hookscope.hooks.layers import layers_of
from hookscope.hooks.module_call import RecordKey
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import SinkBase
from hookscope.inputs.input_checks import check_noise_shape
from hookscope.model_analysis.receptive.dependency_tracker import DependencyTracker
from hookscope.model_analysis.receptive.unit_fields import field_of
from hookscope.results.module_tree import ModuleTree
from hookscope.results.receptive_field import ReceptiveField
from hookscope.sources.loaded import LoadedModel
from hookscope.sources.meta import meta_copy
from hookscope.specs.model_spec import ONNX
from hookscope.specs.tensor_key import OUTPUT
from hookscope.tensors.grad_mode import grad_mode
from hookscope.tensors.nested import as_call, map_tensors, walk

log = logging.getLogger("hookscope")

_DIMENSIONS = (4, 5, 3)  # of images, volumes and signals; in this order
_MOST_POSITIONS = 1 << 22  # of an input that is enlarged

Fields = Mapping[str, ReceptiveField]


@dataclass(frozen=True)
class _Pass:
    """The fields of all layers for an input of this shape."""

    shape: tuple[int, ...]
    fields: Fields

    def larger(self) -> tuple[int, ...] | None:
        """The shape with twice the sides that are too small; None if none is, or too large."""
        small = {
            i + 2
            for field in self.fields.values()
            for i, side in enumerate(field.sides)
            if side.needs_more
        }
        shape = tuple(n * 2 if i in small else n for i, n in enumerate(self.shape))
        return shape if small and torch.Size(shape[2:]).numel() <= _MOST_POSITIONS else None


def add_fields(
    tree: ModuleTree,
    loaded: LoadedModel,
    shape: Sequence[int] | None = None,
    reload: Callable[[], LoadedModel] | None = None,
) -> ModuleTree:
    """Return ``tree`` with the receptive field of each module whose output depends on the image.

    Without a shape, the sides of the input are doubled while fields go on beyond its edges, as far
    as the model takes that. Of several calls of a module the first counts.
    """
    check_operators_are_seen(loaded)
    if shape is not None:
        check_noise_shape(loaded, tuple(shape))
    value = loaded.example(0) if shape is None else loaded.layout.make_noise(tuple(shape), 0)
    found = _first_pass(loaded, value, reload)
    while shape is None and (larger := found.larger()):
        try:
            bigger = _on_meta(loaded, loaded.layout.make_noise(larger, 0))
        except Exception:  # a model that takes one size, or reads values
            break
        found = bigger
    log.info("receptive fields: for an input of %s", shape_text(found.shape))
    nodes = tuple(replace(node, field=found.fields.get(node.name)) for node in tree.modules)
    return replace(tree, modules=nodes, total=replace(tree.total, field=nodes[0].field))


def check_operators_are_seen(loaded: LoadedModel) -> None:
    """Raise RequestError for an ONNX file."""
    if loaded.source == ONNX:
        raise RequestError(
            "The operators of an ONNX file run in onnxruntime, which shows no dependencies.",
            "Use the model that the file was exported from.",
        )


def spatial_input(value: Any, loaded: LoadedModel) -> Tensor:
    """Return the images (N, C, H, W), volumes or signals among the arguments of a model."""
    tensors = list(walk(as_call(value)))
    for ndim in _DIMENSIONS if loaded.task != "detection" else ():
        for path, tensor in tensors:
            if tensor.ndim == ndim and tensor.is_floating_point() and len(path) == 2:
                return tensor
    shapes = " and ".join(shape_text(tensor.shape, "one number") for _, tensor in tensors)
    if loaded.task == "detection":
        raise RequestError(
            f"{loaded.spec} takes a list of images and resizes them: positions of its layers are"
            " not those of one input.",
            "Give the backbone alone, as a model of its own.",
        )
    raise RequestError(
        "A receptive field is a part of an image (N, C, H, W), a volume (N, C, D, H, W) or a signal"
        f" (N, C, L), and the input of {loaded.spec} is {shapes or 'no tensor'}.",
        "Leave out --receptive; for tokens, 'hookscope attribute' shows what an output depends on.",
    )


def _first_pass(loaded: LoadedModel, value: Any, reload: Callable[[], LoadedModel] | None) -> _Pass:
    """The fields of a pass on the meta device, or of a real one if the model reads values."""
    spatial_input(value, loaded)
    try:
        return _on_meta(loaded, value)
    except Exception as meta_error:
        on_meta = any(parameter.is_meta for parameter in loaded.module.parameters())
        module = reload().module if on_meta and reload else loaded.module
        device = next((p.device for p in module.parameters()), torch.device("cpu"))
        moved = map_tensors(value, lambda path, tensor: tensor.to(device))
        prepared = Prepared(loaded, module, (), moved, (), 0, device, "", module.training)
        with explain_forward_errors(prepared), prepared.preserved():
            try:
                return _pass(module, spatial_input(moved, loaded), lambda: forward(prepared))
            except RequestError as error:
                raise error from meta_error


def _on_meta(loaded: LoadedModel, value: Any) -> _Pass:
    module = loaded.module
    on_meta = any(parameter.is_meta for parameter in module.parameters())
    copy = module if on_meta else meta_copy(module)
    moved = map_tensors(value, lambda path, tensor: tensor.to("meta"))
    args, kwargs = as_call(moved)
    return _pass(copy, spatial_input(moved, loaded), lambda: copy(*args, **kwargs))


def _pass(module: nn.Module, image: Tensor, run: Callable[[], Any]) -> _Pass:
    tracker = DependencyTracker()
    sink = _FieldSink(tracker, tuple(image.shape[2:]))
    recorder = Recorder(module, layers_of(module), [OUTPUT], sink=sink)
    with frozen(module.parameters()), following(tracker), recorder:
        tracker.follow(image)
        run()
    if tracker.unknown:
        log.info(
            "receptive fields: taken to depend on all of their arguments: %s",
            ", ".join(sorted(tracker.unknown)),
        )
    return _Pass(tuple(image.shape), sink.fields)


@signal_safe_contextmanager
def following(tracker: DependencyTracker) -> Iterator[None]:
    """Let a tracker see the operators within the block, without autograd and fused attention."""
    with grad_mode(False), disable_mha_fast_path(), signal_safe(tracker):
        yield


class _FieldSink(SinkBase):
    """Keeps the receptive field of the first output of each layer, and no tensor."""

    def __init__(self, tracker: DependencyTracker, sides: tuple[int, ...]) -> None:
        super().__init__()
        self.fields: dict[str, ReceptiveField] = {}
        self._tracker, self._sides = tracker, sides

    def store(self, key: RecordKey, tensor: Tensor) -> None:
        """Find the field of an output."""
        bounds = self._tracker.bounds(tensor)
        if bounds is not None and key.layer.name not in self.fields:
            self.fields[key.layer.name] = field_of(bounds, self._sides)

    def store_gradient(
        self, key: RecordKey, gradient: Tensor, weight_norm: float | None = None
    ) -> Tensor | None:
        """Receive nothing: no gradient is recorded."""
        return None
