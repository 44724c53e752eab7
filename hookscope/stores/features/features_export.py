"""Features written to one file, some megabytes at a time, so memory does not grow with the rows."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.escapes import encodable
from hookscope.files import strict_json
from hookscope.files.numpy_files import ArrayEntry, check_single, write_arrays
from hookscope.files.optional_packages import optional_package
from hookscope.files.output_path import MARK, NPY, NPZ, SUFFIX
from hookscope.files.safetensors_header import HEADER_LIMIT, METADATA, header_bytes
from hookscope.files.words import shape_text
from hookscope.results.dtypes import RAW, widen
from hookscope.results.numpy_stats import blocks, summarize
from hookscope.results.stats import Stats
from hookscope.specs.tensor_key import COLUMN
from hookscope.stores.capture_file import SCHEMA
from hookscope.stores.features.features import Features
from hookscope.stores.features.lazy_rows import BLOCK, LazyRows

log = logging.getLogger("hookscope")

RowProgress = Callable[[int], None]

# Statistics whose JSON text is as long as that of any others.
_LONGEST_STATS = Stats(*(sys.maxsize, *(-sys.float_info.max,) * 5, *(sys.maxsize,) * 3))
# Keys of the manifest that a capture does not have, or has in another form.
_NOT_COPIED = {"schema", "rows", "keys", "shards", "inputs"}
# The format's names of the dtypes of columns.
_COLUMN_FORMATS = {"b": "BOOL", "i": "I64", "f": "F64"}


def write_numpy(
    features: Features, chosen: Sequence[LazyRows], path: Path, progress: RowProgress, ending: str
) -> None:
    """Write the rows of each key as one array: several as ``.npz``, one as ``.npy``."""
    check_single([rows.key for rows in chosen], ending, "keys")

    def entry(rows: LazyRows) -> ArrayEntry:
        values = (widen(bits, rows.format) for bits in _bits(rows, progress))
        return ArrayEntry(rows.key, rows.dtype, rows.shape, values)

    columns = features.columns if ending == NPZ else ()
    labels = (_column_array(features, name) for name in columns)
    write_arrays(path, ending, chain(map(entry, chosen), labels))


def _column_array(features: Features, name: str) -> ArrayEntry:
    values = column_array(features.column(name))
    return ArrayEntry(name, values.dtype, values.shape, [values])


def column_array(values: Sequence[Any]) -> NDArray[Any]:
    """Return a column as bools, int64, float64 or text; a missing value is NaN or an empty text."""
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return np.array(values, np.bool_)
    if kinds == {int} and all(abs(value) < 2**63 for value in values):
        return np.array(values, np.int64)
    if kinds - {type(None)} and kinds <= {int, float, type(None)}:
        return np.array([math.nan if v is None else v for v in values], np.float64)
    return np.array(["" if value is None else str(value) for value in values], np.str_)


def _bits(rows: LazyRows, progress: RowProgress) -> Iterator[NDArray[Any]]:
    """Yield the bits of all rows, and call ``progress`` after each part of them."""
    for bits in rows.ranges():
        yield bits
        progress(len(bits))


def write_parquet(
    features: Features, chosen: Sequence[LazyRows], path: Path, progress: RowProgress
) -> None:
    """Write each key as a column of flat lists, whose metadata has the shape of a row."""
    with optional_package("pyarrow", "parquet", "Writing Parquet"):
        import pyarrow as arrow
        from pyarrow import parquet
    for rows in chosen:
        if rows.dtype.kind == "c":
            raise RequestError(
                f"{rows.key} is of dtype {rows.dtype}, but Parquet has no complex numbers.",
                "Write a .safetensors or .npy file.",
            )
        if not _width(rows):
            shape = shape_text(rows.shape[1:])
            raise RequestError(
                f"The rows of {rows.key} have shape {shape} and no values, but Parquet has no lists"
                " of length 0.",
                "Choose other layers with --layer, or write a .safetensors or .npy file.",
            )
    fields = [arrow.field("row", arrow.int64()), arrow.field("path", arrow.string())]
    columns = [column_array(features.column(name)) for name in features.columns]
    fields += [
        arrow.field(name, arrow.string() if values.dtype.kind == "U" else str(values.dtype))
        for name, values in zip(features.columns, columns, strict=True)
    ]
    for rows in chosen:
        item_type = arrow.from_numpy_dtype(rows.dtype)
        column_type = arrow.list_(item_type, _width(rows)) if rows.ndim > 1 else item_type
        shape = strict_json.dumps(rows.shape[1:])
        fields.append(arrow.field(rows.key, column_type, metadata={"shape": shape}))
    names = {"command", "options", "model", "versions"}
    metadata = {name: value for name, value in features.manifest.items() if name in names}
    schema = arrow.schema(fields, metadata={MARK: strict_json.dumps(metadata, sort_keys=True)})
    bytes_in_row = sum(rows.nbytes for rows in chosen) // max(features.rows, 1)
    step = max(BLOCK // max(bytes_in_row, 1), 1)
    # Bytes of a path that are not UTF-8 are escaped, as in the table of inputs.
    input_paths = (entry.get("path") for entry in features.inputs)
    paths = (input_path and encodable(input_path) for input_path in input_paths)
    with parquet.ParquetWriter(path, schema) as writer:
        for first in range(0, features.rows, step):
            last = min(first + step, features.rows)
            arrays = [np.arange(first, last), list(islice(paths, last - first))]
            arrays += [_column(values[first:last]) for values in columns]
            arrays += [_lists(arrow, rows, first, last) for rows in chosen]
            writer.write_batch(arrow.record_batch(arrays, schema=schema))
            progress((last - first) * len(chosen))


def _column(values: NDArray[Any]) -> Any:
    return list(map(encodable, values.tolist())) if values.dtype.kind == "U" else values


def _lists(arrow: Any, rows: LazyRows, first: int, last: int) -> Any:
    flat = arrow.array(widen(rows.read_range(first, last), rows.format).reshape(-1))
    return arrow.FixedSizeListArray.from_arrays(flat, _width(rows)) if rows.ndim > 1 else flat


def _width(rows: LazyRows) -> int:
    """Number of values in a row."""
    return int(np.prod(rows.shape[1:], dtype=object))


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

    The header has statistics that are known last: space is reserved for the longest numbers.
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
    return _Tensor(rows.key, rows.format, rows.shape, record, partial(_bits, rows, progress))


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
