"""The command line that made a file, from what the file tells of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from hookscope.specs.request import ONLY_PYTHON

VERBS = ("capture", "grads", "step")
# Keywords of the API whose option is called otherwise than they are.
_FLAGS = {
    "layers": "layer",
    "types": "type",
    "model_args": "model-arg",
    "edits": "edit",
    "grad_edits": "grad-edit",
    "hooks": "hook",
    "hook_args": "hook-arg",
    "opt_args": "opt-arg",
}
_SEVERAL = {"layers", "types", "edits", "grad_edits", "hooks", "hook_kind"}  # one flag for each
_OF_LENGTHS = {"shape", "size"}  # 1x3x8x8


def command_of(metadata: Mapping[str, Any]) -> str:
    """Return the line, quoted for the shell; empty where only Python can have made the file.

    Args:
        metadata: those of a capture: ``command``, ``model``, ``inputs`` and ``options`` are used.

    Example:
        >>> command_of(
        ...     {
        ...         "command": "capture",
        ...         "model": {"word": "resnet18", "source": "torchvision"},
        ...         "inputs": [{"word": "my cat.png", "sha256": "d5"}],
        ...         "options": {"layers": ["layer3.*"], "verify": True},
        ...     }
        ... )
        "hookscope capture resnet18 --input 'my cat.png' --layer 'layer3.*' --verify"
    """
    verb, model = metadata.get("command"), metadata.get("model", {})
    inputs, options = metadata.get("inputs", []), metadata.get("options", {})
    given = [entry for entry in inputs if entry.get("sha256")]  # noise and examples have no hash
    by_python = (
        verb not in VERBS
        or "word" not in model
        or model.get("source") == "live"
        or any(entry.get("word", "tensor") == "tensor" for entry in given)
        or _holds_objects(options)
    )
    if by_python:
        return ""
    words = ["hookscope", str(verb), str(model["word"])]
    for entry in given:
        if not entry.get("part") or entry["word"] != words[-1]:  # a word may be several tensors
            words += ["--input", str(entry["word"])]
    for name, value in options.items():
        words += _words(name, value)
    return shlex.join(words)


def _words(name: str, value: Any) -> Iterator[str]:
    """The words that give an option its value."""
    flag = f"--{_FLAGS.get(name, name.replace('_', '-'))}"
    if isinstance(value, bool):
        yield flag if value else flag.replace("--", "--no-", 1)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (flag, f"{key}={item}")
    elif name in _SEVERAL:
        for item in [value] if isinstance(value, str) else value:
            yield from (flag, str(item))
    elif isinstance(value, list):
        yield from (flag, ("x" if name in _OF_LENGTHS else ",").join(map(str, value)))
    else:
        yield from (flag, str(value))


def _holds_objects(value: Any) -> bool:
    if isinstance(value, Mapping):
        return ONLY_PYTHON in value or any(map(_holds_objects, value.values()))
    return isinstance(value, list) and any(map(_holds_objects, value))
