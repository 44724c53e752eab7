"""The tensors in files of weights, each read when it is used. Nothing is ever unpickled into code.

A file of weights may be as large as memory allows, and the model it is for takes as much again. So
what is handed out knows its name, shape and dtype alone, and is read once something is computed
with it: once its values are copied into the model, that is.
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
from hookscope.files import file_types as filekinds
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.pickle_scan import DAMAGED_ZIP
from hookscope.files.weight_files import WeightFiles
from hookscope.specs.model_spec import end_sentence

_WRAPPED_UNDER = ("state_dict", "model_state_dict", "model")

_SAVE_THUS = "Save the weights alone: torch.save(model.state_dict(), FILE)."

_KINDS = "Weights are read from a .safetensors, .pth, .pt or .bin file."

# What the first bytes tell to be no weights, and what to do about it.
_NO_WEIGHTS = {
    filekinds.EMPTY: filekinds.WRITE_AGAIN,
    filekinds.TRUNCATED_ZIP: filekinds.WRITE_AGAIN,
    filekinds.TRUNCATED_PICKLE: filekinds.WRITE_AGAIN,
    filekinds.TRUNCATED_SAFETENSORS: filekinds.WRITE_AGAIN,
    **dict.fromkeys(filekinds.TOO_LARGE, _SAVE_THUS),
    filekinds.IMAGE: "Give it as the input: --input {0}",
    filekinds.SCRIPT_ARCHIVE: f"This version does not read weights out of one. {_SAVE_THUS}",
    filekinds.EXPORT_ARCHIVE: f"This version does not read weights out of one. {_SAVE_THUS}",
    filekinds.ONNX: f"This version does not read weights out of one. {_KINDS}",
}

# A file is mapped into memory, and what was read of it counts as the program's until it is let go.
_LET_GO = 1 << 26

Read = Callable[[str], Tensor]


class FileTensor(Tensor):
    """A tensor without values, which stands for one in a file and is read wherever it is used."""

    read: Callable[[], Tensor]

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer what the shape and the dtype tell; for all else put the values in its place."""
        kwargs = dict(kwargs or {})
        if func not in _TOLD:
            args, kwargs = _filled(args), {name: _filled(value) for name, value in kwargs.items()}
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def _filled(value: Any) -> Any:
    """An argument with the values in it; what was read lives no longer than the call."""
    if isinstance(value, FileTensor):
        return value.read()
    return type(value)(map(_filled, value)) if type(value) in (list, tuple) else value


_TOLD = frozenset(
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
    """Reads tensors of one file after another, and lets go of the file now and then."""

    def __init__(self) -> None:
        self._path = ""
        self._of: Read | None = None
        self._taken = 0

    def __call__(self, path: str, name: str) -> Tensor:
        """Return a tensor of a file that has been read before."""
        if self._of is None or path != self._path or self._taken > _LET_GO:
            self._of = None  # the one mapping goes before the next one comes
            _, self._of, _ = _open_file(path)
            self._path, self._taken = path, 0
        tensor = self._of(name)
        self._taken += tensor.numel() * tensor.element_size()
        return tensor


def lazy_tensors(files: WeightFiles) -> dict[str, Tensor]:
    """Return the tensors of a set of weights by name, to be read as they are used.

    Of a set, those that its index names.

    Raises:
        WeightsFileError: a file cannot be read or holds no weights, or lacks what the index names.
    """
    reader = _Reader()
    found: dict[str, Tensor] = {}
    for path, listed in files.holders.items():
        names, read, mapped = _open_file(path)
        lacking = sorted(set(listed) - names.keys())
        if lacking:
            raise WeightsFileError(
                f"{lacking[0]!r} is not in {path!r}, where the index {files.index!r} has it.",
                "The index and the files are of different sets; download them together.",
            )
        for name in listed or names:
            try:
                tensor = read(name)
            except SafetensorError as error:  # of a dtype that this torch does not have
                raise _unsound(path, error) from error
            if mapped and tensor.layout is torch.strided and not tensor.is_quantized:
                tensor = torch.empty_like(tensor, device="meta").as_subclass(FileTensor)
                tensor.read = partial(reader, path, name)
            found[name] = tensor
    return found


def _open_file(path: str) -> tuple[dict[str, None], Read, bool]:
    """The names of the tensors in a file, what returns one, and whether that is mapped from it."""
    kind, _ = filekinds.describe_file(path)
    if kind in _NO_WEIGHTS:
        raise WeightsFileError(
            f"The file {path!r} is {kind}, not weights.", _NO_WEIGHTS[kind].format(path)
        )
    if kind == filekinds.SAFETENSORS:
        try:
            file = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise _unsound(path, error) from error
        return dict.fromkeys(file.keys()), file.get_tensor, True  # type: ignore[no-untyped-call]
    mapped = _can_be_mapped(path)
    held = _tensors_of(_unpickled(path, mapped))
    if not held:
        raise WeightsFileError(f"The file {path!r} holds no weights by name.", _SAVE_THUS)
    return dict.fromkeys(held), held.__getitem__, mapped


def _can_be_mapped(path: str) -> bool:
    """Whether the tensors lie in the file as they are in memory.

    They do not in the format that torch.save had before, nor where records are compressed: PyTorch
    would take the compressed bytes for numbers.
    """
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return all(one.compress_type == zipfile.ZIP_STORED for one in archive.infolist())
    except DAMAGED_ZIP:  # PyTorch's reader says what is wrong
        return False


def _unsound(path: str, error: Exception) -> WeightsFileError:
    return WeightsFileError(
        f"The file {path!r} is no sound safetensors file: {end_sentence(str(error))}",
        filekinds.WRITE_AGAIN,
    )


def _tensors_of(content: Any) -> dict[str, Tensor]:
    """The tensors by name in a checkpoint, which may keep them under a key of their own."""
    while isinstance(content, Mapping):
        tensors = {str(key): v for key, v in content.items() if isinstance(v, Tensor)}
        inner = [content[key] for key in _WRAPPED_UNDER if isinstance(content.get(key), Mapping)]
        if tensors and not inner:
            return tensors
        content = inner[0] if inner else None
    return {}


def _unpickled(path: str, mapped: bool) -> Any:
    """What PyTorch's own reader makes of it, which builds tensors and plain values alone."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks about how the file was pickled
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as exc:
        found = re.search(r"GLOBAL ([\w.]+)", str(exc))
        holds = f"Python objects ({found[1]})" if found else "more than tensors"
        message = f"The file {path!r} holds {holds}, which hookscope does not unpickle."
        raise WeightsFileError(message, _SAVE_THUS) from exc
    except Exception as exc:  # of a damaged file the reader raises nearly anything
        kind, _ = filekinds.describe_file(path)
        raise WeightsFileError(
            f"The weights in {path!r} cannot be read: the file looks like {kind}.",
            f"{filekinds.WRITE_AGAIN} {_KINDS}",
        ) from exc


def check_archive_intact(path: str) -> None:
    """Raise ModelError if the zip archive at ``path`` or a record of it is damaged.

    PyTorch's own reader is written in C++, and what it makes of changed bytes nobody can foresee.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (EOFError, *DAMAGED_ZIP) as exc:
        raise ModelError(f"{path!r} is a damaged or cut-off archive: {exc}.", WRITE_AGAIN) from exc
    if damaged:
        raise ModelError(
            f"{path!r} is damaged: {damaged} in it is not as it was saved.", WRITE_AGAIN
        )
