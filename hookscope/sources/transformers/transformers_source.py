"""Models of transformers, from a configuration and the weights of its folder or a seed."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from torch import nn

from hookscope.errors import EnvironmentFault, ModelError, WeightsError, WeightsFileError
from hookscope.files.hashes import BackgroundHash
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.files.suggestions import did_you_mean
from hookscope.sources import arguments, weights
from hookscope.sources.hub_downloads import cached_file, fetch_folder
from hookscope.sources.loaded import LoadedModel, LoadRequest, WeightsInfo, WeightsRequest
from hookscope.sources.meta import ParametersOnMeta, build_model
from hookscope.sources.transformers.folder_names import check_adapter_names, check_configuration
from hookscope.sources.transformers.model_inputs import (
    ModelInputs,
    image_recipe,
    sound_recipe,
)
from hookscope.sources.transformers.text_inputs import text_recipe
from hookscope.specs.catalog import NO_ADAPTER
from hookscope.specs.model_spec import (
    CONFIGURATION,
    TRANSFORMERS,
    ModelSpec,
    check_weights_file,
    end_sentence,
    is_weights_file,
)
from hookscope.tensors.torch_release import READS_PICKLES, reads_pickles_safely, unsafe_pickle

log = logging.getLogger("hookscope")
_SAFE = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_CONFIGURATIONS = ("*.json", "*.txt", "*.model", "*.jinja")  # and vocabularies, but no code


def load_configuration(path: Path, model_args: Mapping[str, Any]) -> Any:
    """Return the configuration at ``path`` as an instance of its class in transformers."""
    content = _read(path)
    model_type = content.get("model_type")
    if not isinstance(model_type, str):
        raise ModelError(
            f"{str(path)!r} is not a transformers configuration: it has no model_type.",
            "Name a folder that save_pretrained wrote, or its config.json.",
        )
    known = transformers.CONFIG_MAPPING
    if model_type not in known:
        _raise_unknown(path, model_type, content, list(known.keys()))
    if "auto_map" in content:
        log.info("model: %s of transformers; the code in its folder is not run", model_type)
        content = {key: value for key, value in content.items() if key != "auto_map"}
    check_configuration(path, content)
    try:
        config = known[model_type].from_dict(content)
    except Exception as exc:  # each class has its own checks
        raise ModelError(
            f"The configuration {str(path)!r} is not valid for {model_type}:"
            f" {end_sentence(_message(exc))}",
            "Correct the file.",
        ) from exc
    for key, value in arguments.convert_arguments(type(config), model_args).items():
        _set(config, key, value)
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as exc:
        raise ModelError(
            f"The configuration {str(path)!r} cannot be read: {end_sentence(str(exc))}",
            "It must be a JSON file, as save_pretrained writes it.",
        ) from exc
    return content if isinstance(content, dict) else {}


def _raise_unknown(path: Path, model_type: str, content: dict[str, Any], known: list[str]) -> None:
    if "auto_map" in content:
        raise ModelError(
            f"{str(path)!r} is for a model with custom code, which hookscope does not run.",
            "Review that code, import it yourself, and give the model as FILE.py:NAME.",
        )
    near = did_you_mean(model_type, known)
    version = transformers.__version__
    raise ModelError(
        f"transformers {version} has no model type {model_type!r} ({str(path)!r}).",
        near or "Install a release that has it: python -m pip install --upgrade transformers",
    )


def _set(config: Any, key: str, value: Any) -> None:
    names = [name for name in config.to_dict() if not name.startswith("_")]
    if key not in names and not hasattr(config, key):
        raise ModelError(
            f"The configuration of {config.model_type} has no {key!r}.",
            did_you_mean(key, names) or f"It has {', '.join(sorted(names)[:20])} ...",
        )
    try:
        setattr(config, key, value)
        if hasattr(config, "validate"):
            config.validate()
    except Exception as exc:
        raise ModelError(
            f"{key}={value!r} is not valid for {config.model_type}: {end_sentence(_message(exc))}",
            "Correct --model-arg.",
        ) from exc


def _message(exc: BaseException) -> str:
    return " ".join(str(exc).split()) or type(exc).__name__


@dataclass(frozen=True)
class _ModelFiles:
    """The files of a model."""

    folder: Path
    config: Path
    weights: Path | None
    weights_name: str


def load(request: LoadRequest) -> LoadedModel:
    """Build a model of transformers."""
    spec, meta = request.spec, request.meta
    reads = request.inputs or not meta
    with _quiet():
        files = _find_files(spec, request.weights)
        config = load_configuration(files.config, request.model_args)
        model_class = _model_class(config)
        for kind in (request.model.attn, getattr(config, "_attn_implementation", None)):
            _check_attention(kind)
        module, info = _build(model_class, config, files, request)
        inputs = ModelInputs(module)
        adapter_info = None
        adapter = request.model.adapter
        if adapter is not None and os.fspath(adapter) != NO_ADAPTER:
            from hookscope.sources.transformers.adapter import attach_adapter

            adapter_info = attach_adapter(module, os.fspath(adapter), request.seed, meta=meta)
            module = module.to("meta") if meta else module
        return LoadedModel(
            module=module,
            spec=spec.text,
            name=spec.name,
            source=TRANSFORMERS,
            categories=_categories(module),
            weights=info,
            own_recipe=image_recipe(files.folder, inputs) if reads else None,
            own_text=text_recipe(files.folder, inputs) if reads else None,
            own_sound=sound_recipe(files.folder, inputs) if reads else None,
            layout=inputs.layout(),
            **inputs.as_example(),
            packages=("transformers", "peft") if adapter_info else (),
            adapter=adapter_info,
        )


def _find_files(spec: ModelSpec, request: WeightsRequest) -> _ModelFiles:
    path = Path(spec.path).expanduser()
    if path.is_file():
        if request.spec.lower() == "default":
            raise WeightsError(
                f"The configuration {spec.path!r} comes without weights.",
                "Give its folder, or use --weights FILE or --weights random.",
            )
        return _ModelFiles(path.parent, path, None, "")
    if path.is_dir():
        weights_file = _weights_in(path)
        if request.spec.lower() == "default" and weights_file is None:
            raise WeightsError(
                f"The folder {spec.path!r} contains no weights ({_SAFE[0]}).",
                "Use --weights FILE or --weights random.",
            )
        return _ModelFiles(path, path / CONFIGURATION, weights_file, "as saved")
    default = request.spec.lower() == "default"
    cached_config = cached_file(spec.path, [CONFIGURATION])
    folder = Path(cached_config).parent if cached_config else None
    if default and (folder is None or _weights_in(folder) is None):
        folder = Path(fetch_folder(spec.path, [*_CONFIGURATIONS, "*.safetensors"]))
        if _weights_in(folder) is None:
            folder = Path(fetch_folder(spec.path, [*_CONFIGURATIONS, "pytorch_model*.bin"]))
    if folder is None:
        raise ModelError(
            f"{spec.path!r} is not a folder, and is not in the cache of the Hugging Face Hub.",
            "Give a folder, hf:FOLDER, or download it with --weights default.",
        )
    weights_file = _weights_in(folder) if default else None
    name = f"{spec.path}@{folder.name[:7]}"
    return _ModelFiles(folder, folder / CONFIGURATION, weights_file, name)


def _weights_in(folder: Path) -> Path | None:
    return next((folder / n for n in (*_SAFE, *_PICKLED) if (folder / n).is_file()), None)


def _model_class(config: Any) -> Any:
    """The class that the configuration names, else the class without a head."""
    names: list[str] = config.architectures or []
    for name in names:
        if hasattr(transformers, name):
            return getattr(transformers, name)
        log.warning("%s is not a class of transformers; the model is built without its head", name)
    mapping: Any = transformers.MODEL_MAPPING
    if type(config) not in mapping:
        raise ModelError(
            f"transformers has no model without a head for {config.model_type!r}.",
            'Name a class in the configuration: "architectures": ["..."].',
        )
    model_class = mapping[type(config)]
    return model_class[0] if isinstance(model_class, tuple) else model_class


def _check_attention(kind: Any) -> None:
    """Refuse unknown kinds. transformers would download and run one with a slash in its name."""
    known = ["eager", *transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS.valid_keys()]
    if kind is not None and kind not in known:
        near = did_you_mean(str(kind), known)
        raise ModelError(
            f"There is no attention implementation called {kind!r}.",
            f"{near} Use {', '.join(known)}.".strip(),
        )


def _build(
    model_class: Any, config: Any, files: _ModelFiles, request: LoadRequest
) -> tuple[nn.Module, WeightsInfo]:
    seed, meta, from_file = request.seed, request.meta, is_weights_file(request.weights.spec)
    options = {} if request.model.attn is None else {"attn_implementation": request.model.attn}

    def make(context: AbstractContextManager[Any]) -> nn.Module:
        return build_model(
            lambda: model_class._from_config(config, **options), seed=seed, context=context
        )

    try:
        if files.weights is not None and not from_file and not meta:
            return _with_own_weights(model_class, config, files, options, seed)
        if from_file and not meta:
            return weights.build_from_file(make, request.weights)
        module = make(ParametersOnMeta() if meta else nullcontext())
    except (ImportError, ValueError, RuntimeError, TypeError, AttributeError, KeyError) as exc:
        raise ModelError(
            f"{model_class.__name__} cannot be built from {str(files.config)!r}:"
            f" {end_sentence(_first_line(exc))}",
            "Correct the configuration, --model-arg or --attn.",
        ) from exc
    if method := _quantization(config):
        log.info("quantization: none; the configuration names %s, which is for its weights", method)
    if meta:
        return module.to("meta"), WeightsInfo("none")
    log.info("weights: random from seed %d, so untrained", seed)
    return module, WeightsInfo("random")


def _with_own_weights(
    model_class: Any, config: Any, files: _ModelFiles, options: dict[str, Any], seed: int
) -> tuple[nn.Module, WeightsInfo]:
    """The model with the weights of its folder, read by transformers, which maps old names."""
    assert files.weights is not None
    check_adapter_names(files.folder)  # which transformers attaches by itself
    if files.weights.name in _PICKLED and not reads_pickles_safely():
        raise WeightsFileError(
            unsafe_pickle(str(files.weights)),
            f"Convert the weights to safetensors, or install torch {READS_PICKLES} or newer.",
        )
    file_hash = BackgroundHash(check_weights_file(str(files.weights)).blake3)
    loading_info: dict[str, Any] = {}

    def make() -> nn.Module:
        module, info = model_class.from_pretrained(
            str(files.folder),
            config=config,
            local_files_only=True,
            weights_only=True,
            output_loading_info=True,
            **options,
        )
        loading_info.update(info)
        return module  # type: ignore[no-any-return]

    try:
        module = build_model(make, seed=seed)
    except ImportError as exc:
        method = _quantization(config)
        if not method:
            raise
        raise EnvironmentFault(
            f"The weights in {str(files.folder)!r} are quantized ({method}), and cannot be read"
            f" without another package: {end_sentence(_first_line(exc))}",
            "Install it, or give only the configuration, for a model of the same layers with random"
            f" weights that are not quantized: hf:{files.config}",
        ) from exc
    except Exception as exc:  # the readers raise nearly any type for damaged files
        raise WeightsFileError(
            f"The weights in {str(files.folder)!r} cannot be read into {model_class.__name__}:"
            f" {end_sentence(_first_line(exc))}",
            "Give other weights with --weights FILE, or only the configuration for random weights:"
            f" hf:{files.config}.",
        ) from exc
    missing, unexpected = (
        tuple(sorted(map(str, loading_info.get(name, ()))))
        for name in ("missing_keys", "unexpected_keys")
    )
    _check_complete(module, str(files.weights), missing, unexpected)
    log.info("weights: as saved in %s", files.folder)
    return module, WeightsInfo(files.weights_name, file_hash, missing, unexpected)


def _check_complete(
    module: nn.Module, path: str, missing: tuple[str, ...], unexpected: tuple[str, ...]
) -> None:
    """Refuse weights that lack tensors of the model; warn of tensors that it does not have."""
    if missing:
        raise weights.incomplete_error(
            path,
            len(module.state_dict()),
            missing,
            unexpected,
            f"--weights {path} --partial keeps their initial values.",
        )
    weights.warn_mismatches(path, missing, unexpected)


def _quantization(config: Any) -> str:
    """The method with which the weights are quantized, such as ``gptq``; empty if they are not."""
    settings = getattr(config, "quantization_config", None) or {}
    if not isinstance(settings, dict):
        settings = settings.to_dict()
    return str(settings.get("quant_method", "")).rpartition(".")[2].lower()


def _first_line(exc: BaseException) -> str:
    return str(exc).strip().partition("\n")[0] or type(exc).__name__


def _categories(module: nn.Module) -> tuple[str, ...]:
    """The names of the classes, if they are not the default names."""
    labels = getattr(module.config, "id2label", None) or {}
    plain = all(label == f"LABEL_{index}" for index, label in labels.items())
    classified = "Classification" in type(module).__name__
    return tuple(map(str, labels.values())) if classified and not plain else ()


@signal_safe_contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log and the progress bars of transformers."""
    logging_: Any = transformers.utils.logging
    level, bars = logging_.get_verbosity(), logging_.is_progress_bar_enabled()
    logging_.set_verbosity_error()
    logging_.disable_progress_bar()
    try:
        yield
    finally:
        logging_.set_verbosity(level)
        if bars:
            logging_.enable_progress_bar()
