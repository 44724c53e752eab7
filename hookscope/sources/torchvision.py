"""Models of torchvision by name, with their preprocessing and weights."""

from __future__ import annotations

import inspect
import logging
import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookscope.errors import EnvironmentFault, InputError, ModelError, RequestError, WeightsError
from hookscope.files.hashes import BackgroundHash, blake3_of
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.files.words import shape_text
from hookscope.sources import arguments, downloads, weights
from hookscope.sources.loaded import (
    BATCH,
    LIST,
    PAIR,
    LoadedModel,
    LoadRequest,
    Numbers,
    Recipe,
    Size,
    WeightsInfo,
    clip_layout,
    sides_of,
)
from hookscope.sources.meta import build_model
from hookscope.specs.catalog import ModelInfo, check_model_name, no_such_weights
from hookscope.specs.model_spec import TORCHVISION, is_weights_file
from hookscope.specs.request import ModelRequest
from hookscope.tensors.threads import SharedSetting

if TYPE_CHECKING:
    from PIL.Image import Image

    RunAndText = tuple[Callable[[Image], Tensor], str]

with warnings.catch_warnings():  # warnings of torchvision about its own code
    warnings.simplefilter("ignore")
    try:
        from torchvision import models
        from torchvision.transforms import functional as F
    except ModuleNotFoundError as exc:
        if exc.name != "torchvision":
            raise
        raise EnvironmentFault(
            "torchvision is not installed.", "Install it: python -m pip install torchvision"
        ) from exc
    except (ImportError, RuntimeError, OSError, AttributeError) as exc:
        raise EnvironmentFault(
            f"torchvision does not match torch {torch.__version__}: {exc}.",
            "Install matching releases: python -m pip install --upgrade torch torchvision",
        ) from exc


_FLOW_STEP, _FLOW_MIN = 8, 128  # the sides that RAFT's pyramid supports
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
_LAYOUTS = {"detection": LIST, "optical flow": PAIR, "video": clip_layout(_FRAMES)}


def pretrained_weights(name: str) -> list[Any]:
    """Return the pretrained weights for the float model called ``name``."""
    return [member.meta.get("unquantized") or member for member in models.get_model_weights(name)]


def choose_weights(name: str, spec: str) -> Any:
    """Return the pretrained weights called ``spec``; None if that is ``random`` or a file."""
    if spec == "random":
        return None
    known = {member.name: member for member in pretrained_weights(name)}
    if spec.lower() == "default":
        default = models.get_model_weights(name).DEFAULT
        return default.meta.get("unquantized") or default
    if spec in known:
        return known[spec]
    if is_weights_file(spec):
        return None
    raise no_such_weights(name, spec, known)


def preset_recipe(
    entry: Any, size: Size | None = None, mean: Numbers = None, std: Numbers = None
) -> Recipe:
    """Return the recipe of the weights ``entry``; the other arguments override its own values."""
    preset = entry.transforms()
    name = type(preset).__name__
    build = _BUILDERS.get(name)
    if build is None:
        return Recipe(preset, f"{entry!r}: {name}", None)
    run, text = build(preset, sides_of(size) if size is not None else None, mean, std)
    return Recipe(run, f"{entry!r}: {text}", lambda *values: preset_recipe(entry, *values))


def _image(preset: Any, size: Any, mean: Numbers, std: Numbers) -> RunAndText:
    _normalise(preset, mean, std)
    if size:
        margin = preset.resize_size[0] / preset.crop_size[0]
        preset.resize_size = [round(max(size) * margin)]
        preset.crop_size = list(size)
    return preset, f"{_resized(preset)}, {_normalised(preset)}"


def _segmentation(preset: Any, size: Any, mean: Numbers, std: Numbers) -> RunAndText:
    _normalise(preset, mean, std)
    if size:
        preset.resize_size = list(size)
    return preset, f"{_resized(preset)}, {_normalised(preset)}"


def _video(preset: Any, size: Any, mean: Numbers, std: Numbers) -> RunAndText:
    _normalise(preset, mean, std)
    if size:
        factor = max(new / old for new, old in zip(size, preset.crop_size, strict=True))
        preset.resize_size = [round(side * factor) for side in preset.resize_size]
        preset.crop_size = list(size)

    def frame(image: Image) -> Tensor:
        clip: Tensor = preset(F.pil_to_tensor(image)[None])
        return clip[:, 0]

    return frame, f"each frame: {_resized(preset)}, {_normalised(preset)}"


def _detection(preset: Any, size: Any, mean: Numbers, std: Numbers) -> RunAndText:
    _check_unchanged(mean, std, "A detector normalises images itself.")

    def scaled(image: Image) -> Tensor:
        tensor: Tensor = preset(F.resize(image, list(size), antialias=True) if size else image)
        return tensor

    return scaled, f"{f'resized to {shape_text(size)}' if size else 'own size'}, scaled to 0-1"


def _flow(preset: Any, size: Any, mean: Numbers, std: Numbers) -> RunAndText:
    _check_unchanged(mean, std, "Optical flow models take values from -1 to 1.")
    if size and (any(side % _FLOW_STEP for side in size) or min(size) < _FLOW_MIN):
        raise InputError(
            f"Optical flow models do not take images of {shape_text(size)}.",
            f"Height and width must be multiples of {_FLOW_STEP} and at least {_FLOW_MIN}.",
        )

    def frame(image: Image) -> Tensor:
        nearest = [
            max(_FLOW_MIN, round(side / _FLOW_STEP) * _FLOW_STEP)
            for side in (image.height, image.width)
        ]
        sides = list(size or nearest)
        if sides != [image.height, image.width]:
            image = F.resize(image, sides, antialias=True)
        first, _ = preset(image, image)
        return torch.as_tensor(first)

    nearest_text = f"the nearest multiple of {_FLOW_STEP}, at least {_FLOW_MIN}"
    return frame, f"resized to {shape_text(size) if size else nearest_text}, scaled to -1..1"


