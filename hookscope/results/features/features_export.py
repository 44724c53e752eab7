"""Features written to one file, some megabytes at a time: memory does not grow with the rows.

A ``.safetensors`` file is one that a plain capture might have written, with the statistics that
``show`` prints; ``.npy`` is one array, for ``numpy.load(path, mmap_mode="r")``, and ``.npz`` one
for each key; Parquet is in ``parquet.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import EnvironmentFault, RequestError
from hookscope.files import strict_json
from hookscope.files.escapes import encodable
from hookscope.results.capture_file import SCHEMA
from hookscope.results.dtypes import RAW, widen
from hookscope.results.features.features import Features
from hookscope.results.features.lazy_rows import BLOCK, LazyRows
from hookscope.results.numpy_files import ArrayEntry, check_single, write_arrays
from hookscope.results.numpy_stats import blocks, summarize
from hookscope.results.stats import Stats
from hookscope.specs.output_path import MARK

RowProgress = Callable[[int], None]

# Numbers whose texts are as long as any.
_LONG = Stats(*(sys.maxsize, *(-sys.float_info.max,) * 5, *(sys.maxsize,) * 3))

_TOLD_OTHERWISE = {"schema", "rows", "keys", "shards", "inputs"}


def write_numpy(
    features: Features, chosen: Sequence[LazyRows], path: Path, progress: RowProgress, ending: str
) -> None:
    """Write the rows of each key as one array: several as ``.npz``, one as ``.npy``.

    Raises:
        RequestError: there are several keys for a ``.npy`` file.
    """
    check_single([rows.key for rows in chosen], ending, "keys")
    entries = (
        ArrayEntry(rows.key, rows.dtype, rows.shape, _values(rows, progress)) for rows in chosen
    )
    write_arrays(path, ending, entries)


def _values(rows: LazyRows, progress: RowProgress) -> Iterator[NDArray[Any]]:
    for bits in rows.stretches():
        yield widen(bits, rows.format)
        progress(len(bits))


def write_safetensors(
    features: Features, chosen: Sequence[LazyRows], path: Path, progress: RowProgress
) -> None:
    """Write the rows of each key as one tensor of the stored dtype, scaled int8 as float32.

    The header comes before the values and tells their statistics, which are known after them: it
    is given the room that the longest numbers would take.
    """
    # The widest dtypes first: then each tensor lies at a multiple of the size of its values.
    ordered = sorted(chosen, key=lambda rows: -np.dtype(RAW[rows.format]).itemsize)
    room = len(_header(features, chosen, ordered, [_LONG] * len(chosen)))
    room += -room % 8
    stats: dict[str, Stats] = {}
    with path.open("wb") as file:
        file.seek(8 + room)
        for rows in ordered:
            stats[rows.key] = summarize(_copied(rows, file, progress))
        text = _header(features, chosen, ordered, [stats[rows.key] for rows in chosen])
        file.seek(0)
        file.write(room.to_bytes(8, "little") + text.ljust(room))


def _copied(rows: LazyRows, file: BinaryIO, progress: RowProgress) -> Iterator[NDArray[Any]]:
    """Write the rows, and yield their values in pieces of one dimension on the way."""
    for bits in rows.stretches():
        file.write(bits.data)
        yield from blocks(widen(bits, rows.format))
        progress(len(bits))


def _header(
    features: Features,
    chosen: Sequence[LazyRows],
    ordered: Sequence[LazyRows],
    stats: Sequence[Stats],
) -> bytes:
    told = {one["key"]: one for one in features.manifest["keys"]}
    info = {name: v for name, v in features.manifest.items() if name not in _TOLD_OTHERWISE}
    info |= {
        "schema": SCHEMA,
        "inputs": [{"word": word} for word in features.manifest["inputs"]["words"]],
        "records": [
            {
                **{n: v for n, v in told[rows.key].items() if n != "reduce"},
                "shape": rows.shape,
                "dtype": "float32" if rows.scaled else told[rows.key]["dtype"],
                "device": features.manifest["device"],
                "aliases": [],
                "weight_norm": None,
                "stats": one.to_json(),
            }
            for rows, one in zip(chosen, stats, strict=True)
        ],
        "absent": [],
    }
    table: dict[str, Any] = {"__metadata__": {MARK: strict_json.dumps(info, sort_keys=True)}}
    end = 0
    for rows in ordered:
        size = int(np.prod(rows.shape, dtype=object)) * np.dtype(RAW[rows.format]).itemsize
        offsets = [end, end := end + size]
        table[rows.key] = {"dtype": rows.format, "shape": rows.shape, "data_offsets": offsets}
    return strict_json.dumps(table).encode()


def write_parquet(
    features: Features, chosen: Sequence[LazyRows], path: Path, progress: RowProgress
) -> None:
    """Write the rows of each key as a column of lists of one length, in row-major order.

    The shape of a row stands in the metadata of its column, bfloat16 becomes float32.

    Raises:
        EnvironmentFault: pyarrow is not installed.
        RequestError: a dtype is one that Parquet has not, or a row holds no number.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise EnvironmentFault(
            f"Parquet is written with pyarrow, which does not load: {error}.",
            'Install it: pip install "hookscope[parquet]"',
        ) from error
    for rows in chosen:
        if rows.dtype.kind == "c":
            raise RequestError(
                f"{rows.key} is of dtype {rows.dtype}, and Parquet has no complex numbers.",
                "Write a .safetensors or .npy file.",
            )
        if not _width(rows):
            shape = "x".join(map(str, rows.shape[1:]))
            raise RequestError(
                f"A row of {rows.key} is {shape}, which holds no number, and Parquet has no lists"
                " of length 0.",
                "Choose other layers with --layer, or write a .safetensors or .npy file.",
            )
    columns = [("row", arrow.int64()), ("path", arrow.string())]
    fields = [arrow.field(*column) for column in columns]
    for rows in chosen:
        each = arrow.from_numpy_dtype(rows.dtype)
        kind = arrow.list_(each, _width(rows)) if rows.ndim > 1 else each
        shape = strict_json.dumps(rows.shape[1:])
        fields.append(arrow.field(rows.key, kind, metadata={"shape": shape}))
    told = {name: features.manifest[name] for name in ("command", "options", "model", "versions")}
    schema = arrow.schema(fields, metadata={MARK: strict_json.dumps(told, sort_keys=True)})
    bytes_in_row = sum(rows.nbytes for rows in chosen) // max(features.rows, 1)
    step = max(BLOCK // max(bytes_in_row, 1), 1)
    paths = (_text(entry.get("path")) for entry in features.inputs)
    with parquet.ParquetWriter(path, schema) as writer:
        for first in range(0, features.rows, step):
            last = min(first + step, features.rows)
            arrays = [np.arange(first, last), list(islice(paths, last - first))]
            arrays += [_lists(arrow, rows, first, last) for rows in chosen]
            writer.write_batch(arrow.record_batch(arrays, schema=schema))
            progress((last - first) * len(chosen))


def _text(path: str | None) -> str | None:
    """The path; bytes that are no text in UTF-8 are escaped, as in the table of inputs."""
    return path and encodable(path)


def _lists(arrow: Any, rows: LazyRows, first: int, last: int) -> Any:
    flat = arrow.array(widen(rows.stretch(first, last), rows.format).reshape(-1))
    return arrow.FixedSizeListArray.from_arrays(flat, _width(rows)) if rows.ndim > 1 else flat


def _width(rows: LazyRows) -> int:
    return int(np.prod(rows.shape[1:], dtype=object))
