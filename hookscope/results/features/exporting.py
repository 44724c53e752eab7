"""Features written to one file, some megabytes at a time: memory does not grow with the rows.

A ``.safetensors`` file is one that a plain capture might have written, with the statistics that
``show`` prints; ``.npy`` is one array, for ``numpy.load(path, mmap_mode="r")``, and ``.npz`` one
for each key; Parquet is in ``parquet.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hookscope.files import strict_json
from hookscope.results.dtypes import RAW, widen
from hookscope.results.features.features import Features
from hookscope.results.features.lazy import Rows
from hookscope.results.header import SCHEMA
from hookscope.results.numpy_files import ArrayEntry, check_single, write_arrays
from hookscope.results.numpy_stats import blocks, summarize
from hookscope.results.stats import Stats
from hookscope.specs.output_path import MARK

Progress = Callable[[int], None]

# Numbers whose texts are as long as any.
_LONG = Stats(*(sys.maxsize, *(-sys.float_info.max,) * 5, *(sys.maxsize,) * 3))
_TOLD_OTHERWISE = {"schema", "rows", "keys", "shards", "inputs"}


def write_numpy(
    features: Features, chosen: Sequence[Rows], path: Path, progress: Progress, ending: str
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


def _values(rows: Rows, progress: Progress) -> Iterator[NDArray[Any]]:
    for bits in rows.stretches():
        yield widen(bits, rows.format)
        progress(len(bits))


def write_safetensors(
    features: Features, chosen: Sequence[Rows], path: Path, progress: Progress
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


def _copied(rows: Rows, file: BinaryIO, progress: Progress) -> Iterator[NDArray[Any]]:
    """Write the rows, and yield their values in pieces of one dimension on the way."""
    for bits in rows.stretches():
        file.write(bits.data)
        yield from blocks(widen(bits, rows.format))
        progress(len(bits))


def _header(
    features: Features, chosen: Sequence[Rows], ordered: Sequence[Rows], stats: Sequence[Stats]
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
