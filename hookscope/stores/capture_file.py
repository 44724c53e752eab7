"""Reading a capture's file without torch: its header at once, values when they are requested."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError, ResultsFileError, cause
from hookscope.files import file_types, strict_json
from hookscope.files.output_path import MARK, holds_features, is_hookscope_file
from hookscope.files.shell_words import cite_command, quote_word
from hookscope.files.suggestions import RESULT_FILES, did_you_mean, near_files
from hookscope.results.dtypes import RAW, widen
from hookscope.results.numpy_stats import blocks
from hookscope.results.records import Record, Recording
from hookscope.specs.tensor_key import WHOLE, Index, slice_error
from hookscope.stores.weights.safetensors_reader import StoredTensor, stored_tensors

SCHEMA = 1
PAIRS = "pairs of reals"  # how complex32 and complex128 are stored, with a last dimension of two
_RESULTS = "Give a file written by 'hookscope capture' or 'hookscope grads', or a folder of a run."
_FEATURES_KEYS = {"rows", "keys"}  # keys of the metadata of shards and of fitted components

MEMORY = "the capture"


@dataclass(frozen=True)
class Header:
    """The header of a capture's file."""

    info: dict[str, Any]
    tensors: dict[str, StoredTensor]
    pairs: frozenset[str]


def read_header(path: str | os.PathLike[str]) -> Header:
    """Return the header of a file that hookscope wrote, whatever the size of its tensors."""
    try:
        with open(path, "rb") as file:
            metadata, tensors = stored_tensors(file)
    except (OSError, ValueError) as error:
        raise read_error(path, error) from error
    text = metadata.get(MARK)
    if text is None:
        raise ResultsFileError(
            f"{path} contains tensors, but was not written by hookscope.",
            "Open it with safetensors.safe_open, or make a capture with 'hookscope capture'.",
        )
    info = _parse_info(path, text)
    if "records" not in info and _FEATURES_KEYS & set(info):
        raise _part_of_features(path)
    notes = info.pop("stored_as", {})
    pairs = frozenset(key for key, note in notes.items() if str(note).startswith(PAIRS))
    if not all(key in tensors and _can_be_pairs(tensors[key]) for key in pairs):
        raise _damaged(path)
    return Header(info, tensors, pairs)


def _can_be_pairs(stored: StoredTensor) -> bool:
    return stored.dtype in ("F16", "F32", "F64") and stored.shape[-1:] == (2,)


def _damaged(path: str | os.PathLike[str]) -> ResultsFileError:
    return ResultsFileError(f"Cannot read {path}: its metadata is damaged.", "Record it again.")


def _part_of_features(path: str | os.PathLike[str]) -> ResultsFileError:
    folder = f"{os.path.dirname(path) or '.'}/"
    return ResultsFileError(
        f"{path} is part of a features folder, which is read as a whole.",
        f"{cite_command('hookscope', 'show', folder)} lists its contents,"
        f" {cite_command('hookscope', 'export', folder)} writes them to one file.",
    )


def read_error(path: str | os.PathLike[str], error: Exception) -> ResultsFileError:
    """Return the error for a file that is missing or not a valid safetensors file."""
    if holds_features(path):
        return ResultsFileError(
            f"Cannot read {path}: it is a features folder, not a file.",
            f"Export it to a file: hookscope export {quote_word(os.fspath(path))}",
        )
    if not os.path.lexists(path):
        return ResultsFileError(
            f"Cannot read {path}: there is no such file or folder.",
            near_files(path, _RESULTS, RESULT_FILES),
        )
    if is_hookscope_file(Path(path), ".json"):
        return ResultsFileError(
            f"Cannot read {path}: it is a result in JSON, which has numbers and no tensors.",
            "For a picture or a page, run the command that wrote it with another --output, such as"
            f" {quote_word(os.fspath(Path(path).with_suffix('.png')))}.",
        )
    kind = file_types.describe_file(os.fspath(path))[0] if Path(path).is_file() else None
    if kind in (file_types.IMAGE, file_types.SCRIPT_ARCHIVE, file_types.EXPORT_ARCHIVE):
        option = "--input " if kind == file_types.IMAGE else ""
        return ResultsFileError(
            f"{path} is {kind}, not a result file.",
            f"Write one first: hookscope capture {option}{quote_word(os.fspath(path))}",
        )
    if kind in (file_types.ARRAY, file_types.ARRAYS):
        return ResultsFileError(
            f"Cannot read {path}: it contains {kind}, without statistics or metadata.",
            "Open it with numpy.load, or write a .safetensors file, which this command reads.",
        )
    reason = "it is a folder" if Path(path).is_dir() else cause(error)
    if kind is not None and kind != file_types.SAFETENSORS:
        reason = f"it is {kind}"  # instead of a message about its header
    return ResultsFileError(
        f"Cannot read {path}: {reason}.",
        _RESULTS,
    )


def _parse_info(path: str | os.PathLike[str], text: str) -> dict[str, Any]:
    try:
        info = strict_json.loads(text)
    except (ValueError, RecursionError):
        info = None
    if not isinstance(info, dict) or not isinstance(info.get("stored_as", {}), dict):
        raise _damaged(path)
    schema = info.pop("schema", None)
    if schema != SCHEMA:
        raise ResultsFileError(
            f"{path} has schema {schema!r}, but this version of hookscope reads {SCHEMA}.",
            "Upgrade hookscope, or record the file again.",
        )
    return info


