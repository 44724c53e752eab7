"""The fingerprint of a model on one input: what its layers compute, in a few hundred bytes each."""

from __future__ import annotations

import os
from base64 import b64encode
from dataclasses import dataclass
from functools import cached_property
from math import frexp, inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.files import strict_json
from hookscope.files.atomic_files import write_text
from hookscope.files.output_path import FINGERPRINT, FINGERPRINT_MARK, check_ending
from hookscope.files.words import shape_text
from hookscope.results.result import Result
from hookscope.specs.tensor_key import INPUT

FORMAT = 1
COLUMNS = (
    *("key", "type", "dtype", "shape", "mean", "std", "min", "max", "norm", "nonfinite"),
    *("rounding", "hash", "inputs", "projections"),
)
DIGITS, ROUNDING_DIGITS = 6, 3
ASSUMED = "assumed"  # in place of the names of the runs that measured the rounding
# The first columns are aligned. Fixed, because a new name would otherwise change every line.
_WIDTHS = (28, 12, 8, 13)
_MARKS = ' ",=#'


@dataclass(frozen=True)
class FingerprintEntry:
    """One tensor that goes into a layer or comes out of it.

    Attributes:
        key: ``<module>[:call]/<what>``, as in a capture.
        type: class name of the module.
        dtype: of the tensor.
        shape: of the tensor.
        mean: of the finite entries; None if there are none, as for the next four.
        std: population standard deviation.
        min: least entry.
        max: largest entry.
        norm: Euclidean norm.
        nonfinite: number of entries that are NaN or infinite.
        rounding: relative distance of a run with other rounding; None if it was not measured.
        digest: the XXH3 of the bits, in hexadecimal; "-" where they cannot be read.
        sums: the projections over ``2**exponent``, as 64 float32 in little-endian order.
        source: the key of an earlier tensor with the same bits; empty if there is none.
    """

    key: str
    type: str
    dtype: str
    shape: tuple[int, ...]
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    norm: float | None
    nonfinite: int
    rounding: float | None
    digest: str
    sums: bytes
    source: str = ""

    @property
    def call(self) -> str:
        """The module, with the number of its call from the second call on."""
        return self.key.rpartition("/")[0]

    @property
    def what(self) -> str:
        """What the tensor is of the call: ``output``, ``input.0``."""
        return self.key.rpartition("/")[2]

    @property
    def is_input(self) -> bool:
        """Whether the tensor goes into the module."""
        return self.what.startswith(INPUT)

    @property
    def exponent(self) -> int:
        """The power of two of the projections, so that they are in the range of float32."""
        return exponent_of_norm(self.norm)

    @cached_property
    def projections(self) -> NDArray[np.float64]:
        """The projections."""
        return np.ldexp(np.frombuffer(self.sums, "<f4").astype(np.float64), self.exponent)

    def same_bits(self, other: FingerprintEntry) -> bool:
        """Whether two tensors have the same shape, dtype and bits."""
        mine, others = (self.digest, self.dtype, self.shape), (other.digest, other.dtype)
        return mine == (*others, other.shape)

    def distance(self, other: FingerprintEntry) -> float:
        """Return the estimated relative distance ``|self - other| / |self|``."""
        if self.same_bits(other):
            return 0.0
        if self.shape != other.shape or self.nonfinite != other.nonfinite:
            return inf
        gap = float(np.linalg.norm(self.projections - other.projections))
        return gap / self.norm if self.norm else inf if gap else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the entry as a plain dict, without the projections."""
        names = [name for name in self.__dataclass_fields__ if name != "sums"]
        return {name: getattr(self, name) for name in names}


def exponent_of_norm(norm: float | None) -> int:
    """Return the power of two above a norm; 0 for none."""
    return frexp(norm)[1] if norm and norm < inf else 0


def packed(projections: NDArray[np.float64], norm: float | None) -> bytes:
    """Return projections as an entry with this norm has them."""
    return np.ldexp(projections, -exponent_of_norm(norm)).astype("<f4").tobytes()


@dataclass(frozen=True)
class ModelFingerprint(Result):
    """What the layers of a model compute on one input.

    Attributes:
        entries: of the inputs and outputs of all modules, in the order of execution.
        metadata: model, input, options, seed, versions and environment.

    Example:
        >>> import hookscope
        >>> found = hookscope.fingerprint("resnet18", shape=(1, 3, 64, 64))
        >>> found
        <ModelFingerprint of resnet18: 76 outputs>
        >>> found["fc/output"].shape
        (1, 1000)
    """

    view = "fingerprint"

    entries: tuple[FingerprintEntry, ...]
    metadata: dict[str, Any]

    def __repr__(self) -> str:
        return f"<ModelFingerprint of {self.label}: {len(self.outputs)} outputs>"

    def __getitem__(self, key: str) -> FingerprintEntry:
        return self.by_key[key]

    @property
    def label(self) -> str:
        """The model's name."""
        model = self.metadata.get("model")
        return str(model.get("spec", "a model")) if isinstance(model, dict) else "a model"

    @cached_property
    def by_key(self) -> dict[str, FingerprintEntry]:
        """The entries by their keys."""
        return {entry.key: entry for entry in self.entries}

    @property
    def outputs(self) -> tuple[FingerprintEntry, ...]:
        """The entries of outputs."""
        return tuple(entry for entry in self.entries if not entry.is_input)

    def to_json(self) -> dict[str, Any]:
        """Return the fingerprint as a plain dict, without the projections."""
        return {**self.metadata, "entries": [entry.to_json() for entry in self.entries]}

    def to_text(self) -> str:
        """Return the text of the file; see ``save``."""
        lines = [f"{FINGERPRINT_MARK}{FORMAT}"]
        lines += [f"# {name}: {_value_text(x)}" for name, x in sorted(self.metadata.items())]
        lines += ["# " + " ".join(COLUMNS), *map(_line, _rows(self.entries))]
        return "\n".join(lines) + "\n"

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the fingerprint to a text file atomically; return its size in bytes.

        A line for each tensor that is computed: key, type, dtype, shape, mean, standard deviation,
        extremes, norm, number of entries that are not finite, rounding, hash, which earlier tensors
        the inputs are, and the projections as base64 of 64 float32. An input is a line of its own
        if no module returned it. A tensor with the bits of an earlier one has its key alone.

        Raises:
            RequestError: the name has another ending than ``.fp``.
            StoreError: the file cannot be written. An earlier file is not changed.
        """
        check_ending(Path(path), FINGERPRINT)
        return write_text(path, self.to_text())


def _value_text(value: Any) -> str:
    return strict_json.dumps(value, sort_keys=True, surrogates=True)


def _line(row: tuple[str, ...]) -> str:
    padded = map(str.ljust, row, _WIDTHS)
    return " ".join([*padded, *row[len(_WIDTHS) :]])


def _rows(entries: tuple[FingerprintEntry, ...]) -> list[tuple[str, ...]]:
    """The cells of each line. Inputs that a module returned are in the line of their call."""
    inputs: dict[str, list[tuple[str, str]]] = {}
    rows: list[tuple[str, ...]] = []
    lines: dict[str, int] = {}  # of the entries that have one, by key
    for entry in entries:
        if entry.is_input and entry.source:
            inputs.setdefault(entry.call, []).append((entry.what, entry.source))
            continue
        lines[entry.key] = len(rows)
        # As distances, so that a new layer changes few lines.
        found = [] if entry.is_input else inputs.pop(entry.call, [])
        texts = (f"{quoted(what)}={lines[key] - len(rows)}" for what, key in found)
        rows.append(_cells(entry, ",".join(texts) or "-"))
    return rows


def _cells(entry: FingerprintEntry, inputs: str) -> tuple[str, ...]:
    start = (quoted(entry.key), quoted(entry.type), entry.dtype, shape_text(entry.shape))
    if entry.source:
        return (*start, f"={quoted(entry.source)}", inputs)
    numbers = (entry.mean, entry.std, entry.min, entry.max, entry.norm)
    return (
        *start,
        *(_number(value, DIGITS) for value in numbers),
        str(entry.nonfinite),
        _number(entry.rounding, ROUNDING_DIGITS),
        entry.digest,
        inputs,
        b64encode(entry.sums).decode(),
    )


def quoted(name: str) -> str:
    r"""Return a name as it stands in a line: as JSON if it has characters with a meaning there.

    >>> print(quoted("layer1.0/output"), quoted("a b"))
    layer1.0/output "a\u0020b"
    """
    if name and name.isascii() and name.isprintable() and not set(name) & set(_MARKS):
        return name
    text = strict_json.dumps(name)
    for mark in _MARKS.replace('"', ""):
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def rounded(value: float | None, digits: int = DIGITS) -> float | None:
    """Return a number as the file has it, so that reading a file changes nothing."""
    return None if value is None else float(_number(value, digits))
