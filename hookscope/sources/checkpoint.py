"""Checkpoint files: their tensors, each read when it is used, and a check of zip archives.

A checkpoint may be as large as memory allows, and the model takes as much again. No code is run.
"""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hookscope.errors import ModelError, WeightsFileError
from hookscope.files import file_types
from hookscope.files.pickle_scan import DAMAGED_ZIP
from hookscope.files.weight_files import WeightFiles
from hookscope.specs.model_spec import end_sentence
from hookscope.stores.weights.open_weights import open_weights
from hookscope.stores.weights.zip_records import DamagedArchive, check_record_sizes
from hookscope.tensors.torch_internals import DisableTorchFunctionSubclass
from hookscope.tensors.torch_release import reads_pickles_safely

_WRAPPED_UNDER = ("state_dict", "model_state_dict", "model")
_SAVE_THUS = file_types.SAVE_WEIGHTS
_KINDS = "Weights can be read from a .safetensors, .pth, .pt or .bin file."
# Types of files that are not weights, with a hint.
_NO_WEIGHTS = {
    file_types.EMPTY: file_types.WRITE_AGAIN,
    file_types.TRUNCATED_ZIP: file_types.WRITE_AGAIN,
    file_types.TRUNCATED_PICKLE: file_types.WRITE_AGAIN,
    file_types.TRUNCATED_SAFETENSORS: file_types.WRITE_AGAIN,
    **dict.fromkeys(file_types.TOO_LARGE, _SAVE_THUS),
    file_types.IMAGE: "Give it as the input: --input {0}",
    file_types.SCRIPT_ARCHIVE: f"Weights cannot be read from such a file. {_SAVE_THUS}",
    file_types.EXPORT_ARCHIVE: f"Weights cannot be read from such a file. {_SAVE_THUS}",
    file_types.ONNX: f"Weights cannot be read from such a file. {_KINDS}",
}
# Bytes read before a file is mapped anew: pages that were read count as memory in use.
_MAX_MAPPED = 1 << 26

Read = Callable[[str], Tensor]


class FileTensor(Tensor):
    """A tensor on meta that stands for one in a file. Operations on it use the tensor it reads."""

    read: Callable[[], Tensor]

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer queries of shape and dtype; run any other function on the values."""
        kwargs = dict(kwargs or {})
        if func not in _METADATA_QUERIES:
            args = _with_values(args)
            kwargs = {name: _with_values(value) for name, value in kwargs.items()}
        with DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def _with_values(value: Any) -> Any:
    """An argument with file tensors replaced by their values, which live as long as the call."""
    if isinstance(value, FileTensor):
        return value.read()
    return type(value)(map(_with_values, value)) if type(value) in (list, tuple) else value


_METADATA_QUERIES = frozenset(
    {
        Tensor.size,
        Tensor.dim,
        Tensor.numel,
        *(
            getattr(Tensor, name).__get__
            for name in ("shape", "ndim", "dtype", "layout", "is_meta", "is_quantized")
        ),
    }
)


class _Reader:
    """Reads tensors of one file after another, and maps a file anew after 64 MiB."""

    def __init__(self) -> None:
        self._path = ""
        self._read_tensor: Read | None = None
        self._bytes_read = 0

    def __call__(self, path: str, name: str) -> Tensor:
        """Return a tensor of a file that has been read before."""
        if self._read_tensor is None or path != self._path or self._bytes_read > _MAX_MAPPED:
            self._read_tensor = None  # frees the mapping before the next one is made
            _, self._read_tensor, _ = _open_file(path)
            self._path, self._bytes_read = path, 0
        tensor = self._read_tensor(name)
        self._bytes_read += tensor.numel() * tensor.element_size()
        return tensor


def lazy_tensors(files: WeightFiles) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name; those of a mapped file are read when used."""
    reader = _Reader()
    tensors: dict[str, Tensor] = {}
    for path, listed in files.holders.items():
        try:
            check_record_sizes(path)
        except DamagedArchive as error:
            raise WeightsFileError(
                f"The weights in {path!r} cannot be read: {error}.", file_types.WRITE_AGAIN
            ) from error
        names, read, mapped = _open_file(path)
        lacking = sorted(set(listed) - names.keys())
        if lacking:
            raise WeightsFileError(
                f"{lacking[0]!r} is not in {path!r}, although the index {files.index!r} lists it.",
                "The index and the files do not belong together; download them again.",
            )
        for name in listed or names:
            try:
                tensor = read(name)
            except SafetensorError as error:  # a dtype that this torch does not have
                raise _damaged_safetensors(path, error) from error
            if mapped and tensor.layout is torch.strided and not tensor.is_quantized:
                tensor = torch.empty_like(tensor, device="meta").as_subclass(FileTensor)
                tensor.read = partial(reader, path, name)
            tensors[name] = tensor
    return tensors


