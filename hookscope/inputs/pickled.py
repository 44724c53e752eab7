"""Tensors saved by ``torch.save``, read with ``weights_only=True``: no code is run."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from hookscope.errors import InputError
from hookscope.files import detect as filekinds
from hookscope.inputs.keys import one_of
from hookscope.inputs.reading import Asked, blaming, read_bytes, sha256
from hookscope.specs.input import InputWord
from hookscope.tensors.nested import walk

_BEYOND = 1 << 30  # bytes that a tensor may take beyond the size of its file


def open_one(asked: Asked, word: InputWord) -> tuple[Any, str]:
    """Return what was saved: a tensor, or a tuple, list or dict that holds some.

    Raises:
        InputError: the file is damaged, would run code, holds no tensor, or none of the key wanted.
    """
    data = read_bytes(word.path)
    kind, repair = filekinds.describe_file(word.path)
    no_tensors = (filekinds.SCRIPT_ARCHIVE, filekinds.EXPORT_ARCHIVE)
    if kind in (*no_tensors, *filekinds.TOO_LARGE) or "pickled Python" in kind:
        raise InputError(f"The file {word.path!r} is {kind}, not tensors.", repair)
    with blaming(word.path, "tensors saved by torch.save"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if word.rest:
        if not isinstance(value, Mapping):
            raise InputError(f"{word.path!r} holds no names, so no {word.rest!r}.", "Leave it out.")
        named = {str(name): item for name, item in value.items()}  # keys may be numbers
        value = named[one_of(word, list(named))]
    if isinstance(value, Mapping):
        value = dict(value)
    for _, tensor in walk(value):
        # One number may stand for any many: expanded, a tensor is small in its file alone.
        dense = tensor.layout is torch.strided and not tensor.is_meta
        if dense and tensor.numel() * tensor.element_size() > len(data) + _BEYOND:
            raise InputError(
                f"The file {word.path!r} of {len(data):,} bytes holds a tensor of shape"
                f" {tuple(tensor.shape)}, which would take more than 1 GB beyond that.",
                "Save a smaller one, or a copy of it: tensor.clone().",
            )
    if not any(True for _ in walk(value)):
        raise InputError(f"The file {word.path!r} holds no tensor.", "Save one by torch.save.")
    return value, sha256(data)
