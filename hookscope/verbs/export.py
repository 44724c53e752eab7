"""Write the features of a whole dataset to one file, without loading torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookscope.atomic import replacing
from hookscope.datasets.reading.exporting import write_npy, write_safetensors
from hookscope.datasets.reading.features import Features
from hookscope.datasets.reading.lazy import Rows
from hookscope.datasets.reading.parquet import write_parquet
from hookscope.errors import RequestError
from hookscope.outputs import table_ending

WRITERS = {".safetensors": write_safetensors, ".npy": write_npy, ".parquet": write_parquet}


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        path: the file.
        bytes: its size.
        rows: what is in it, by key.
    """

    path: Path
    bytes: int
    rows: tuple[Rows, ...]

    def to_json(self) -> dict[str, Any]:
        """Return ``file``, ``bytes``, and ``keys``, each with its shape and dtype."""
        keys = [{"key": one.key, "shape": one.shape, "dtype": str(one.dtype)} for one in self.rows]
        return {"file": str(self.path), "bytes": self.bytes, "keys": keys}


def export(
    features: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    layers: str | Iterable[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write the features of a dataset to one file, as a whole or not at all.

    Memory does not grow with the number of rows. Each shard is read as a whole first, and held
    against its CRC-32, whichever layers are chosen. int8 with a scale for each row is multiplied
    out.

    Args:
        features: the folder, or its address.
        output: the file. Its ending tells the format: ``.safetensors``, which ``hookscope.load``
            and ``hookscope show`` open too; ``.npy``, one array of one layer, for
            ``numpy.load(output, mmap_mode="r")``; or ``.parquet``, a table with the columns ``row``
            and ``path`` and a list of one length for each layer.
        layers: layers, keys or globs of either; none means all that is there.
        progress: called with the number of rows that are done, and of all of them, each layer's
            counted by itself.

    Returns:
        The file, its size, and what is in it.

    Raises:
        RequestError: there are no such features, a layer names nothing, the format does not take
            what was chosen, or the file would lie in the folder itself.
        ResultsFileError: a shard is missing or damaged.
        StoreError: the file cannot be written. An earlier one is then as it was.
        EnvironmentFault: Parquet needs pyarrow, and it is not installed.

    Example:
        >>> import hookscope, numpy, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = hookscope.export("sample_models/features", f"{folder}/a.npy", layers="fc")
        ...     numpy.load(done.path).argmax(axis=1)
        array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    path = Path(output)
    write = WRITERS[table_ending(path)]
    opened = Features(features, sums=True)
    if path.parent.resolve() == Path(opened.folder).resolve():
        raise RequestError(
            f"The output {path} lies among the files of {opened.folder}.",
            "Name a file in another folder with --output.",
        )
    words = [layers] if isinstance(layers, str) else layers
    chosen = tuple(opened[key] for key in opened.choose(words))
    done, total = 0, len(opened) * len(chosen)

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        if progress:
            progress(done, total)

    with replacing(path, "Choose another place, or fewer layers.") as scratch:
        write(opened, chosen, scratch, advance)
        size = scratch.stat().st_size
    return Exported(path, size, chosen)
