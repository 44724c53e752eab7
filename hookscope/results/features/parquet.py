"""Features as a Parquet table: a row for each input, with its path and a list for each key."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hookscope.errors import EnvironmentFault, RequestError
from hookscope.files import strict_json
from hookscope.files.escaping import encodable
from hookscope.results.dtypes import widen
from hookscope.results.features.exporting import Progress
from hookscope.results.features.features import Features
from hookscope.results.features.lazy import BLOCK, Rows
from hookscope.specs.output_path import MARK


def write_parquet(
    features: Features, chosen: Sequence[Rows], path: Path, progress: Progress
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


def _lists(arrow: Any, rows: Rows, first: int, last: int) -> Any:
    flat = arrow.array(widen(rows.stretch(first, last), rows.format).reshape(-1))
    return arrow.FixedSizeListArray.from_arrays(flat, _width(rows)) if rows.ndim > 1 else flat


def _width(rows: Rows) -> int:
    return int(np.prod(rows.shape[1:], dtype=object))
