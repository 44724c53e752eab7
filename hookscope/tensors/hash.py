"""The hash of tensors, which shows whether two models or two runs have the same values."""

from __future__ import annotations

from collections.abc import Iterable

from blake3 import blake3
from torch import Tensor

from hookscope.files.hashes import HASH_THREADS
from hookscope.tensors.nested import bits_of

_BLOCK = 1 << 26  # bytes that are copied to the CPU at a time


def hash_tensors(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the BLAKE3 of the names, dtypes, shapes and values of tensors in their order.

    None if values cannot be read: on the meta device, or of a class without plain memory.
    """
    digest = blake3(max_threads=HASH_THREADS)
    for name, tensor in named:
        if tensor.is_meta:
            return None
        digest.update(
            f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode(errors="surrogatepass")
        )
        try:
            for part in bits_of(tensor).split(_BLOCK):
                digest.update(part.cpu().numpy().data)
        except (RuntimeError, TypeError):
            return None
    return digest.hexdigest()