def _open_file(path: str) -> tuple[dict[str, None], Read, bool]:
    """The names of the tensors in a file, a function that reads one, and whether it is mapped."""
    kind, _ = file_types.describe_file(path)
    if kind in _NO_WEIGHTS:
        raise WeightsFileError(
            f"The file {path!r} is {kind}, not weights.", _NO_WEIGHTS[kind].format(path)
        )
    if kind == file_types.SAFETENSORS:
        try:
            file = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise _damaged_safetensors(path, error) from error
        return dict.fromkeys(file.keys()), file.get_tensor, True  # type: ignore[no-untyped-call]
    if reads_pickles_safely():
        mapped = _can_be_mapped(path)
        held = _tensors_of(_unpickled(path, mapped))
    else:
        mapped, held = False, _read_without_torch(path)
    if not held:
        raise WeightsFileError(f"The file {path!r} contains no named weights.", _SAVE_THUS)
    return dict.fromkeys(held), held.__getitem__, mapped


def _read_without_torch(path: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint by the reader that ``tree`` uses, which runs no code."""
    weights = open_weights(path)
    tensors: dict[str, Tensor] = {}
    for name, entry in weights.tensors.items():
        data = bytearray().join(block.tobytes() for block in weights.stored(name))
        dtype = getattr(torch, entry.dtype)
        flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(entry.shape)
    return tensors


def _can_be_mapped(path: str) -> bool:
    """Whether tensors are stored as in memory. PyTorch does not check for compressed records."""
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
    except DAMAGED_ZIP:  # PyTorch's reader raises a better error
        return False


def _damaged_safetensors(path: str, error: Exception) -> WeightsFileError:
    return WeightsFileError(
        f"The file {path!r} is not a valid safetensors file: {end_sentence(str(error))}",
        file_types.WRITE_AGAIN,
    )


def _tensors_of(content: Any) -> dict[str, Tensor]:
    """The tensors by name in a checkpoint, which may be under a key such as ``state_dict``."""
    while isinstance(content, Mapping):
        tensors = {str(key): v for key, v in content.items() if isinstance(v, Tensor)}
        inner = [content[key] for key in _WRAPPED_UNDER if isinstance(content.get(key), Mapping)]
        if tensors and not inner:
            return tensors
        content = inner[0] if inner else None
    return {}


def _unpickled(path: str, mapped: bool) -> Any:
    """The content of a file by PyTorch's reader, which builds only tensors and plain values."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about how the file was pickled
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as exc:
        match = re.search(r"GLOBAL ([\w.]+)", str(exc))
        holds = f"Python objects ({match[1]})" if match else "more than tensors"
        message = f"The file {path!r} contains {holds}, which hookscope does not unpickle."
        raise WeightsFileError(message, _SAVE_THUS) from exc
    except Exception as exc:  # the reader raises nearly any type for a damaged file
        kind, _ = file_types.describe_file(path)
        raise WeightsFileError(
            f"The weights in {path!r} cannot be read: the file looks like {kind}.",
            f"{file_types.WRITE_AGAIN} {_KINDS}",
        ) from exc


def check_archive_intact(path: str) -> None:
    """Raise ModelError if a zip archive or a record in it is damaged: PyTorch does not check."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
            names = archive.namelist()
        if not damaged:
            _check_one_folder(names)
            check_record_sizes(path)
    except DamagedArchive as exc:
        raise ModelError(f"{path!r} is damaged: {exc}.", file_types.WRITE_AGAIN) from exc
    except (EOFError, *DAMAGED_ZIP) as exc:
        raise ModelError(
            f"{path!r} is a damaged or cut-off archive: {exc}.", file_types.WRITE_AGAIN
        ) from exc
    if damaged:
        raise ModelError(
            f"{path!r} is damaged: its record {damaged} is not intact.",
            file_types.WRITE_AGAIN,
        )


def _check_one_folder(names: list[str]) -> None:
    """Raise DamagedArchive if a record is outside the folder of the first one, as PyTorch does."""
    folder, slash, _ = names[0].partition("/") if names else ("", "", "")
    outside = [name for name in names if slash and not name.startswith(f"{folder}/")]
    if outside:
        raise DamagedArchive(f"its record {outside[0]!r} is outside its folder {folder!r}")
