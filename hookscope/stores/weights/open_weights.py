"""Opening weights by what a user types: a file, a folder, an index, or ``file.pth#part``."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from hookscope.errors import RequestError, WeightsFileError, cause
from hookscope.files import file_types
from hookscope.files.output_path import (
    FEATURES_INDEX,
    holds_features,
    is_hookscope_file,
    is_run_folder,
)
from hookscope.files.shell_words import join_words, quote_word
from hookscope.files.weight_files import WeightFiles, find_weight_files, names_in
from hookscope.files.words import natural_order
from hookscope.specs.model_spec import CONFIGURATION, check_weights_file
from hookscope.stores.weights.safetensors_reader import SAFETENSORS
from hookscope.stores.weights.tensor_location import TensorLocation
from hookscope.stores.weights.weight_set import (
    LONGEST_NAME,
    StoredWeights,
    WeightSet,
    WeightTensor,
    check_count,
)

_NUMBERED = re.compile(
    r"(?P<stem>.*?)-?(?P<number>\d{2,6})-of-(?P<count>\d{2,6})(?P<suffix>\.(safetensors|bin|gguf|pth?))"
)
_OTHER_FORMATS = (".gguf", ".npz", ".ckpt")
_ANY_FORMAT = (".safetensors", ".bin", ".pth", ".pt", *_OTHER_FORMATS)
_MOST_FILES = 100_000
_LISTED = 3

_PART = "#"
_INDEX = ".index.json"
# The module and the function that read a type of file; imported when there is such a file. Then
# the name of the type.
_SAFETENSORS_READER = ("safetensors_reader", "read_safetensors", SAFETENSORS)
_READERS = {
    file_types.SAFETENSORS: _SAFETENSORS_READER,
    file_types.TRUNCATED_SAFETENSORS: _SAFETENSORS_READER,  # it says where
    file_types.GGUF: ("gguf_reader", "read_gguf", "GGUF"),
    file_types.ARRAYS: ("numpy_reader", "read_npz", "npz"),
    file_types.ARRAY: ("numpy_reader", "read_npy", "npy"),
}
_HINTS = {
    file_types.SCRIPT_ARCHIVE: "It is a model: hookscope tree {0}",
    file_types.EXPORT_ARCHIVE: "It is a model: hookscope tree {0}",
    file_types.IMAGE: "Give it as the input of a model: hookscope capture MODEL --input {0}",
}
_DAMAGED = (
    *(file_types.TRUNCATED_PICKLE, file_types.TRUNCATED_ZIP, file_types.DAMAGED_RECORD),
    *file_types.TOO_LARGE,
)
# Files that are opened as weights by their names, so that the error is about weights. Not a damaged
# header of safetensors, which may be that of a capture.
_NAMED = re.compile(r".+\.(safetensors|pth|pt|bin|ckpt|npz|gguf)", re.DOTALL | re.IGNORECASE)
_WITHOUT_WEIGHTS = (file_types.TEXT, file_types.EMPTY, file_types.UNKNOWN)


def find_files(path: str) -> WeightFiles:
    """Return the files of weights that ``path`` stands for."""
    if not os.path.isdir(path):
        return check_weights_file(path)
    names = [
        name for name in names_in(path)[:_MOST_FILES] if _may_be_read(os.path.join(path, name))
    ]
    if any(name.endswith(_INDEX) for name in names):
        return find_weight_files(path)
    if files := _numbered_files(path, names):
        return files
    others = [name for name in names if name.endswith(_OTHER_FORMATS)]
    if len(others) == 1 and not any(name.endswith(_ANY_FORMAT[:4]) for name in names):
        return WeightFiles(None, {os.path.join(path, others[0]): ()})
    if inside := [] if any(n.endswith(_ANY_FORMAT) for n in names) else _subfolders(path, names):
        raise RequestError(
            f"The folder {path!r} contains no weights itself; folders in it do.",
            f"Name one of them: {', '.join(map(quote_word, inside))}",
        )
    return find_weight_files(path)


def named_files(folder: str) -> list[str]:
    """Return the files in a folder whose names are those of weights."""
    paths = (os.path.join(folder, name) for name in sorted(os.listdir(folder))[:_MOST_FILES])
    return [path for path in paths if path.endswith(_ANY_FORMAT) and os.path.isfile(path)]


def _may_be_read(path: str) -> bool:
    """Whether a path can be opened as weights: False for a pipe or a device with such a name."""
    return not path.endswith((*_ANY_FORMAT, _INDEX)) or os.path.isfile(path)


def _numbered_files(folder: str, names: Sequence[str]) -> WeightFiles | None:
    """The files of a set that are numbered 1 to N; None unless they are those of one set."""
    found: dict[tuple[str, str, str], dict[int, str]] = {}
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            key = (match["stem"], match["count"], match["suffix"])
            found.setdefault(key, {})[int(match["number"])] = name
    singles = [n for n in names if n.endswith(_ANY_FORMAT) and not _NUMBERED.fullmatch(n)]
    if len(found) != 1 or singles:
        return None
    [((_, count, _), files)] = found.items()
    if lacking := int(count) - len(files):
        raise WeightsFileError(
            f"{lacking} of the {int(count)} numbered files in {folder!r} are missing.",
            "Download the missing files to the folder.",
        )
    return WeightFiles(None, {os.path.join(folder, files[n]): () for n in sorted(files)})


def _subfolders(folder: str, names: Sequence[str]) -> list[str]:
    """Some folders in a folder that have files of weights, as in a set of diffusers."""
    inside = [os.path.join(folder, name) for name in names[:1000]]
    folders = [path for path in inside if os.path.isdir(path) and os.access(path, os.R_OK)]
    endings = (*_ANY_FORMAT, _INDEX)
    return [p for p in folders if any(n.endswith(endings) for n in os.listdir(p))][:_LISTED]


def open_weights(text: str | os.PathLike[str]) -> WeightSet:
    """Open a file of weights, or a folder or an index of several; no values are read."""
    path, part = split_part(os.fspath(text))
    files = find_files(path)
    stored = []
    for file, listed in files.holders.items():
        content = _read(file, part)
        stored.append(_select_listed(listed, content, file, files.index) if listed else content)
    notes = [note for content in stored for note in content.notes]
    if os.path.isfile(os.path.join(path, CONFIGURATION)):
        command = join_words(["hookscope", "tree", f"hf:{path}"])
        notes.append(f"These are the tensors in the files. The modules: {command}")
    return _merge_files(path, stored, tuple(dict.fromkeys(notes)))


def split_part(text: str) -> tuple[str, str]:
    """Split what a user typed, ``checkpoint.pth#ema``, into a path and the part of a checkpoint."""
    if _PART not in text or os.path.exists(text):
        return text, ""
    path, _, part = text.partition(_PART)
    while part.count(_PART) and not os.path.exists(path):
        more, _, part = part.partition(_PART)
        path = f"{path}{_PART}{more}"
    return path, part


