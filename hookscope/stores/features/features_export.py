"""Features written to one file, some megabytes at a time, so memory does not grow with the rows.

A ``.npy`` file has one array, for ``numpy.load(path, mmap_mode="r")``, and a ``.npz`` file one
array per key. A Parquet table has a row per input, with its path and a list of values per key.
Columns of the rows, such as labels, are further arrays of a ``.npz`` file and further columns of a
table. ``safetensors_export.py`` writes safetensors files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.escapes import encodable
from hookscope.files import strict_json
from hookscope.files.numpy_files import ArrayEntry, check_single, write_arrays
from hookscope.files.optional_packages import optional_package
from hookscope.files.output_path import MARK, NPZ
from hookscope.results.dtypes import widen
from hookscope.stores.features.features import Features
from hookscope.stores.features.lazy_rows import BLOCK, LazyRows

RowProgress = Callable[[int], None]


def write_numpy(
    features: Features, chosen: Sequence[LazyRows], path: Path, progress: RowProgress, ending: str
) -> None:
    """Write the rows of each key as one array: several as ``.npz``, one as ``.npy``."""
    check_single([rows.key for rows in chosen], ending, "keys")
    entries = (
        ArrayEntry(rows.key, rows.dtype, rows.shape, _values(rows, progress)) for rows in chosen
    )
    columns = features.columns if ending == NPZ else ()
    labels = (_column_array(features, name) for name in columns)
    write_arrays(path, ending, chain(entries, labels))


def _column_array(features: Features, name: str) -> ArrayEntry:
    values = column_array(features.column(name))
    return ArrayEntry(name, values.dtype, values.shape, [values])


def column_array(values: Sequence[Any]) -> NDArray[Any]:
    """Return a column as an array of bools, int64, float64 or text.

    A missing value is NaN among numbers and an empty text otherwise. Values of several kinds become
    texts.

    Example:
        >>> column_array([1, 2.5, None]), column_array(["cat", None])
        (array([1. , 2.5, nan]), array(['cat', ''], dtype='<U3'))
    """
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return np.array(values, np.bool_)
    if kinds == {int} and all(abs(value) < 2**63 for value in values):
        return np.array(values, np.int64)
    if kinds - {type(None)} and kinds <= {int, float, type(None)}:
        return np.array([math.nan if v is None else v for v in values], np.float64)
    return np.array(["" if value is None else str(value) for value in values], np.str_)


def _values(rows: LazyRows, progress: RowProgress) -> Iterator[NDArray[Any]]:
    for bits in rows.ranges():
        yield widen(bits, rows.format)
        progress(len(bits))


def write_parquet(
    features: Features, chosen: Sequence[LazyRows], path: Path, progress: RowProgress
) -> None:
    """Write the rows of each key as a column of lists of one length, in row-major order.

    The metadata of a column has the shape of a row. bfloat16 becomes float32.
    """
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
            shape = "x".join(map(str, rows.shape[1:]))
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
