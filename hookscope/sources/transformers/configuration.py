"""The configuration of a model of transformers, with values of the user's in place of its own."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import transformers

from hookscope.errors import ModelError
from hookscope.sources import arguments
from hookscope.specs.model_spec import end_sentence
from hookscope.specs.suggestions import did_you_mean

log = logging.getLogger("hookscope")


def load_configuration(path: Path, given: dict[str, Any]) -> Any:
    """Read the configuration at ``path`` into transformers' own class for it.

    Args:
        path: a JSON file.
        given: values in place of those of the file, as ``--model-arg`` takes them.

    Raises:
        ModelError: it is no configuration, is for code of its own, or a value is wrong.
    """
    content = _read(path)
    kind = content.get("model_type")
    if not isinstance(kind, str):
        raise ModelError(
            f"{str(path)!r} is no configuration of transformers: it has no model_type.",
            "Name a folder that save_pretrained wrote, or its config.json.",
        )
    known = transformers.CONFIG_MAPPING
    if kind not in known:
        _refuse_unknown(path, kind, content, list(known.keys()))
    if "auto_map" in content:
        log.info("model: transformers' own %s; the code that came with it is not run", kind)
        content = {key: value for key, value in content.items() if key != "auto_map"}
    try:
        config = known[kind].from_dict(content)
    except Exception as exc:  # each class checks in its own way
        raise ModelError(
            f"The configuration {str(path)!r} does not do for {kind}: {end_sentence(_plain(exc))}",
            "Correct the file.",
        ) from exc
    values = arguments.convert_arguments(type(config), given)
    for key, value in values.items():
        _set(config, key, value)
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as exc:
        raise ModelError(
            f"The configuration {str(path)!r} cannot be read: {end_sentence(str(exc))}",
            "It is to be a JSON file, as save_pretrained writes it.",
        ) from exc
    return content if isinstance(content, dict) else {}


def _refuse_unknown(path: Path, kind: str, content: dict[str, Any], known: list[str]) -> None:
    if "auto_map" in content:
        raise ModelError(
            f"{str(path)!r} is for a model whose code comes with it, which hookscope does not run.",
            "Read that code, import it yourself, and give the model as FILE.py:NAME.",
        )
    near = did_you_mean(kind, known)
    version = transformers.__version__
    raise ModelError(
        f"transformers {version} knows no model type {kind!r} ({str(path)!r}).",
        near or "Install a release that knows it: python -m pip install --upgrade transformers",
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
            f"{key}={value!r} does not do for {config.model_type}: {end_sentence(_plain(exc))}",
            "Correct --model-arg.",
        ) from exc


def _plain(exc: BaseException) -> str:
    return " ".join(str(exc).split()) or type(exc).__name__
