"""Module trees in the user's cache folder, so that ``tree`` need not import torch again.

A tree is stored under a key of everything that it depends on: the arguments, the bytes of the
model's file, the source files of hookscope, torch and the packages of models, the folders that
Python imports from, the interpreter, and the environment variables of these packages. If any of
them changes, the key changes. Models whose code is the user's are never stored: what their code
imports is not known.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hookscope.errors import StoreError
from hookscope.files import strict_json
from hookscope.files.atomic_files import write_bytes
from hookscope.files.cache_folder import cache_folder
from hookscope.files.hashes import sha256_of
from hookscope.results.module_tree import AbsentModule, LayerRun, ModuleNode, ModuleTree
from hookscope.results.receptive_field import FieldSide, ReceptiveField
from hookscope.specs.model_spec import EXPORTED, TIMM, TORCHSCRIPT, TORCHVISION, ModelSpec

_SOURCES = (TORCHVISION, TIMM, TORCHSCRIPT, EXPORTED)
_PACKAGES = ("hookscope", "torch", "torchvision", "timm")
_CODE = (".py", ".so", ".pyd", ".dll")
_VARIABLES = ("TORCH", "PYTORCH", "TIMM", "PYTHON")  # what their names begin with
_LARGEST_MODEL = 256 << 20  # bytes of a file; hashing more takes longer than importing torch
_MOST_BYTES = 32 << 20  # of all stored trees together
_FOLDER, _SUFFIX = "trees", ".json"


@dataclass(frozen=True)
class StoredTree:
    """A tree, and the notes that were shown while it was computed: each its level and text."""

    tree: ModuleTree
    notes: tuple[tuple[int, str], ...] = ()


def interpreter_state() -> list[Any]:
    """Return what a tree depends on in this process; call it before torch changes it."""
    names = sorted(name for name in os.environ if name.startswith(_VARIABLES))
    return [
        *(sys.version, sys.executable, sys.prefix),
        [(name, os.environ[name]) for name in names],
        [(path, _changed(path)) for path in sys.path],
    ]


def tree_key(
    spec: ModelSpec, arguments: Mapping[str, Any], interpreter: Sequence[Any]
) -> str | None:
    """Return the key of a tree; None if it must not be stored."""
    if spec.source not in _SOURCES or arguments["trust"] or arguments["model_args"]:
        return None
    try:
        state = {
            "model": spec.text,
            "arguments": arguments,
            "file": _sha256(spec.path) if spec.path else None,
            "code": [_fingerprint(name) for name in _PACKAGES],
            "interpreter": interpreter,
        }
        text = json.dumps(state, sort_keys=True)
    except (OSError, TypeError, ValueError, ImportError):
        return None
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()


def read_tree(key: str) -> StoredTree | None:
    """Return the tree that is stored under a key; None if there is none, or it is damaged."""
    try:
        content = json.loads(_file(key).read_bytes())
        body = json.dumps(content["body"], sort_keys=True)
        if content["key"] != key or content["sha256"] != _digest(body):
            return None
        tree = content["body"]["tree"]
        return StoredTree(
            ModuleTree(
                tree["model"],
                tuple(map(_node, tree["modules"])),
                _node(tree["total"]),
                tuple(tree["execution"]),
                tuple(AbsentModule(**module) for module in tree["absent"]),
            ),
            tuple((int(level), str(text)) for level, text in content["body"]["notes"]),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def write_tree(key: str, stored: StoredTree) -> None:
    """Store a tree if the folder can be written, and remove the oldest ones that are too many."""
    body = {"tree": asdict(stored.tree), "notes": stored.notes}
    text = strict_json.dumps(body, sort_keys=True)
    content = {"key": key, "body": json.loads(text)}
    content["sha256"] = _digest(json.dumps(content["body"], sort_keys=True))
    data = json.dumps(content).encode()
    if len(data) > _MOST_BYTES:
        return
    with suppress(OSError, StoreError):
        file = _file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, data)
        _remove_oldest(file.parent)


def _node(values: dict[str, Any]) -> ModuleNode:
    run = values["run"]
    if run is not None:
        others = tuple(run["other_outputs"])
        run = LayerRun(run["calls"], tuple(run["outputs"]), run["flops"], others)
    field = values["field"]
    if field is not None:
        field = ReceptiveField(tuple(FieldSide(**side) for side in field["sides"]))
    aliases = tuple(values["aliases"])
    return ModuleNode(**{**values, "aliases": aliases, "run": run, "field": field})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _file(key: str) -> Path:
    return cache_folder() / _FOLDER / f"{key[:32]}{_SUFFIX}"


def _sha256(path: str) -> str:
    """The hash of the bytes of a file."""
    if not os.path.isfile(path) or os.path.getsize(path) > _LARGEST_MODEL:
        raise ValueError("the file is not hashed")
    return sha256_of(path)


def _fingerprint(package: str) -> Sequence[str] | None:
    """The folder of a package, and a hash of the sizes and times of its source files."""
    spec = find_spec(package)
    if spec is None or not spec.origin:
        return None
    folder = os.path.dirname(spec.origin)
    digest = hashlib.sha256()
    for entry in sorted(_code_files(folder)):
        digest.update(repr(entry).encode(errors="backslashreplace"))
    return folder, digest.hexdigest()


def _code_files(folder: str) -> Iterator[tuple[str, int, int, int]]:
    """Path, size, inode and time of change of each file of code; metadata changes count too."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _code_files(entry.path)
            elif entry.name.endswith(_CODE):
                status = entry.stat()
                yield (
                    entry.path,
                    status.st_size,
                    status.st_ino,
                    max(status.st_mtime_ns, status.st_ctime_ns),
                )


def _changed(path: str) -> int | None:
    """When a folder of packages last got, lost or renamed one; None without such a folder."""
    try:
        return os.stat(path or ".").st_mtime_ns if path.endswith("-packages") else None
    except OSError:
        return None


def _remove_oldest(folder: Path) -> None:
    files = [(entry.stat().st_mtime_ns, entry.stat().st_size, entry.path)
             for entry in os.scandir(folder) if entry.name.endswith(_SUFFIX)]  # fmt: skip
    total = 0
    for _, size, path in sorted(files, reverse=True):
        total += size
        if total > _MOST_BYTES:
            os.unlink(path)
