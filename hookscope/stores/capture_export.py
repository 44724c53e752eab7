"""Export of a capture's tensors to another file, some megabytes at a time, without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hookscope.errors import RequestError
from hookscope.files import strict_json
from hookscope.files.numpy_files import ArrayEntry, check_single, write_arrays
from hookscope.files.output_path import MARK, SUFFIX, TABLES
from hookscope.files.progress_types import Progress
from hookscope.files.safetensors_header import METADATA, header_bytes, header_of
from hookscope.files.words import join_or
from hookscope.specs.tensor_key import WHOLE, Index, choose_keys, slice_text
from hookscope.stores.capture_file import CaptureFile

_BLOCK = 1 << 24  # bytes that are copied at a time


@dataclass(frozen=True)
class TensorSlice:
    """A tensor of a file, or a slice of it."""

    key: str
    dtype: np.dtype[Any] | str
    shape: tuple[int, ...]
    source: str
    index: Index


def choose_slices(
    capture: CaptureFile, selectors: Sequence[str], ending: str
) -> tuple[TensorSlice, ...]:
    """Return the selected tensors and slices of a file."""
    keys = [record.key for record in capture.records]
    if selectors:
        chosen = choose_keys(selectors, keys, capture.path)
    else:
        chosen = [(key, WHOLE) for key in keys]
    if ending == TABLES[-1]:
        raise RequestError(
            f"Only a features folder can be exported to {ending}; {capture.path} is a file.",
            f"Use an output that ends in {join_or(TABLES[:-1])}.",
        )
    sliced = next((key + slice_text(index) for key, index in chosen if index != WHOLE), None)
    if ending == SUFFIX and sliced:
        raise RequestError(
            f"{sliced} is a slice, but a {SUFFIX} file contains whole tensors.",
            "Leave out the slice, or use an output that ends in .npy or .npz.",
        )
    check_single([key + slice_text(index) for key, index in chosen], ending, "tensors")
    return tuple(_slice(capture, key, index, ending) for key, index in chosen)


def _slice(capture: CaptureFile, key: str, index: Index, ending: str) -> TensorSlice:
    if ending == SUFFIX:
        record = capture.record(key)
        return TensorSlice(key, record.dtype, tuple(record.shape), key, index)
    shape = capture.shape(key, index)
    return TensorSlice(key + slice_text(index), capture.dtype(key), shape, key, index)


def write_slices(
    capture: CaptureFile,
    slices: Sequence[TensorSlice],
    path: Path,
    ending: str,
    progress: Progress,
) -> None:
    """Write the selected tensors to ``path``."""
    if ending == SUFFIX:
        _write_safetensors(capture, [item.source for item in slices], path)
        return

    def entries() -> Iterator[ArrayEntry]:
        for done, item in enumerate(slices, start=1):
            pieces = capture.blocks(item.source, item.index)
            yield ArrayEntry(item.key, np.dtype(item.dtype), item.shape, pieces)
            progress(done, len(slices))

    write_arrays(path, ending, entries())


def _write_safetensors(capture: CaptureFile, keys: Sequence[str], path: Path) -> None:
    """Copy tensors as they are stored, with their records and the metadata of the run."""
    table, start = header_of(capture.path)
    info = json.loads(table[METADATA][MARK])
    selected = set(keys)
    info["records"] = [record for record in info["records"] if record["key"] in selected]
    if "stored_as" in info:
        info["stored_as"] = {k: note for k, note in info["stored_as"].items() if k in selected}
    new: dict[str, Any] = {METADATA: {MARK: strict_json.dumps(info, sort_keys=True)}}
    # In the order of the file, so that each tensor begins at a multiple of its item size.
    ordered = sorted(selected, key=lambda key: table[key]["data_offsets"])
    end = 0
    for key in ordered:
        first, last = table[key]["data_offsets"]
        new[key] = {**table[key], "data_offsets": [end, end := end + last - first]}
    with open(capture.path, "rb") as source, path.open("wb") as file:
        file.write(header_bytes(strict_json.dumps(new).encode()))
        for key in ordered:
            first, last = table[key]["data_offsets"]
            source.seek(start + first)
            while first < last:
                block = source.read(min(_BLOCK, last - first))
                if not block:
                    raise OSError("the source file was truncated while it was read")
                file.write(block)
                first += len(block)
