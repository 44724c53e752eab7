"""The folder of results of a whole dataset: the names in it, and whether it may be written to.

Torch-free. Features, one row for each input, lie in shards of a set number of rows; a manifest
tells what they are, an index in which shard each stretch of rows lies, a table where each row came
from. What is known of finished shards while the run is under way lies in ``.parts``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hookscope.errors import RequestError, StoreError

MANIFEST = "manifest.json"
INDEX = "features.safetensors.index.json"
INPUTS = "inputs.jsonl"
PARTS = ".parts"
PLAN = "plan.json"  # in PARTS: what the run does, which is told before the first shard


def names_folder(word: str | os.PathLike[str]) -> bool:
    """Whether an output is a folder: it ends in a slash, or there is a folder of that name.

    >>> names_folder("features/"), names_folder("features.safetensors")
    (True, False)
    """
    text = os.fspath(word)
    return text.endswith(("/", os.sep)) or os.path.isdir(text)


def shard_name(first: int) -> str:
    """Name of the shard whose first row is ``first``.

    >>> shard_name(512)
    'rows-00000512.safetensors'
    """
    return f"rows-{first:08d}.safetensors"


def slice_key(key: str, first: int, last: int) -> str:
    """Name of a tensor's rows from ``first`` up to, and without, ``last``.

    >>> slice_key("layer4/output", 0, 512)
    'layer4/output[0:512]'
    """
    return f"{key}[{first}:{last}]"


def read_json(path: Path) -> Any:
    """Return what a file of ours holds; None if there is none.

    Raises:
        StoreError: it cannot be read, or is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreError(
            f"Cannot read {path}: {error}.", "Remove the folder and run the command again."
        ) from error


def check_folder(folder: Path, *, resume: bool, force: bool) -> bool:
    """Make sure that results can go to ``folder``; return whether finished ones are there already.

    Raises:
        RequestError: it cannot be made or written to, holds what hookscope did not write, or holds
            results, finished or not, and neither ``resume`` nor ``force`` is given.
    """
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{folder} is a file, not a folder.", "Name another --output.")
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(above, os.W_OK | os.X_OK):
        raise RequestError(f"{above} cannot be written to.", "Name another --output.")
    if not folder.is_dir():
        return False
    finished, begun = (folder / MANIFEST).is_file(), (folder / PARTS).is_dir()
    if not (finished or begun) and any(folder.iterdir()):
        raise RequestError(
            f"The folder {folder} holds files and no results of hookscope.",
            "Name an empty folder or a new one.",
        )
    if (finished or begun) and not (resume or force):
        state = "the results of a finished run" if finished else "those of a run that was cut short"
        raise RequestError(
            f"The folder {folder} holds {state}.",
            "Add --resume to go on with the same command, or --force to begin anew.",
        )
    return finished


def clear(folder: Path) -> None:
    """Remove from ``folder`` what hookscope wrote there, and nothing else."""
    parts = folder / PARTS
    for path in (*folder.glob("rows-*.safetensors"), *folder.glob(".*.part"), *parts.glob("*")):
        path.unlink(missing_ok=True)
    for name in (MANIFEST, INDEX, INPUTS):
        (folder / name).unlink(missing_ok=True)
    if parts.is_dir():
        parts.rmdir()
