"""Tensors in a safetensors file: one by its key, or all of them; captures of hookscope's too."""

from __future__ import annotations

from typing import Any

from safetensors import safe_open

from hookscope.files.detect import SAFETENSORS
from hookscope.files.weight_files import sha256_of
from hookscope.inputs.keys import one_of
from hookscope.inputs.reading import Asked, blaming
from hookscope.specs.input import InputWord
from hookscope.specs.output_path import MARK


def open_one(asked: Asked, word: InputWord) -> tuple[Any, str]:
    """Return the tensor of a key, the only one, or of a file that is no capture a dict of all.

    Raises:
        InputError: the file is damaged or has no such key, or it is a capture and no key is given.
    """
    with blaming(word.path, SAFETENSORS), safe_open(word.path, framework="pt") as file:
        names = list(file.keys())
        recorded = MARK in (file.metadata() or {})
        if word.rest or len(names) < 2 or recorded:
            value: Any = file.get_tensor(one_of(word, names))
        else:
            value = {name: file.get_tensor(name) for name in names}
    return value, sha256_of(word.path)
