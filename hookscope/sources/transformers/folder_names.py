"""What the JSON files in a folder of transformers may name: no code, no address, no file elsewhere.

transformers and peft take these names at their word: they would download and run a kernel, import a
module, or open a file. Code in the folder itself (``auto_map``) is never run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hookscope.errors import ModelError
from hookscope.files.own_folder import leaves_folder
from hookscope.specs.catalog import ADAPTER_CONFIG

# The implementations of attention that are in torch and in transformers themselves.
_OWN_ATTENTION = (None, "eager", "sdpa", "flex_attention")
_ATTENTION = ("attn_implementation", "_attn_implementation")
_EXPERTS = ("experts_implementation", "_experts_implementation")
_OF_TIMM = ("backbone", "architecture")  # names of models; with a colon addresses or folders
_TIMM_FILES = ("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
_VOCABULARY_CONFIGS = ("tokenizer_config.json", "preprocessor_config.json", "processor_config.json")


def check_configuration(path: Path, content: dict[str, Any]) -> None:
    """Raise ModelError if a configuration names code, an address or a file elsewhere."""
    for key, value in _entries(content):
        is_foreign = key in _ATTENTION and any(one not in _OWN_ATTENTION for one in _kinds(value))
        if is_foreign or (key in _EXPERTS and any("/" in str(one) for one in _kinds(value))):
            raise _refusal(path, key, value, "transformers may download and run")
        if key in _OF_TIMM and isinstance(value, str) and ":" in value:
            raise _refusal(path, key, value, "is an address or a folder")
        if key == "model_args" and isinstance(value, dict):
            for name in value.keys() & _TIMM_FILES:
                raise _refusal(path, name, value[name], "may be a file elsewhere")


def check_adapter_names(folder: str | os.PathLike[str]) -> None:
    """Raise ModelError if the adapter in a folder names a module, or adapters elsewhere."""
    path = Path(folder, ADAPTER_CONFIG)
    content = _content(path)
    if content.get("megatron_config"):
        module = content.get("megatron_core")
        raise _refusal(path, "megatron_core", module, "is a module to import")
    if content.get("adapters"):
        raise _refusal(path, "adapters", content["adapters"], "are adapters in other folders")


def check_vocabularies(folder: str | os.PathLike[str]) -> None:
    """Raise ModelError if a tokenizer or a processor names an existing file outside its folder.

    Many folders name a file of the machine on which they were made, which is not there.
    """
    for name in _VOCABULARY_CONFIGS:
        path = Path(folder, name)
        for key, value in _entries(_content(path)):
            if not key.endswith(("_file", "_files")) and key != "init_inputs":
                continue
            for text in value if isinstance(value, list) else [value]:
                if not isinstance(text, str) or not text:  # names no file
                    continue
                if not leaves_folder(os.path.normpath(text)):
                    continue
                if os.path.exists(text) or os.path.exists(os.path.join(folder, text)):
                    raise _refusal(path, key, text, "is outside the folder of that file")


def _kinds(value: Any) -> list[Any]:
    """The implementations in a value: a name, or one for each part of the model."""
    return list(value.values()) if isinstance(value, dict) else [value]


def _entries(content: Any) -> Iterator[tuple[str, Any]]:
    """The keys and values of a JSON document at any depth."""
    rest = [content]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            yield from one.items()
        rest += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()


def _content(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty without one, and if its reader will say what is wrong."""
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _refusal(path: Path, key: str, value: Any, why: str) -> ModelError:
    return ModelError(
        f"{path} sets {key} = {str(value)[:80]!r}, which {why}; a file of data may not name that.",
        "If you trust it, remove that line, and give what you need as an option.",
    )
