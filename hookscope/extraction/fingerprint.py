"""Which model it was, where no file of weights tells: hashes of its values and of its source."""

from __future__ import annotations

from itertools import chain
from typing import Any

from hookscope.files.weight_files import sha256_of
from hookscope.sources.loaded import LoadedModel
from hookscope.specs.model import FILE, parse_model
from hookscope.tensors.hash import hash_tensors


def identity(loaded: LoadedModel) -> dict[str, Any]:
    """What the manifest tells of a model.

    ``state_blake3`` is None where the hash of a file that holds all weights tells already,
    ``code_sha256`` where the model was not built by a file of Python source.
    """
    digest = loaded.weights.blake3
    settled = digest and not loaded.weights.missing
    values = chain(loaded.module.named_parameters(), loaded.module.named_buffers())
    return {
        "word": loaded.word,
        "source": loaded.source,
        "weights": loaded.weights.word,
        "blake3": digest,
        "state_blake3": None if settled else hash_tensors(values),
        "code_sha256": sha256_of(parse_model(loaded.word).path) if loaded.source == FILE else None,
    }
