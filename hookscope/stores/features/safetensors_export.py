"""Features written to one safetensors file in the format of a capture, some megabytes at a time.

The metadata has the statistics that ``show`` prints. Columns of the rows, such as labels, are
further tensors if they are numbers, and lists in the metadata if they are texts.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hookscope.files import strict_json
from hookscope.files.output_path import MARK, NPY, NPZ, SUFFIX
from hookscope.files.safetensors_header import HEADER_LIMIT, METADATA, header_bytes
from hookscope.results.dtypes import RAW, widen
from hookscope.results.numpy_stats import blocks, summarize
from hookscope.results.result import Result
from hookscope.results.stats import Stats
from hookscope.specs.tensor_key import COLUMN
from hookscope.stores.capture_export import TensorSlice
from hookscope.stores.capture_file import SCHEMA
from hookscope.stores.features.features import Features
from hookscope.stores.features.features_export import (
    RowProgress,
    column_array,
    write_numpy,
    write_parquet,
)
from hookscope.stores.features.lazy_rows import LazyRows

log = logging.getLogger("hookscope")

# Statistics whose JSON text is as long as that of any others.
_LONGEST_STATS = Stats(*(sys.maxsize, *(-sys.float_info.max,) * 5, *(sys.maxsize,) * 3))
# Keys of the manifest that a capture does not have, or has in another form.
_NOT_COPIED = {"schema", "rows", "keys", "shards", "inputs"}
# The format's names of the dtypes of columns.
_COLUMN_FORMATS = {"b": "BOOL", "i": "I64", "f": "F64"}


@dataclass(frozen=True)
class _Tensor:
    """A tensor to be written."""

    key: str
    format: str
    shape: tuple[int, ...]
    record: dict[str, Any]
    pieces: Callable[[], Iterator[NDArray[Any]]]


def write_safetensors(
    features: Features, chosen: Sequence[LazyRows], path: Path, progress: RowProgress
) -> None:
    """Write the rows of each key as one tensor of the stored dtype, scaled int8 as float32.

    The header is before the values, but has their statistics, which are known after the values are
    written. Space is reserved for the longest possible numbers.
    """
    tensors = [_rows_tensor(features, rows, progress) for rows in chosen]
    texts: dict[str, list[Any]] = {}
    for name in features.columns:
        values = features.column(name)
        if (column := _column_tensor(features, name, values)) is not None:
            tensors.append(column)
        else:
            texts[name] = values
    longest = dict.fromkeys((tensor.key for tensor in tensors), _LONGEST_STATS)
    header = _header(features, tensors, longest, texts)
    if texts and (len(header) > HEADER_LIMIT or not strict_json.can_parse_table(header)):
        log.warning(
            "left out the columns %s: their texts are too long for the header of a safetensors"
            " file. Export to .npz or .parquet to keep them.",
            ", ".join(texts),
        )
        texts = {}
        header = _header(features, tensors, longest, texts)
    start = len(header_bytes(header))
    stats: dict[str, Stats] = {}
    with path.open("wb") as file:
        file.seek(start)
        for tensor in _ordered(tensors):
            stats[tensor.key] = summarize(_write(tensor, file))
        text = _header(features, tensors, stats, texts)
        file.seek(0)
        file.write(header_bytes(text, start - 8))


def _rows_tensor(features: Features, rows: LazyRows, progress: RowProgress) -> _Tensor:
    [entry] = [entry for entry in features.manifest["keys"] if entry["key"] == rows.key]
    record = {
        **{name: value for name, value in entry.items() if name != "reduce"},
        "dtype": "float32" if rows.scaled else entry["dtype"],
    }

    def pieces() -> Iterator[NDArray[Any]]:
        for bits in rows.ranges():
            yield bits
            progress(len(bits))

    return _Tensor(rows.key, rows.format, rows.shape, record, pieces)


def _column_tensor(features: Features, name: str, values: list[Any]) -> _Tensor | None:
    """The tensor of a column; None if it has texts, or another value that no tensor has."""
    array = column_array(values)
    same = array.dtype.kind in _COLUMN_FORMATS and all(
        value is None or value == stored
        for value, stored in zip(values, array.tolist(), strict=True)
    )
    if not same or name in features.keys or name == METADATA:
        return None
    record = {
        **{"key": name, "module": name, "type": "", "call": 1, "what": COLUMN, "kind": COLUMN},
        "dtype": array.dtype.name,
    }
    form = _COLUMN_FORMATS[array.dtype.kind]
    return _Tensor(name, form, array.shape, record, lambda: iter([array]))


def _ordered(tensors: Sequence[_Tensor]) -> list[_Tensor]:
    """The widest dtypes first, so that each tensor begins at a multiple of its item size."""
    return sorted(tensors, key=lambda tensor: -np.dtype(RAW[tensor.format]).itemsize)


def _write(tensor: _Tensor, file: BinaryIO) -> Iterator[NDArray[Any]]:
    """Write a tensor, and yield the values that were written in blocks of one dimension."""
    for bits in tensor.pieces():
        file.write(bits.data)
        yield from blocks(widen(bits, tensor.format))


def _header(
    features: Features,
    tensors: Sequence[_Tensor],
    stats: dict[str, Stats],
    texts: dict[str, list[Any]],
) -> bytes:
    info = {name: v for name, v in features.manifest.items() if name not in _NOT_COPIED}
    info |= {
        "schema": SCHEMA,
        "inputs": [{"spec": spec} for spec in features.manifest["inputs"]["specs"]],
        "records": [
            {
                **tensor.record,
                "shape": tensor.shape,
                "device": features.manifest["device"],
                "aliases": [],
                "weight_norm": None,
                "stats": stats[tensor.key].to_json(),
            }
            for tensor in tensors
        ],
        "absent": [],
        **({"columns": texts} if texts else {}),
    }
    table: dict[str, Any] = {METADATA: {MARK: strict_json.dumps(info, sort_keys=True)}}
    end = 0
    for tensor in _ordered(tensors):
        size = int(np.prod(tensor.shape, dtype=object)) * np.dtype(RAW[tensor.format]).itemsize
        offsets = [end, end := end + size]
        place = {"dtype": tensor.format, "shape": tensor.shape, "data_offsets": offsets}
        table[tensor.key] = place
    return strict_json.dumps(table).encode()


WRITERS: dict[str, Callable[..., None]] = {
    SUFFIX: write_safetensors,
    NPY: partial(write_numpy, ending=NPY),
    NPZ: partial(write_numpy, ending=NPZ),
    ".parquet": write_parquet,
}


@dataclass(frozen=True)
class Exported(Result):
    """The result of an export.

    Attributes:
        path: the file.
        bytes: its size.
        rows: its contents, one entry for each key.
    """

    view = "features.EXPORTED"

    path: Path
    bytes: int
    rows: tuple[LazyRows | TensorSlice, ...]

    def __repr__(self) -> str:
        return f"<Exported {self.path}: {len(self.rows)} tensors, {self.bytes} bytes>"

    def to_json(self) -> dict[str, Any]:
        """Return ``file``, ``bytes``, and ``keys``, each with its shape and dtype."""
        keys = [{"key": r.key, "shape": r.shape, "dtype": str(r.dtype)} for r in self.rows]
        return {"file": str(self.path), "bytes": self.bytes, "keys": keys}
