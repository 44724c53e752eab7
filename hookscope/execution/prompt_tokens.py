"""The tokens of the input of a run: ids, texts and padding, read from the arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from hookscope.files.signatures import signature_of
from hookscope.results.tokens import PromptTokens
from hookscope.sources.loaded import LoadedModel
from hookscope.tensors.nested import as_call, walk

# The arguments with token ids by the names of transformers, each with that of its mask.
_MASKS = {"input_ids": "attention_mask", "decoder_input_ids": "decoder_attention_mask"}


def prompt_tokens(loaded: LoadedModel, value: Any) -> tuple[PromptTokens, ...]:
    """Return the tokens of each argument with token ids (N, L); a mask tells their padding."""
    arguments = _named_arguments(loaded, value)
    return tuple(_tokens_of(loaded, name, ids, mask) for name, ids, mask in _ids(loaded, arguments))


def describe_arguments(loaded: LoadedModel, value: Any) -> dict[str, Any]:
    """Return the metadata of the arguments of a call: ``arguments``, and any ``tokens``."""
    arguments = [
        {"name": ".".join(path[1:]), "shape": list(t.shape), "dtype": str(t.dtype)[6:]}
        for path, t in walk(as_call(value))
    ]
    tokens = [prompt.to_json() for prompt in prompt_tokens(loaded, value)]
    return {"arguments": arguments, **({"tokens": tokens} if tokens else {})}


def _ids(
    loaded: LoadedModel, arguments: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """The name, the ids and the mask of each argument with token ids."""
    masks = {name: mask for name, mask in _MASKS.items() if name in arguments}
    if not masks and loaded.own_text is not None:
        masks = dict.fromkeys(list(arguments)[:1], "attention_mask")
    for name, mask_name in masks.items():
        ids, mask = arguments[name], arguments.get(mask_name)
        if not isinstance(ids, Tensor) or ids.ndim != 2 or not ids.numel() or ids.is_meta:
            continue
        if ids.dtype not in (torch.int64, torch.int32):
            continue
        fits = isinstance(mask, Tensor) and mask.shape == ids.shape
        yield name, ids, mask if fits else None


def _named_arguments(loaded: LoadedModel, value: Any) -> dict[str, Any]:
    """The arguments of a call by name; by position where the signature is not known."""
    args, kwargs = as_call(value)
    try:
        bound = signature_of(loaded.module.forward).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        return {**{str(n): each for n, each in enumerate(args)}, **kwargs}
    parameters = bound.signature.parameters.values()
    rest = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
    others = bound.arguments.pop(rest, {}) if rest is not None else {}
    return {**bound.arguments, **others}


def _tokens_of(loaded: LoadedModel, name: str, ids: Tensor, mask: Tensor | None) -> PromptTokens:
    vocabulary = loaded.own_text.vocabulary if loaded.own_text is not None else None
    rows = tuple(map(tuple, ids.tolist()))
    padding: tuple[tuple[int, ...], ...] = ((),) * len(rows)
    if mask is not None:
        padding = tuple(tuple((row == 0).nonzero()[:, 0].tolist()) for row in mask)
    texts = None if vocabulary is None else tuple(map(vocabulary.texts, rows))
    return PromptTokens(name, rows, texts, padding)