_BUILDERS: dict[str, Callable[..., RunAndText]] = {
    "ImageClassification": _image,
    "SemanticSegmentation": _segmentation,
    "VideoClassification": _video,
    "ObjectDetection": _detection,
    "OpticalFlow": _flow,
}


def _normalise(preset: Any, mean: Numbers, std: Numbers) -> None:
    preset.mean = list(mean) if mean is not None else preset.mean
    preset.std = list(std) if std is not None else preset.std


def _normalised(preset: Any) -> str:
    return f"mean {_list(preset.mean)}, std {_list(preset.std)}"


def _resized(preset: Any) -> str:
    sides = preset.resize_size
    how = f"shorter side to {sides[0]}" if len(sides) == 1 else f"resized to {shape_text(sides)}"
    crop = getattr(preset, "crop_size", None)
    how += f" ({preset.interpolation.value})"
    return f"{how}, centre crop {shape_text(crop * 2 if len(crop) == 1 else crop)}" if crop else how


def _check_unchanged(mean: Numbers, std: Numbers, why: str) -> None:
    if mean is not None or std is not None:
        raise InputError("This model takes no --mean or --std.", why)


def _list(values: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in values)


def load(request: LoadRequest) -> LoadedModel:
    """Build a model of torchvision."""
    name = request.spec.name
    check_model_name(name, models.list_models(), suggest_sources=True)
    chosen = None if request.meta else choose_weights(name, request.weights.spec)
    entry = chosen or models.get_model_weights(name).DEFAULT
    module, info = _build(request, chosen)
    package = models.get_model_builder(name).__module__.split(".")[2]
    task = _TASKS.get(package, "classification")
    if task == "quantized":
        log.info("%s: built as a float model, without quantization", name)
    loaded = LoadedModel(
        module=module,
        spec=request.spec.text,
        name=name,
        source=TORCHVISION,
        task=task,
        categories=()
        if "num_classes" in request.model_args
        else tuple(entry.meta.get("categories") or ()),
        weights=info,
        own_recipe=preset_recipe(entry),
        layout=_LAYOUTS.get(task, BATCH),
        min_size=max(entry.meta.get("min_size", (1, 1))),
    )
    side = getattr(module, "image_size", None)  # a vision transformer takes images of one size only
    if isinstance(side, int) and loaded.own_recipe and loaded.own_recipe.tuned:
        loaded = replace(loaded, own_recipe=loaded.own_recipe.tuned(side, None, None))
    side = side or _SIDES.get(task) or int(max(entry.transforms().crop_size))
    return replace(loaded, shape=_shape(task, side))


def live() -> tuple[ModelInfo, ...]:
    """Describe every model of the installed torchvision, each built once on the meta device."""
    return tuple(_describe(name) for name in models.list_models())


def _describe(name: str) -> ModelInfo:
    loaded = load(LoadRequest(ModelRequest(name), meta=True))
    assert loaded.shape is not None
    return ModelInfo(
        name=name,
        task=loaded.task,
        parameters=sum(p.numel() for p in loaded.module.parameters()),
        weights=tuple(member.name for member in pretrained_weights(name)),
        input=shape_text(loaded.shape),
    )


def _build(request: LoadRequest, entry: Any) -> tuple[nn.Module, WeightsInfo]:
    """The model with the pretrained weights ``entry``, or without."""
    name, seed = request.spec.name, request.seed
    builder = models.get_model_builder(name)
    options = _plain_options(builder, name)
    keywords = arguments.convert_arguments(builder, request.model_args)
    for reserved in keywords.keys() & _RESERVED:
        raise RequestError(f"{reserved!r} cannot be a model argument.", "Use --weights instead.")
    if entry is None:
        create = partial(_call, name, builder, {**options, **keywords}, keywords, seed)
        return weights.build(create, request)
    path = downloads.fetch(entry.url)
    file_hash = BackgroundHash(blake3_of, path)
    options.pop("image_size", None)  # the weights set it
    options = {**options, **keywords, "weights": entry}
    with weights_only_load(path):
        module = _call(name, builder, options, keywords, seed, nullcontext())
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


def _shape(task: str, side: int) -> tuple[int, ...]:
    if task == "detection":
        return (3, side, side)
    return (1, 3, _FRAMES, side, side) if task == "video" else (1, 3, side, side)


@contextmanager
def _forcing_weights_only() -> Iterator[None]:
    variable = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


_weights_only = SharedSetting(_forcing_weights_only)


@signal_safe_contextmanager
def weights_only_load(path: str) -> Iterator[None]:
    """While active, every torch.load builds plain values only, also in torchvision's builders."""
    _weights_only.acquire()
    try:
        yield
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as exc:
        why = str(exc).partition("\n")[0]
        raise WeightsError(
            f"The cached weights {path!r} cannot be read: {why}",
            "Delete the file to download it again.",
        ) from exc
    finally:
        _weights_only.release()
