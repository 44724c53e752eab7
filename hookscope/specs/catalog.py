"""The bundled list of torchvision's models, ``catalog.json``, which is read without torch.

If another release of torchvision is installed, the list is taken from torchvision itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hookscope.errors import ModelError, RequestError, WeightsError
from hookscope.files.suggestions import did_you_mean
from hookscope.specs import model_spec

FILE = Path(__file__).with_name("catalog.json")
ALL_NAMES = "hookscope models lists all names."


@dataclass(frozen=True)
class ModelInfo:
    """A model that can be given by name."""

    name: str
    task: str
    parameters: int | None
    weights: tuple[str, ...]
    input: str


@cache
def bundled_models() -> tuple[ModelInfo, ...]:
    """Return the models of the bundled list, whatever release is installed."""
    rows = json.loads(FILE.read_text(encoding="utf-8"))["models"]
    return tuple(ModelInfo(**{**row, "weights": tuple(row["weights"])}) for row in rows)


@cache
def list_is_current() -> bool:
    """Whether the bundled list is for the installed release of torchvision, such as 0.29."""
    from importlib import metadata  # takes 30 ms, which completion does not need

    try:
        installed = metadata.version("torchvision")
    except metadata.PackageNotFoundError:
        return False
    made_for = json.loads(FILE.read_text(encoding="utf-8"))["torchvision"]
    return bool(installed.split(".")[:2] == made_for.split(".")[:2])


TASKS = ("classification", "detection", "segmentation", "video", "optical flow", "quantized")


def check_model_spec(text: str, trust: bool = False) -> model_spec.ModelSpec:
    """Parse a model spec and check it without torch; with ``trust``, a pickled model is one."""
    spec = model_spec.parse_model(text, trust)
    if spec.source == model_spec.TORCHVISION and list_is_current():
        known = [info.name for info in bundled_models()]
        check_model_name(spec.name, known, suggest_sources=True)
    return spec


def check_weights(spec: model_spec.ModelSpec, weights: str) -> None:
    """Check, without torch, the weights that are chosen for the model ``spec``."""
    if weights == "random":
        return
    source = spec.source
    known: tuple[str, ...] = ()
    if source == model_spec.TORCHVISION and list_is_current():
        known = next((m.weights for m in bundled_models() if m.name == spec.name), ())
    others = (model_spec.TIMM, model_spec.TRANSFORMERS)
    has_default = source in (model_spec.TORCHVISION, *others)
    if (weights.lower() == "default" and has_default) or weights in known:
        return
    if model_spec.is_weights_file(weights):
        model_spec.check_weights_file(weights)
    elif known:
        raise no_such_weights(spec.name, weights, known)
    elif source in others:
        raise RequestError(
            f"There are no weights called {weights!r}.", "Give random, default or a file."
        )
    elif source not in (model_spec.TORCHVISION, model_spec.PLUGIN):
        raise no_weights_by_name(weights)


def check_attn(spec: model_spec.ModelSpec, kind: str | None) -> None:
    """Raise RequestError if ``kind`` is given for a model that has no choice of attention."""
    if kind is not None and spec.source != model_spec.TRANSFORMERS:
        raise RequestError(
            f"--attn is only for models of transformers (hf:FOLDER), and {spec.text!r} is not one.",
            "Leave it out.",
        )


def no_weights_by_name(weights: str) -> RequestError:
    """Return the error about a named set of weights for a model from a file."""
    return RequestError(
        f"A model from a file has no weights called {weights!r}.", "Give --weights FILE."
    )


def no_such_weights(name: str, weights: str, known: Iterable[str]) -> RequestError:
    """Return the error about ``weights``, which the model ``name`` does not have."""
    choices = (
        f"{name} has {', '.join(known)}; random, default or a file work for any torchvision model."
    )
    near = did_you_mean(weights, known, {"pretrained": "default"})
    return RequestError(f"There are no weights called {weights!r}.", f"{near} {choices}".strip())


def check_model_name(
    name: str, known: list[str], listing: str = ALL_NAMES, *, suggest_sources: bool = False
) -> None:
    """Raise ModelError, with near names, unless ``name`` is one of ``known``."""
    if name not in known:
        model_spec.reject_path(name)
        near = did_you_mean(name, known)
        if suggest_sources and ("-" in name or not near):  # torchvision's have no hyphen
            listing += f" A model of transformers is written hf:{name}, one of timm timm:{name}."
        raise ModelError(f"There is no model called {name!r}.", f"{near} {listing}".strip())


ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
NO_ADAPTER = "none"


def check_adapter(
    spec: model_spec.ModelSpec | None, adapter: str | os.PathLike[str] | None
) -> None:
    """Raise an error if an adapter is given that cannot be attached."""
    if adapter is None or os.fspath(adapter) == NO_ADAPTER:
        return
    if spec is None or spec.source != model_spec.TRANSFORMERS:
        what = "a module was given" if spec is None else f"{spec.text!r} is not one"
        raise RequestError(
            f"--adapter is only for models of transformers (hf:FOLDER), and {what}.",
            "Leave it out, or give the model as hf:FOLDER.",
        )
    folder = Path(adapter)
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if not (folder / name).is_file():
            raise WeightsError(
                f"{os.fspath(adapter)!r} is not the folder of an adapter: it has no {name}.",
                "Give a folder that save_pretrained of peft wrote.",
            )
