"""Features written to one file, some megabytes at a time: memory does not grow with the rows.

A ``.safetensors`` file is one that a plain capture might have written, with the statistics that
``show`` prints; ``.npy`` is one array, for ``numpy.load(path, mmap_mode="r")``; Parquet is in
``parquet.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hookscope import strict_json
from hookscope.arrays import blocks, summarize
from hookscope.datasets.reading.features import Features
from hookscope.datasets.reading.lazy import Rows
from hookscope.errors import RequestError
from hookscope.header import SCHEMA
from hookscope.narrow import RAW, widen
from hookscope.outputs import MARK
from hookscope.stats import Stats

Progress = Callable[[int], None]

# Numbers whose texts are as long as any.
_LONG = Stats(*(sys.maxsize, *(-sys.float_info.max,) * 5, *(sys.maxsize,) * 3))
_TOLD_OTHERWISE = {"schema", "rows", "keys", "shards", "inputs"}


def write_npy(features: Features, chosen: Sequence[Rows], path: Path, progress: Progress) -> None:
    """Write the rows of one key as one array.

    Raises:
        RequestError: there are several keys.
    """
    if len(chosen) > 1:
        raise RequestError(
            f"A .npy file holds one array, and {len(chosen)} keys are meant.",
            f"Name one with --layer: {', '.join(rows.key for rows in chosen)}.",
        )
    [rows] = chosen
    header = {"descr": rows.dtype.str, "fortran_order": False, "shape": rows.shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for bits in rows.stretches():
            file.write(np.ascontiguousarray(widen(bits, rows.format)).data)
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
