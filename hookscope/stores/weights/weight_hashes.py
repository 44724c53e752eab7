"""Two hashes of a set of weights: of its architecture, and of its values.

Both are BLAKE3 over the tensors in order of name, so that neither the format nor the order in a
file matters. What is hashed is written down in ``docs/weight-files.md``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from blake3 import blake3

from hookscope.files.progress import Progress
from hookscope.files.weight_files import HASH_THREADS
from hookscope.results.result import Result
from hookscope.stores.weights.weight_set import WeightSet


@dataclass(frozen=True)
class WeightHashes(Result):
    """The hashes of a set of weights in hexadecimal.

    Attributes:
        label: of the weights, or the spec of the model.
        architecture: equal for equal names and shapes, whatever the dtypes.
        weights: equal for equal names, shapes, dtypes and values.
    """

    view = "weight_tree.HASHES"

    label: str
    architecture: str
    weights: str

    def __repr__(self) -> str:
        return (
            f"<WeightHashes of {self.label}: architecture {self.architecture[:8]}...,"
            f" weights {self.weights[:8]}...>"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def hash_weights(weights: WeightSet, progress: Progress | None = None) -> WeightHashes:
    """Return both hashes of a set of weights; all values are read once.

    Example:
        >>> from hookscope.stores.weights.open_weights import open_weights
        >>> hashes = hash_weights(open_weights("sample_models/digits.safetensors"))
        >>> len(hashes.architecture), hashes.architecture == hashes.weights
        (64, False)
    """
    architecture, values = blake3(), blake3(max_threads=HASH_THREADS)
    total = sum(tensor.nbytes for tensor in weights.tensors.values())
    done = 0
    for name in sorted(weights.tensors):
        tensor = weights.tensors[name]
        architecture.update(_line(name, list(tensor.shape)))
        values.update(_line(name, tensor.dtype, list(tensor.shape)))
        for block in weights.stored(name):
            values.update(block.data)
            done += len(block)
            if progress is not None:
                progress(done, total)
    return WeightHashes(weights.label, architecture.hexdigest(), values.hexdigest())


def _line(*values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"
