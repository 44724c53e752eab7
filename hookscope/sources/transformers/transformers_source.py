"""Models of transformers: a configuration, its own class, and weights from the folder or a seed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from hookscope.errors import EnvironmentFault, ModelError, WeightsError, WeightsFileError
from hookscope.sources import weights
from hookscope.sources.loaded import LoadedModel, WeightsInfo, WeightsRequest
from hookscope.sources.meta import ParametersOnMeta, build_model
from hookscope.specs.model_spec import (
    CONFIGURATION,
    TRANSFORMERS,
    ModelSpec,
    check_weights_file,
    end_sentence,
    is_weights_file,
)
from hookscope.specs.suggestions import did_you_mean
from hookscope.tensors.interrupts import signal_safe_contextmanager

try:
    import transformers
except ModuleNotFoundError as exc:
    if exc.name != "transformers":
        raise
    raise EnvironmentFault(
        "hf: words need the package transformers, which is not installed.",
        'Install it: python -m pip install "hookscope[transformers]"',
    ) from exc

from hookscope.sources.huggingface import cached_file, fetch_folder
from hookscope.sources.transformers.configuration import load_configuration
from hookscope.sources.transformers.model_inputs import (
    ModelInputs,
    image_recipe,
    sound_recipe,
    text_recipe,
)

log = logging.getLogger("hookscope")

_SAFE = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_REST = ("*.json", "*.txt", "*.model", "*.jinja")  # configurations and vocabularies, and no code


@dataclass(frozen=True)
class _Place:
    """Where the model is: its folder, its configuration, and its weights if it has any."""

    folder: Path
    config: Path
    weights: Path | None
    told: str


def load(
    spec: ModelSpec,
    *,
    weights: WeightsRequest,
    model_args: dict[str, Any],
    seed: int,
    meta: bool,
    attn: str | None,
) -> LoadedModel:
    """Build the model that ``spec`` names; see ``hookscope.sources.model_loader.load``."""
    with _quiet():
        place = _find(spec, weights)
        config = load_configuration(place.config, model_args)
        kind = _class_of(config)
        _check_attention(attn)
        module, info = _build(kind, config, place, weights, attn, seed, meta)
        inputs = ModelInputs(module)
        return LoadedModel(
            module=module,
            word=spec.word,
            name=spec.name,
            source=TRANSFORMERS,
            categories=_categories(module),
            weights=info,
            own_recipe=None if meta else image_recipe(place.folder, inputs),
            own_text=None if meta else text_recipe(place.folder, inputs),
            own_sound=None if meta else sound_recipe(place.folder, inputs),
            layout=inputs.layout(),
            own_example=inputs.example,
            example_text="random values that its configuration allows",
            example_word="random",
        )


def _find(spec: ModelSpec, wanted: WeightsRequest) -> _Place:
    path = Path(spec.path).expanduser()
    if path.is_file():
        if wanted.word.lower() == "default":
            raise WeightsError(
                f"The configuration {spec.path!r} alone brings no weights.",
                "Name its folder, give --weights FILE, or random.",
            )
        return _Place(path.parent, path, None, "")
    if path.is_dir():
        found = _weights_in(path)
        if wanted.word.lower() == "default" and found is None:
            raise WeightsError(
                f"The folder {spec.path!r} holds no weights ({_SAFE[0]}).",
                "Give --weights FILE, or random.",
            )
        return _Place(path, path / CONFIGURATION, found, "as saved")
    default = wanted.word.lower() == "default"
    here = cached_file(spec.path, [CONFIGURATION])
    folder = Path(here).parent if here else None
    if default and (folder is None or _weights_in(folder) is None):
        folder = Path(fetch_folder(spec.path, [*_REST, "*.safetensors"]))
        if _weights_in(folder) is None:
            folder = Path(fetch_folder(spec.path, [*_REST, "pytorch_model*.bin"]))
    if folder is None:
        raise ModelError(
            f"{spec.path!r} is no folder, and the hub's cache has no configuration of that name.",
            "Give a folder, hf:FOLDER, or let it be fetched: --weights default.",
        )
    told = f"{spec.path}@{folder.name[:7]}"
    return _Place(folder, folder / CONFIGURATION, _weights_in(folder) if default else None, told)


def _weights_in(folder: Path) -> Path | None:
    return next((folder / n for n in (*_SAFE, *_PICKLED) if (folder / n).is_file()), None)


def _class_of(config: Any) -> Any:
    """The class that the configuration names, else the one without a head."""
    names: list[str] = config.architectures or []
    for name in names:
        if hasattr(transformers, name):
            return getattr(transformers, name)
        log.warning("%s is no class of transformers; the model is built without its head", name)
    mapping: Any = transformers.MODEL_MAPPING
    if type(config) not in mapping:
        raise ModelError(
            f"transformers has no model without a head for {config.model_type!r}.",
            'Name a class in the configuration: "architectures": ["..."].',
        )
    kind = mapping[type(config)]
    return kind[0] if isinstance(kind, tuple) else kind


def _check_attention(kind: str | None) -> None:
    """Refuse unknown kinds; a word with a slash in it would fetch a kernel and run it."""
    known = ["eager", *transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS.valid_keys()]
    if kind is not None and kind not in known:
        near = did_you_mean(kind, known)
        raise ModelError(
            f"There is no attention called {kind!r}.", f"{near} There are {', '.join(known)}."
        )


def _build(
    kind: Any,
    config: Any,
    place: _Place,
    wanted: WeightsRequest,
    attn: str | None,
    seed: int,
    meta: bool,
) -> tuple[nn.Module, WeightsInfo]:
    options = {} if attn is None else {"attn_implementation": attn}
    own = place.weights is not None and not is_weights_file(wanted.word)

    def make(context: AbstractContextManager[Any]) -> nn.Module:
        return build_model(lambda: kind._from_config(config, **options), seed=seed, context=context)

    try:
        if own and not meta:
            return _filled(kind, config, place, options, seed)
        if is_weights_file(wanted.word) and not meta:
            return weights.build_from_file(make, wanted)
        module = make(ParametersOnMeta() if meta else nullcontext())
    except (ImportError, ValueError, RuntimeError, TypeError, AttributeError, KeyError) as exc:
        raise ModelError(
            f"{kind.__name__} cannot be built from {str(place.config)!r}: {end_sentence(_first(exc))}",
            "Correct the configuration, --model-arg or --attn.",
        ) from exc
    if meta:
        return module.to("meta"), WeightsInfo("none")
    log.info("weights: random from seed %d, so untrained", seed)
    return module, WeightsInfo("random")


def _filled(
    kind: Any, config: Any, place: _Place, options: dict[str, Any], seed: int
) -> tuple[nn.Module, WeightsInfo]:
    """The model with the weights of its folder, read by transformers, which knows older names."""
    assert place.weights is not None
    told: dict[str, Any] = {}

    def make() -> nn.Module:
        module, found = kind.from_pretrained(
            str(place.folder),
            config=config,
            local_files_only=True,
            weights_only=True,
            output_loading_info=True,
            **options,
        )
        told.update(found)
        return module  # type: ignore[no-any-return]

    try:
        module = build_model(make, seed=seed)
    except Exception as exc:  # of damaged files the readers raise nearly anything
        raise WeightsFileError(
            f"The weights in {str(place.folder)!r} cannot be read into {kind.__name__}:"
            f" {end_sentence(_first(exc))}",
            "Give other ones by --weights FILE, or the configuration alone for random ones:"
            f" hf:{place.config}.",
        ) from exc
    missing, unexpected = (
        tuple(sorted(map(str, told.get(name, ())))) for name in ("missing_keys", "unexpected_keys")
    )
    if missing:
        raise weights.incomplete_error(
            str(place.weights),
            len(module.state_dict()),
            missing,
            unexpected,
            f"--weights {place.weights} --partial leaves them as built.",
        )
    weights.warn_mismatches(str(place.weights), missing, unexpected)
    log.info("weights: as saved in %s", place.folder)
    digest = check_weights_file(str(place.weights)).blake3()
    return module, WeightsInfo(place.told, digest, missing, unexpected)


def _first(exc: BaseException) -> str:
    return str(exc).strip().partition("\n")[0] or type(exc).__name__


def _categories(module: nn.Module) -> tuple[str, ...]:
    """Names of the classes, where somebody gave them names."""
    labels = getattr(module.config, "id2label", None) or {}
    plain = all(label == f"LABEL_{index}" for index, label in labels.items())
    classified = "Classification" in type(module).__name__
    return tuple(map(str, labels.values())) if classified and not plain else ()


@signal_safe_contextmanager
def _quiet() -> Iterator[None]:
    """Keep remarks and progress bars of transformers to itself; what matters is told by us."""
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
