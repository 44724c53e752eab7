"""Models of torchvision by name, with weights from torchvision or from a file."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from hookscope.errors import ModelError, RequestError
from hookscope.files.background_hash import BackgroundHash
from hookscope.files.weight_files import blake3_of
from hookscope.sources import arguments, downloads, torchvision_weights, weights
from hookscope.sources.layouts import BATCH, LIST, PAIR, Layout, clip_layout
from hookscope.sources.loaded import LoadedModel, WeightsInfo, WeightsRequest
from hookscope.sources.meta import ParametersOnMeta, build_model
from hookscope.sources.presets import preset_recipe
from hookscope.sources.torchvision_weights import models
from hookscope.specs.catalog import ModelInfo, check_model_name
from hookscope.specs.model_spec import TORCHVISION, ModelSpec

if TYPE_CHECKING:
    pass


log = logging.getLogger("hookscope")
_TASKS = {
    "detection": "detection",
    "segmentation": "segmentation",
    "video": "video",
    "optical_flow": "optical flow",
    "quantization": "quantized",
}
# The side of noise images. Detectors resize every image, so theirs is small.
_SIDES = {"detection": 320, "segmentation": 520, "optical flow": 128}
_RESERVED = {"weights", "weights_backbone", "quantize", "progress"}
_FRAMES = 16  # the video weights were trained on about as many


def load(
    spec: ModelSpec, *, weights: WeightsRequest, model_args: dict[str, Any], seed: int, meta: bool
) -> LoadedModel:
    """Build a model of torchvision; see ``hookscope.sources.model_loader.load``."""
    name = spec.name
    check_model_name(name, models.list_models(), suggest_sources=True)
    entry = models.get_model_weights(name).DEFAULT
    if not meta:
        entry = torchvision_weights.choose_weights(name, weights.spec) or entry
    module, info = _build(name, weights, model_args, seed, meta)
    task = _task(name)
    if task == "quantized":
        log.info("%s: built as a float model, without quantization", name)
    loaded = LoadedModel(
        module=module,
        spec=spec.text,
        name=name,
        source=TORCHVISION,
        task=task,
        categories=() if "num_classes" in model_args else _categories(entry),
        weights=info,
        own_recipe=preset_recipe(entry),
        layout=_layout(task),
        min_size=max(entry.meta.get("min_size", (1, 1))),
    )
    side = getattr(module, "image_size", None)  # a vision transformer takes images of one size only
    if isinstance(side, int) and loaded.own_recipe and loaded.own_recipe.tuned:
        loaded = replace(loaded, own_recipe=loaded.own_recipe.tuned(side, None, None))
    return replace(loaded, shape=_shape(task, side or _side(entry, task)))


def live() -> tuple[ModelInfo, ...]:
    """Describe every model of the installed torchvision, each built once on the meta device."""
    return tuple(_describe(name) for name in models.list_models())


def _describe(name: str) -> ModelInfo:
    loaded = load(
        ModelSpec(TORCHVISION, name, "", name),
        weights=WeightsRequest(),
        model_args={},
        seed=0,
        meta=True,
    )
    assert loaded.shape is not None
    return ModelInfo(
        name=name,
        task=loaded.task,
        parameters=sum(p.numel() for p in loaded.module.parameters()),
        weights=tuple(member.name for member in torchvision_weights.pretrained_weights(name)),
        input="x".join(map(str, loaded.shape)),
    )


def _build(
    name: str, request: WeightsRequest, model_args: dict[str, Any], seed: int, meta: bool
) -> tuple[nn.Module, WeightsInfo]:
    builder = models.get_model_builder(name)
    options = _plain_options(builder, name)
    keywords = arguments.convert_arguments(builder, model_args)
    for reserved in keywords.keys() & _RESERVED:
        raise RequestError(f"{reserved!r} cannot be a model argument.", "Use --weights instead.")
    create = partial(_call, name, builder, {**options, **keywords}, keywords, seed)
    if meta:
        return create(ParametersOnMeta()).to("meta"), WeightsInfo("none")
    entry = torchvision_weights.choose_weights(name, request.spec)
    if entry is None:
        if request.spec != "random":
            return weights.build_from_file(create, request)
        log.info("weights: random from seed %d, so untrained (--weights default: pretrained)", seed)
        return create(nullcontext()), WeightsInfo("random")
    path = downloads.fetch(entry.url)
    file_hash = BackgroundHash(blake3_of, path)
    options.pop("image_size", None)  # the weights set it
    with torchvision_weights.weights_only_load(path):
        module = _call(
            name, builder, {**options, **keywords, "weights": entry}, keywords, seed, nullcontext()
        )
    return module, WeightsInfo(entry.name, file_hash)


def _call(
    name: str,
    builder: Callable[..., nn.Module],
    options: dict[str, Any],
    keywords: dict[str, Any],
    seed: int,
    context: AbstractContextManager[Any],
) -> nn.Module:
    """Call ``builder`` from ``seed``; an error with the user's ``keywords`` is a ModelError."""
    try:
        return build_model(lambda: builder(**options), seed=seed, context=context)
    except (TypeError, ValueError, RuntimeError) as exc:
        if keywords and (options["weights"] is None or not isinstance(exc, RuntimeError)):
            raise ModelError(
                f"{name} cannot be built with {arguments.format_arguments(keywords)}: {exc}",
                "Correct --model-arg.",
            ) from exc
        raise


def _plain_options(builder: Callable[..., Any], name: str) -> dict[str, Any]:
    """Arguments with which a builder does not download or quantize."""
    parameters = inspect.signature(builder).parameters
    plain = {"weights": None, "weights_backbone": None, "quantize": False}
    options: dict[str, Any] = {key: value for key, value in plain.items() if key in parameters}
    if name.startswith("vit_"):  # the image size of the recipe
        options["image_size"] = models.get_model_weights(name).DEFAULT.meta["min_size"][0]
    return options


def _task(name: str) -> str:
    package = models.get_model_builder(name).__module__.split(".")[2]
    return _TASKS.get(package, "classification")


def _layout(task: str) -> Layout:
    return {"detection": LIST, "optical flow": PAIR, "video": clip_layout(_FRAMES)}.get(task, BATCH)


def _categories(entry: Any) -> tuple[str, ...]:
    return tuple(entry.meta.get("categories") or ())


def _side(entry: Any, task: str) -> int:
    if task in _SIDES:
        return _SIDES[task]
    return int(max(entry.transforms().crop_size))


def _shape(task: str, side: int) -> tuple[int, ...]:
    if task == "detection":
        return (3, side, side)
    return (1, 3, _FRAMES, side, side) if task == "video" else (1, 3, side, side)
