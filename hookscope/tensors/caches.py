"""The tensors in the caches of transformers: keys and values of attention, and recurrent states."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor

_SHARED = ("self_attention_cache", "cross_attention_cache")  # of an EncoderDecoderCache


def is_cache(value: Any) -> bool:
    """Whether ``value`` is a cache of transformers, such as a ``DynamicCache``.

    >>> is_cache({"keys": 1})
    False
    """
    library = sys.modules.get("transformers.cache_utils")  # imported where there is a cache
    return library is not None and isinstance(value, library.Cache | library.EncoderDecoderCache)


def cached_tensors(cache: Any) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yield ``(path, tensor)`` for the tensors of a cache, in order of the layers.

    The path has the number of the layer and the name in it, such as ``("3", "keys")``. That of an
    ``EncoderDecoderCache`` begins with ``self_attention_cache`` or ``cross_attention_cache``. A
    layer in which nothing is stored yet has no tensors.
    """
    parts = [name for name in _SHARED if hasattr(cache, name)]
    for name in parts:
        for path, tensor in cached_tensors(getattr(cache, name)):
            yield (name, *path), tensor
    if not parts:
        for number, layer in enumerate(cache.layers):
            for name, value in vars(layer).items():
                for path, tensor in _states(value):
                    if tensor.numel():
                        yield (str(number), name, *path), tensor


def _states(value: Any) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """The tensors in an attribute of a layer, which may have several states by number."""
    if isinstance(value, Tensor):
        yield (), value
    elif isinstance(value, dict | list | tuple):
        states = value.items() if isinstance(value, dict) else enumerate(value)
        for number, state in states:
            if isinstance(state, Tensor):
                yield (str(number),), state
