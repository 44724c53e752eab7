"""The configuration of a model of transformers, with the values that the user overrides."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import transformers

from hookscope.errors import ModelError
from hookscope.files.suggestions import did_you_mean
from hookscope.sources import arguments
from hookscope.specs.model_spec import end_sentence

log = logging.getLogger("hookscope")


def load_configuration(path: Path, model_args: dict[str, Any]) -> Any:
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
