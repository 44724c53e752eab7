"""Hashes of tensors, which show whether two models or two runs have the same values."""

from __future__ import annotations

from collections.abc import Iterable

from blake3 import blake3
from torch import Tensor
from xxhash import xxh3_64

from hookscope.files.hashes import HASH_THREADS
from hookscope.tensors.nested import bits_of

_BLOCK = 1 << 26  # bytes that are copied to the CPU at a time


def hash_tensors(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the BLAKE3 of the names, dtypes, shapes and values of tensors in their order.

    None if values cannot be read: on the meta device, or of a class without plain memory.
    """
    digest = blake3(max_threads=HASH_THREADS)
    for name, tensor in named:
        digest.update(
            f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode(errors="surrogatepass")
        )
        if not _add_bits(digest, tensor):
            return None
    return digest.hexdigest()


def hash_values(tensor: Tensor) -> str | None:
    """Return the XXH3, of 64 bits, of the values of a tensor; None as for ``hash_tensors``.

    It finds chance differences, several times as fast as a cryptographic hash.
    """
    digest = xxh3_64()
    return digest.hexdigest() if _add_bits(digest, tensor) else None


def _add_bits(digest: blake3 | xxh3_64, tensor: Tensor) -> bool:
    """Add the bits of a tensor to a hash, a part at a time; False if they cannot be read."""
    if tensor.is_meta:
        return False
    try:
        for part in bits_of(tensor).split(_BLOCK):
            digest.update(part.cpu().numpy().data)
    except (RuntimeError, TypeError):
        return False
    return True
