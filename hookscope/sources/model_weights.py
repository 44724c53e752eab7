"""The values of a model in memory as a set of weights, so that they can be compared with a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hookscope.results.dtypes import widen
from hookscope.specs.tensor_key import Index
from hookscope.stores.weights.weight_dtypes import WIDENED
from hookscope.stores.weights.weight_set import WeightSet, WeightTensor
from hookscope.tensors.nested import bits_of

_BLOCK = 1 << 20  # entries of a block
_BITS = {1: torch.uint8, 2: torch.int16}  # what numpy reads the dtypes with that it does not have


@dataclass(frozen=True)
class ModelTensor:
    """A parameter or a buffer of a model."""

    tensor: Tensor

    def read(self, index: Index) -> NDArray[Any]:
        """Return a copy of the values at ``index``, with dtypes widened as those of a file."""
        return _as_array(self.tensor.detach().cpu()[index]).copy()

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield all values in row-major order, in blocks of one dimension."""
        values = self.tensor.detach().reshape(-1)
        for block in values.split(_BLOCK) if len(values) else ():
            yield _as_array(block.cpu())

    def stored(self) -> Iterator[NDArray[Any]]:
        """Yield the bytes of all values in row-major order, without widening."""
        values = bits_of(self.tensor.detach())
        for block in values.split(_BLOCK) if len(values) else ():
            yield block.cpu().numpy()


def model_weights(module: nn.Module, label: str, kind: str) -> WeightSet:
    """Return the parameters and saved buffers of a model, with tied tensors marked."""
    state = module.state_dict(keep_vars=True).items()
    # The extra state of a module may be anything.
    return tensor_set({name: v for name, v in state if isinstance(v, Tensor)}, label, kind)


def tensor_set(
    named: Mapping[str, Tensor],
    label: str,
    kind: str,
    part: str = "",
    metadata: Mapping[str, str] | None = None,
    notes: tuple[str, ...] = (),
) -> WeightSet:
    """Return tensors in memory as a set of weights, with tied ones marked."""
    tensors: dict[str, WeightTensor] = {}
    owners: dict[tuple[Any, ...], str] = {}
    for name, value in named.items():
        place = value.device, value.data_ptr(), value.dtype, value.shape, value.stride()
        owner = owners.setdefault(place, name) if value.numel() else name
        dtype = str(value.dtype).removeprefix("torch.")
        tied_to = "" if owner == name else owner
        shape = tuple(value.shape)
        tensors[name] = WeightTensor(name, dtype, shape, value.nbytes, label, tied_to)
    locations = {name: ModelTensor(value) for name, value in named.items()}
    return WeightSet(label, part, kind, tensors, metadata or {}, locations, notes)


def _as_array(values: Tensor) -> NDArray[Any]:
    name = WIDENED.get(str(values.dtype).removeprefix("torch."), "")
    if not name:
        return values.resolve_conj().resolve_neg().numpy()
    array = values.contiguous().view(_BITS[values.element_size()]).numpy()
    return widen(array.view(f"u{array.itemsize}"), name)