def is_weights(text: str) -> bool:
    """Whether a path, with ``#part`` or without, holds weights, and not a result of hookscope.

    A torchvision name such as resnet18 always means the model, even if a folder has that name. A
    scripted or exported file is a model. A damaged file is one of weights if its name says so.
    """
    if names_torchvision_model(text):
        return False
    path = split_part(text)[0]
    if os.path.isdir(path):
        is_unfinished = os.path.isfile(os.path.join(path, FEATURES_INDEX))
        if is_run_folder(path) or holds_features(path) or is_unfinished:
            return False
        try:
            holders = find_files(path).holders
            return any(not is_hookscope_file(Path(file)) for file in holders)
        except WeightsFileError:
            return True
        except RequestError:
            return any(not is_hookscope_file(Path(file)) for file in named_files(path))
    if not os.path.isfile(path):
        return False
    if path.endswith(_INDEX):
        return True
    kind = file_types.describe_file(path)[0]
    if kind == file_types.SAFETENSORS:
        return not is_hookscope_file(Path(path))
    if kind in (*_DAMAGED, *_WITHOUT_WEIGHTS):
        return bool(_NAMED.fullmatch(path))
    if kind == file_types.TRUNCATED_SAFETENSORS:
        return False
    return kind in _READERS or kind == file_types.CHECKPOINT or file_types.is_pickled_object(kind)


def names_torchvision_model(text: str) -> bool:
    """Whether a text is the name of a model of torchvision, and no path."""
    if not text.isidentifier():
        return False
    from hookscope.specs.catalog import bundled_models

    return text in {model.name for model in bundled_models()}


