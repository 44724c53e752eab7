"""Which model it was, where no file of weights tells: hashes of its values and of its source."""

from __future__ import annotations

import hashlib
from itertools import chain
from typing import Any

from torch import nn

from hookscope.shards import sha256_of
from hookscope.sources.loaded import LoadedModel
from hookscope.spec import FILE, parse_model
from hookscope.tensors import bits_of

_BLOCK = 1 << 26  # bytes brought to the CPU at once


def identity(loaded: LoadedModel) -> dict[str, Any]:
    """What the manifest tells of a model.

    ``state_sha256`` is None where the hash of a file that holds all weights tells already,
    ``code_sha256`` where the model was not built by a file of Python source.
    """
    digest = loaded.weights.sha256
    settled = digest and not loaded.weights.missing
    return {
        "word": loaded.word,
        "source": loaded.source,
        "weights": loaded.weights.word,
        "sha256": digest,
        "state_sha256": None if settled else state_sha256(loaded.module),
        "code_sha256": sha256_of(parse_model(loaded.word).path) if loaded.source == FILE else None,
    }


def state_sha256(module: nn.Module) -> str | None:
    """Hash of names, dtypes, shapes and values of all parameters and buffers in their order.

    None where values are out of reach: on the meta device, as offloaded ones are, or of a class of
    tensors of its own.
    """
    digest = hashlib.sha256()
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if tensor.is_meta:
            return None
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        try:
            for part in bits_of(tensor).split(_BLOCK):
                digest.update(part.cpu().numpy().data)
        except (RuntimeError, TypeError):
            return None
    return digest.hexdigest()