class CaptureFile(Recording):
    """A capture whose tensors stay in the file; ``listing`` says how to list them, for errors."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = path
        self.listing = f"{cite_command('hookscope', 'show', os.fspath(path))} lists what is in it."
        header = read_header(path)
        self._tensors = header.tensors
        self._pairs = header.pairs
        self.load_info(header.info, {key: self._shape_of(key) for key in header.tensors}, path)

    def __repr__(self) -> str:
        return f"<CaptureFile {os.fspath(self.path)}: {len(self._records)} tensors>"

    @property
    def nbytes(self) -> int:
        """Size of the file in bytes."""
        return os.path.getsize(self.path)

    def record(self, key: str) -> Record:
        """Return the record of a tensor."""
        if key not in self._records:
            near = did_you_mean(key, self._records)
            raise RequestError(f"There is no {key!r} in {self.path}.", near or self.listing)
        return self._records[key]

    def tensor(self, key: str, index: Index = WHOLE) -> NDArray[Any]:
        """Return the values of a tensor, or of a part of it; only that part is read.

        Dtypes that numpy does not have are widened: bfloat16 and float8 to float32, complex32 to
        complex64.
        """
        view, dtype = self._view(key, index)
        return np.array(widen(view, dtype))

    def blocks(self, key: str, index: Index = WHOLE) -> Iterator[NDArray[Any]]:
        """Yield the values in row-major order, in flat blocks, each valid until the next one."""
        view, dtype = self._view(key, index)
        return (widen(block, dtype) for block in blocks(view))

    def dtype(self, key: str) -> np.dtype[Any]:
        """Return the dtype of the array that ``tensor`` returns."""
        view, dtype = self._view(key, WHOLE)
        return np.asarray(widen(view.reshape(-1)[:0], dtype)).dtype

    def shape(self, key: str, index: Index = WHOLE) -> tuple[int, ...]:
        """Return the shape of the array that ``tensor`` returns."""
        return self._view(key, index)[0].shape

    def _shape_of(self, key: str) -> tuple[int, ...]:
        """The shape of the tensor in torch."""
        stored = self._tensors[key]
        if key in self._pairs:
            return stored.shape[:-1]
        if stored.dtype == "F4":  # an element in torch is two values of four bits
            return (*stored.shape[:-1], stored.shape[-1] // 2)
        return stored.shape

    def _view(self, key: str, index: Index) -> tuple[NDArray[Any], str]:
        """The values as they are stored, and the format's name of their dtype."""
        record, stored = self.record(key), self._tensors[key]
        if stored.dtype not in RAW:
            raise ResultsFileError(
                f"{key} is of dtype {record.dtype}, which cannot be shown.",
                "Open the file with hookscope.load, and convert the tensor.",
            )
        raw, shape = np.dtype(RAW[stored.dtype]), self._shape_of(key)
        if key in self._pairs:  # real and imaginary part are adjacent, as in numpy
            raw = np.dtype([("re", raw), ("im", raw)])
        try:
            whole = (
                np.memmap(self.path, raw, "r", stored.start, shape)
                if np.prod(shape, dtype=object)
                else np.empty(shape, raw)
            )
        except (OSError, ValueError) as error:
            raise read_error(self.path, error) from error
        try:
            return np.asarray(whole[index]), stored.dtype
        except IndexError as error:
            raise slice_error(key, shape, error) from error


def open_capture(path: str | os.PathLike[str]) -> CaptureFile:
    """Open the file of a capture; only its header is read."""
    return CaptureFile(path)


@runtime_checkable
class InMemory(Protocol):
    """A recording with its tensors in memory, such as ``hookscope.Capture``."""

    def reader(self) -> CaptureArrays:
        """Return the recording for reading."""
        ...


class CaptureArrays(CaptureFile):
    """A capture whose tensors are in memory, with the methods of ``CaptureFile``."""

    def __init__(
        self, recording: Recording, read: Callable[[str], NDArray[Any]], nbytes: int
    ) -> None:
        Recording.__init__(self)
        self.path = MEMORY
        self.listing = "list(capture) returns its keys."
        self._records = {record.key: record for record in recording.records}
        self.absent, self.coverage = recording.absent, recording.coverage
        self.metadata = recording.metadata
        self._read, self._nbytes = read, nbytes
        self._last: tuple[str, NDArray[Any]] | None = None

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        return self._nbytes

    def _view(self, key: str, index: Index) -> tuple[NDArray[Any], str]:
        record = self.record(key)
        if self._last is None or self._last[0] != key:  # a tensor is read several times in a row
            self._last = key, self._read(key)
        try:
            return np.asarray(self._last[1][index]), ""
        except IndexError as error:
            raise slice_error(key, record.shape, error) from error


def open_source(source: str | os.PathLike[str] | InMemory) -> CaptureFile:
    """Open the file of a capture, or return a capture in memory for reading."""
    if isinstance(source, InMemory):
        return source.reader()
    if isinstance(source, str | os.PathLike):
        return open_capture(source)
    raise RequestError(
        f"A {type(source).__name__} is neither a file nor a capture.",
        "Give the path of a file, or what capture, grads, step, cam or load returned.",
    )
