"""A set of weights: tensors by name in one file or several, whose values are read on request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from hookscope.errors import MissingKeyError, WeightsFileError
from hookscope.files.shell_words import cite_command
from hookscope.files.suggestions import did_you_mean
from hookscope.results.result import Result
from hookscope.specs.tensor_key import WHOLE, Index, slice_error
from hookscope.stores.weights.tensor_location import (
    QuantisedLocation,
    StridedLocation,
    TensorLocation,
)

if TYPE_CHECKING:  # a tree of weights needs no numpy
    from numpy.typing import NDArray


_RUNNING_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
MOST_TENSORS = 200_000  # of a set; building as many takes about three seconds
LONGEST_NAME = 4096  # characters; a tree has each beginning of a name up to a dot


def check_count(path: str, count: int) -> None:
    """Raise WeightsFileError if ``path`` has more than ``MOST_TENSORS`` tensors.

    Readers call it as soon as they know the number, before they build anything for each tensor.
    """
    if count > MOST_TENSORS:
        raise WeightsFileError(
            f"{path!r} has {count:,} tensors; at most {MOST_TENSORS:,} are listed.",
            "Save fewer and larger tensors.",
        )


@dataclass(frozen=True)
class WeightTensor:
    """A tensor in a file of weights."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str
    tied_to: str = ""

    @property
    def numel(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def is_buffer(self) -> bool:
        """Whether the name is that of running statistics, which are buffers of a model.

        A file does not tell parameters from buffers; other tensors count as parameters.
        """
        return re.split(r"[./]", self.name)[-1] in _RUNNING_STATISTICS


class TensorValues(Protocol):
    """The values of one tensor in a file."""

    def read(self, index: Index) -> NDArray[Any]:
        """Return the values at ``index``, which may raise IndexError."""

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield all values in row-major order, in blocks of one dimension."""

    def stored(self) -> Iterator[NDArray[Any]]:
        """Yield the bytes of all values in row-major order, little-endian and not widened."""


@dataclass(frozen=True)
class StoredWeights:
    """What a reader found in one file, before any value is read."""

    kind: str
    tensors: Sequence[tuple[WeightTensor, TensorLocation]]
    metadata: Mapping[str, str] = field(default_factory=dict)
    part: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class WeightSet(Result):
    """The tensors of a file of weights, or of several files that belong together.

    Opening reads headers only. Values are read from the files when they are requested.

    Attributes:
        path: as it was given, without ``#part``.
        part: which part of a checkpoint, such as ``ema``; empty if the file has only one.
        kind: the format, such as ``safetensors, 30 files``.
        tensors: by name, in the order of the file; of safetensors, and of several files, in natural
            order of names.
        metadata: plain texts of the file, such as the epoch of a checkpoint.
        locations: where the values of each tensor are stored.
        notes: what was left out or chosen, in sentences.
    """

    view = "weight_set"

    path: str
    part: str
    kind: str
    tensors: Mapping[str, WeightTensor]
    metadata: Mapping[str, str]
    locations: Mapping[str, TensorLocation | TensorValues] = field(compare=False)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<WeightSet {self.label}: {self.kind}, {len(self.tensors):,}"
            f" tensor{'' if len(self.tensors) == 1 else 's'}, {self.parameters:,} parameters>"
        )

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.tensor(name)

    @property
    def label(self) -> str:
        """The path with its part, as the user may type it."""
        return f"{self.path}#{self.part}" if self.part else self.path

    @property
    def parameters(self) -> int:
        """The number of elements without those of buffers, tied tensors counted once."""
        return self.entries - self.buffers

    @property
    def buffers(self) -> int:
        """The number of elements of running statistics; see ``WeightTensor.is_buffer``."""
        tensors = self.tensors.values()
        return sum(tensor.numel for tensor in tensors if tensor.is_buffer and not tensor.tied_to)

    @property
    def entries(self) -> int:
        """The number of elements of all tensors, tied ones counted once."""
        return sum(tensor.numel for tensor in self.tensors.values() if not tensor.tied_to)

    @property
    def nbytes(self) -> int:
        """The size of all tensors as stored in bytes, tied ones counted once."""
        return sum(tensor.nbytes for tensor in self.tensors.values() if not tensor.tied_to)

    def to_json(self) -> dict[str, Any]:
        """Return what is known of the file, and its tensors without their values."""
        return {
            "file": self.path,
            "kind": self.kind,
            "part": self.part,
            "parameters": self.parameters,
            "bytes": self.nbytes,
            "metadata": dict(self.metadata),
            "notes": list(self.notes),
            "tensors": [dict(vars(tensor)) for tensor in self.tensors.values()],
        }

    def tensor(self, name: str, index: Index = WHOLE) -> NDArray[Any]:
        """Return the values of a tensor, or of a part of it; only that part is read.

        Args:
            name: its name in the file.
            index: integers, slices and at most one ``...``, as in numpy.

        Returns:
            A new array. Dtypes that numpy does not have are widened without a change of value:
            bfloat16 and float8 to float32, complex32 to complex64; a quantised tensor of GGUF is
            dequantised to float32.

        Raises:
            MissingKeyError: there is no such tensor.
            RequestError: the index is out of bounds.
            WeightsFileError: the file was removed, or its dtype cannot be read.
        """
        values = self._values(name)
        try:
            return values.read(index)
        except IndexError as error:
            raise slice_error(name, self.tensors[name].shape, error) from error

    def blocks(self, name: str) -> Iterator[NDArray[Any]]:
        """Yield the same values in row-major order, in blocks of one dimension of a few megabytes.

        A block is valid until the next one is yielded, which may reuse its memory.
        """
        return self._values(name).blocks()

    def stored(self, name: str) -> Iterator[NDArray[Any]]:
        """Yield the bytes of a tensor in row-major order, little-endian, in blocks of uint8.

        They are not widened: of a bfloat16 tensor, two for each value. A block is valid until the
        next one.
        """
        return self._values(name).stored()

    def _values(self, name: str) -> TensorValues:
        if name not in self.locations:
            raise MissingKeyError(
                f"There is no tensor {name!r} in {self.label}.",
                did_you_mean(name, self.tensors)
                or f"{cite_command('hookscope', 'tree', self.label)} lists them.",
            )
        location = self.locations[name]
        if not isinstance(location, QuantisedLocation | StridedLocation):
            return location
        from hookscope.stores.weights.quantised_values import QuantisedValues
        from hookscope.stores.weights.tensor_values import StridedValues

        if isinstance(location, QuantisedLocation):
            return QuantisedValues(location)
        return StridedValues(location)
