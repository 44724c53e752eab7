"""Models of timm by name, with its preprocessing and its pretrained weights."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import nn

from hookscope.errors import ModelError, RequestError, WeightsError
from hookscope.files.hashes import BackgroundHash, blake3_of
from hookscope.files.optional_packages import optional_package
from hookscope.files.words import shape_text
from hookscope.sources import arguments, downloads, hub_downloads, weights
from hookscope.sources.loaded import LoadedModel, LoadRequest, Recipe, Size, WeightsInfo, sides_of
from hookscope.sources.meta import build_model
from hookscope.sources.torchvision import weights_only_load
from hookscope.specs.catalog import ModelInfo, check_model_name
from hookscope.specs.model_spec import TIMM

with optional_package("timm", "timm", "A timm: model"):
    import timm
    import timm.data

log = logging.getLogger("hookscope")
data: Any = timm.data  # has no type annotations

# Arguments about weights, which --weights replaces.
_RESERVED = {"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path"}
_RESERVED |= {"cache_dir"}
_FILES = ("model.safetensors", "pytorch_model.bin")


def load(request: LoadRequest) -> LoadedModel:
    """Build a model of timm."""
    name = request.spec.name
    if not timm.is_model(name.partition(".")[0]):
        check_model_name(name, timm.list_models(), "hookscope models 'timm:*' lists all names.")
    elif "." in name:
        check_model_name(name, timm.list_pretrained(), "Without a tag, the default tag is used.")
    keywords = arguments.convert_arguments(timm.create_model, request.model_args)
    for reserved in keywords.keys() & _RESERVED:
        raise RequestError(f"{reserved!r} cannot be a model argument.", "Use --weights instead.")
    if request.weights.spec.lower() == "default" and not request.meta:
        module, info = _pretrained(name, keywords, request.seed)
    else:
        module, info = weights.build(partial(_create, name, keywords, request.seed), request)
    config = _data_config(module, keywords)
    classes = getattr(module, "num_classes", 0)
    colour = config["input_size"][0] == 3
    return LoadedModel(
        module=module,
        spec=request.spec.text,
        name=name,
        source=TIMM,
        task="classification" if classes and colour else "",
        categories=_categories(module, classes),
        weights=info,
        own_recipe=_recipe(config),
        shape=(1, *config["input_size"]),
    )


def live() -> tuple[ModelInfo, ...]:
    """Describe every model of the installed timm, without building it."""
    tags: dict[str, list[str]] = {}
    for full in timm.list_pretrained():
        name, _, tag = full.partition(".")
        tags.setdefault(name, []).append(tag or "default")
    return tuple(_describe(name, tags.get(name, [])) for name in timm.list_models())


def _describe(name: str, tags: list[str]) -> ModelInfo:
    config = timm.models.get_pretrained_cfg(name)
    shape = shape_text((1, *config.input_size)) if config else ""
    task = "classification" if config is None or config.num_classes else ""
    return ModelInfo(f"{TIMM}:{name}", task, None, tuple(tags), shape)


def _pretrained(name: str, keywords: dict[str, Any], seed: int) -> tuple[nn.Module, WeightsInfo]:
    config = timm.models.get_pretrained_cfg(name)
    if config is None or not (config.hf_hub_id or config.url):
        raise WeightsError(
            f"timm has no pretrained weights for {name}.", "Use --weights FILE or --weights random."
        )
    if config.hf_hub_id:
        path = hub_downloads.fetch_file(config.hf_hub_id, _FILES)
    else:
        path = downloads.fetch(str(config.url))
    file_hash = BackgroundHash(blake3_of, path)
    # A model's own loader reads the file at ``url``, not the one on the hub.
    custom = config.custom_load and not config.hf_hub_id
    with weights_only_load(path):
        overlay = {"file": path, "custom_load": custom}
        module = _create(name, keywords, seed, pretrained=True, pretrained_cfg_overlay=overlay)
    return module, WeightsInfo(config.tag or "default", file_hash)


def _create(
    name: str,
    keywords: Mapping[str, Any],
    seed: int,
    context: AbstractContextManager[Any] | None = None,
    **options: Any,
) -> nn.Module:
    try:
        return build_model(
            lambda: timm.create_model(name, **keywords, **options), seed=seed, context=context
        )
    except (TypeError, ValueError, RuntimeError, AssertionError, KeyError) as exc:
        if keywords and not options:
            raise ModelError(
                f"{name} cannot be built with {arguments.format_arguments(keywords)}: {exc}",
                "Correct --model-arg.",
            ) from exc
        raise


def _data_config(module: nn.Module, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The image preprocessing that timm has for ``module``, with the user's arguments."""
    config: dict[str, Any] = data.resolve_model_data_config(module)
    channels, height, width = config["input_size"]
    size = keywords.get("img_size", (height, width))
    channels = keywords.get("in_chans", channels)
    for name in ("mean", "std"):
        config[name] = tuple(config[name])[:channels]
    return {**config, "input_size": (channels, *sides_of(size))}


def _recipe(config: Mapping[str, Any]) -> Recipe:
    transform = data.create_transform(**config, is_training=False)
    _, height, width = config["input_size"]
    scaled = f"shorter side to {math.floor(min(height, width) / config['crop_pct'])}"
    if config["crop_mode"] != "center":
        scaled = f"crop mode {config['crop_mode']}"
    mean, std = (" ".join(f"{v:g}" for v in config[name]) for name in ("mean", "std"))
    how = f"{scaled} ({config['interpolation']}), centre crop {height}x{width}"

    def tuned(size: Size | None, mean: Any, std: Any) -> Recipe:
        changes = {"input_size": (config["input_size"][0], *sides_of(size))} if size else {}
        for name, values in (("mean", mean), ("std", std)):
            changes |= {name: tuple(values)} if values is not None else {}
        return _recipe({**config, **changes})

    return Recipe(transform, f"timm: {how}, mean {mean}, std {std}", tuned)


def _categories(module: nn.Module, classes: int) -> tuple[str, ...]:
    subset = data.infer_imagenet_subset(module)
    info = data.ImageNetInfo(subset) if subset else None
    if info is None or info.num_classes() != classes:
        return ()
    return tuple(info.index_to_description(i).partition(",")[0] for i in range(classes))
