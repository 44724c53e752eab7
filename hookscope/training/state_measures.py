"""What a step begins with besides its weights: an optimizer's state, the batch, random generators.

They tell whether a resumed training goes on as it would have gone on. Nothing is changed, and no
random number is drawn. A hash is kept as a number of 24 bits, which float32 holds exactly.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from functools import cache, partial

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from hookscope.stores.runs.series import BATCH_HASH, GENERATORS, STATE, Series
from hookscope.tensors.nested import bits_of, unreadable_reason, walk
from hookscope.training.found_models import local_part
from hookscope.training.parameter_measures import Numbers, values_of
from hookscope.training.tensor_measures import PendingValues, is_measurable, norms_of


def hash_number(data: bytes) -> float:
    """Return the first 24 bits of the BLAKE3 of some bytes."""
    return float(int.from_bytes(blake3(data).digest(length=3), "big"))


class StateMeasures:
    """The state of an optimizer before its step: the norm of all tensors with one key."""

    def __init__(self, name: str, optimizer: Optimizer, pending: PendingValues) -> None:
        self._name = name
        self._tensors = 0
        self._norms: dict[str, Numbers] = {}
        self._counts: dict[str, int] = {}
        by_key: dict[str, list[Tensor]] = {}
        for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
            for key, value in optimizer.state.get(weight, {}).items():
                if isinstance(value, Tensor):
                    self._tensors += 1
                    by_key.setdefault(key, []).append(local_part(value.detach()))
        for key, tensors in by_key.items():
            norms = norms_of([values_of(tensor) for tensor in tensors if is_measurable(tensor)])
            self._norms[key], self._counts[key] = Numbers(), len(norms)
            self._norms[key].add(list(range(len(norms))), norms)
            self._norms[key].send(pending)

    def values(self) -> dict[Series, float]:
        """Return the numbers once they have arrived."""
        found = {Series(self._name, STATE, "tensors"): float(self._tensors)}
        norms = {key: one.read(self._counts[key]) for key, one in self._norms.items()}
        for key, each in norms.items():
            found[Series(self._name, f"{STATE}.{key}", "norm")] = float(np.linalg.norm(each))
        # The norm of a small tensor may be lost in that of all, and another order leaves it as is.
        data = [norms[key].astype(np.float32).tobytes() for key in sorted(norms)]
        found[Series(self._name, STATE, "hash")] = hash_number(b"".join(data))
        return found


class BatchHash:
    """The hash of all tensors that a model got in the calls of a step."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, pending: PendingValues, arguments: object) -> None:
        """Add the tensors in the arguments of a call; their bytes may arrive later."""
        for path, tensor in walk(arguments):
            about = f"{'.'.join(path)} {tensor.dtype} {tuple(tensor.shape)}"
            self._parts.append(about.encode(errors="surrogatepass"))
            if _is_readable(tensor):
                bits = bits_of(local_part(tensor))
                pending.add((bits,), partial(self._take, len(self._parts) - 1))

    def _take(self, place: int, arrived: list[NDArray[np.uint8]]) -> None:
        self._parts[place] += blake3(arrived[0].data).digest()

    @property
    def data(self) -> bytes:
        """What is known of the tensors, once their bytes have arrived; empty without any."""
        return b"".join(self._parts)


def _is_readable(tensor: Tensor) -> bool:
    # Within the capture of a CUDA graph nothing may be computed for us.
    is_capturing = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
    return tensor.numel() > 0 and not (is_capturing or unreadable_reason(tensor))


def batch_number(hashes: Iterable[BatchHash]) -> dict[Series, float]:
    """Return the hash of what all models got in a step; empty if none was called."""
    data = b"".join(one.data for one in hashes)
    return {BATCH_HASH: hash_number(data)} if data else {}


class Generators:
    """The random generators of the process.

    Those of Python and numpy begin with other states in each process, so they have a hash of 0
    until the script has seeded them or has drawn from them.
    """

    def __init__(self) -> None:
        self._first = _states_of_hosts()

    def values(self) -> dict[Series, float]:
        """Return a hash of the state of each."""
        generators = {"torch": torch.default_generator}
        if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            devices = enumerate(torch.cuda.default_generators)
            generators |= {f"cuda:{number}": generator for number, generator in devices}
        states = {name: one.get_state().numpy().tobytes() for name, one in generators.items()}
        states |= _states_of_hosts()
        return {
            _of_generator(name): 0.0 if state == self._first.get(name) else hash_number(state)
            for name, state in states.items()
        }


@cache
def _of_generator(name: str) -> Series:
    return Series("", f"{GENERATORS}.{name}", "hash")


def _states_of_hosts() -> dict[str, bytes]:
    numpy = json.dumps(np.random.get_state(legacy=False), default=np.ndarray.tolist)
    return {"python": repr(random.getstate()).encode(), "numpy": numpy.encode()}