def _read(path: str, part: str) -> StoredWeights:
    # A header of safetensors is read once, since a set may have a hundred of them.
    is_safetensors = file_types.begins_as_safetensors(path)
    kind, hint = (file_types.SAFETENSORS, "") if is_safetensors else file_types.describe_file(path)
    if kind == file_types.CHECKPOINT or file_types.is_pickled_object(kind):
        from hookscope.stores.weights.torch_reader import read_torch

        return read_torch(path, part)
    if kind not in _READERS:
        if kind in _DAMAGED:
            raise WeightsFileError(
                f"The weights in {path!r} cannot be read: the file is {kind}.", hint
            )
        hint = _HINTS.get(kind, file_types.WEIGHT_FORMS).format(quote_word(path))
        raise WeightsFileError(f"The file {path!r} is {kind}, not weights.", hint)
    if part:
        raise RequestError(
            f"{path} is {kind}, which has no parts.", f"Give its name without #: {quote_word(path)}"
        )
    module, function, name = _READERS[kind]
    reader: Callable[[str], StoredWeights] = getattr(
        import_module(f"hookscope.stores.weights.{module}"), function
    )
    try:
        return reader(path)
    except OSError as error:
        raise WeightsFileError(
            f"The weights in {path!r} cannot be read: {cause(error)}.", "Check its permissions."
        ) from error
    except (ValueError, struct.error) as error:
        raise WeightsFileError(
            f"The file {path!r} is not a valid {name} file: {cause(error)}.",
            file_types.WRITE_AGAIN,
        ) from error


def _select_listed(
    listed: tuple[str, ...], stored: StoredWeights, file: str, index: str | None
) -> StoredWeights:
    """The tensors of a file that the index of its set lists for it."""
    tensors = {tensor.name: (tensor, location) for tensor, location in stored.tensors}
    lacking = sorted(set(listed) - tensors.keys())
    if lacking:
        raise WeightsFileError(
            f"{lacking[0]!r} is not in {file!r}, although the index {index!r} lists it.",
            "The index and the files do not belong together; download them again.",
        )
    return replace(stored, tensors=[tensors[name] for name in listed])


def _merge_files(path: str, stored: list[StoredWeights], notes: tuple[str, ...]) -> WeightSet:
    """The tensors of all files. Those of several files, and of safetensors, have no order of their
    own; they come in natural order of their names.
    """
    tensors: dict[str, WeightTensor] = {}
    locations: dict[str, TensorLocation] = {}
    metadata: dict[str, str] = {}
    check_count(path, sum(len(file.tensors) for file in stored))
    for content in stored:
        for tensor, location in content.tensors:
            if len(tensor.name) > LONGEST_NAME:
                raise WeightsFileError(
                    f"{tensor.file!r} has a tensor with a name of {len(tensor.name):,} characters.",
                    file_types.WRITE_AGAIN,
                )
            if tensor.name in tensors:
                raise WeightsFileError(
                    f"{tensor.name!r} is in {tensors[tensor.name].file!r} and in {tensor.file!r}.",
                    "Keep the files of one set in a folder, or add their index.",
                )
            tensors[tensor.name] = tensor
            locations[tensor.name] = location
        metadata = {**content.metadata, **metadata}
    kind = stored[0].kind
    if len(stored) > 1 or kind == SAFETENSORS:
        tensors = {name: tensors[name] for name in sorted(tensors, key=natural_order)}
    if len(stored) > 1:
        kind = f"{kind}, {len(stored)} files"
    return WeightSet(path, stored[0].part, kind, tensors, metadata, locations, notes)


def default_stem(text: str) -> str:
    """Return the name of an output without its suffix: ``ckpt.ema`` for ``runs/ckpt.pth#ema``."""
    path, part = split_part(text)
    source = Path(path)
    # A dot in the name of a folder begins no suffix.
    stem = source.resolve().name if source.is_dir() else source.stem
    part = re.sub(r"[^\w.-]+", "_", part)
    return f"{stem}.{part}" if part else stem


def weight_sides(a: Any, b: Any) -> tuple[bool, bool]:
    """Return for A and B whether it is a file or folder of weights, or an opened one."""
    sides = are_weights(a), are_weights(b)
    if sides[0] != sides[1]:
        weights, other = (a, b) if sides[0] else (b, a)
        kind = ""
        if isinstance(other, str | os.PathLike):
            if is_hookscope_file(Path(other)):
                kind = "a capture"
            elif holds_features(other):
                kind = "a features folder"
        if kind:
            name = weights.label if isinstance(weights, WeightSet) else weights
            raise RequestError(
                f"{other} is {kind} and {name} contains weights; diff compares two of the same"
                " kind.",
                "Name two files of weights, or a model and a file of weights.",
            )
    return sides


def are_weights(side: Any) -> bool:
    """Whether one side of a comparison is a file or folder of weights, or an opened one."""
    if isinstance(side, WeightSet):
        return True
    return isinstance(side, str | os.PathLike) and is_weights(os.fspath(side))
