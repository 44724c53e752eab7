"""Files of ``torch.save`` as a list of tensors, read without torch and without running code.

The zip archives of PyTorch 1.6 and later hold a pickle and a record for each storage. Files before
that hold five pickles (a magic number, a version, the machine, the object, the keys of storages)
and then the storages one after another.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import IO, Any, TypeGuard

from hookscope.errors import WeightsFileError, cause
from hookscope.files.file_types import SAVE_WEIGHTS, WRITE_AGAIN
from hookscope.files.pickle_scan import (
    DAMAGED_ZIP,
    LEGACY_MAGIC,
    LONGEST_PICKLE,
    DamagedPickle,
    LongPickle,
    dangerous_globals,
    foreign_globals,
)
from hookscope.files.shell_words import quote_word
from hookscope.files.words import join_first
from hookscope.stores.weights.checkpoint_parts import (
    CheckpointPart,
    DamagedCheckpoint,
    choose_part,
    listed_parts,
)
from hookscope.stores.weights.tensor_location import (
    StridedLocation,
    column_major_strides,
    is_row_major,
    span_of,
)
from hookscope.stores.weights.torch_pickle import PickledArray, TensorRecord, TorchUnpickler
from hookscope.stores.weights.weight_dtypes import bits_of
from hookscope.stores.weights.weight_set import StoredWeights, WeightTensor, check_count
from hookscope.stores.weights.zip_records import (
    ByteRange,
    DamagedArchive,
    ZipRecords,
    check_record_size,
)

_VERSION = 1001  # of the old format
_EXPANDED = 1 << 30  # bytes that a tensor may have beyond the size of its file
_MOST_VIEWS = 8  # how many times that all tensors may have, which are views of few bytes
_TENSOR_LIKE = (
    "torch.",
    "numpy.ndarray",
    "numpy._core.multiarray._rec",
    "numpy.core.multiarray._rec",
)

_Tensor = TensorRecord | PickledArray


@dataclass(frozen=True)
class _TorchFile:
    """The content of a file, what read it and knows its globals, and its storages by key.

    ``pickle_size`` is the number of bytes that the content was read from.
    """

    kind: str
    root: Any
    pickle_size: int
    unpickler: TorchUnpickler
    storages: Callable[[str], ByteRange]


def read_torch(path: str, part: str = "") -> StoredWeights:
    """Return the tensors of a file of ``torch.save``; no values are read."""
    try:
        with open(path, "rb") as file:
            is_archive = file.read(2) == b"PK"
            file.seek(0)
            content = _archive(path) if is_archive else _legacy_file(path, file)
        chosen = choose_part(content.root, _is_tensor, part, path, decides=_is_of_torch)
        if not chosen.tensors:
            raise _no_tensors(path, content)
        check_count(path, len(chosen.tensors))
        return _stored(path, content, chosen)
    except LongPickle as error:
        raise WeightsFileError(
            f"The weights in {path!r} cannot be read: the pickle in it is too large: {error}.",
            "Save tensors instead of single numbers, and fewer of them.",
        ) from error
    except (DamagedPickle, DamagedCheckpoint, DamagedArchive) as error:
        raise WeightsFileError(
            f"The weights in {path!r} cannot be read: {error}.", WRITE_AGAIN
        ) from error
    except (KeyError, *DAMAGED_ZIP) as error:
        is_system = isinstance(error, OSError) and error.strerror
        reason = cause(error) if is_system else "a record of its zip archive is damaged"
        raise WeightsFileError(
            f"The weights in {path!r} cannot be read: {reason}.", WRITE_AGAIN
        ) from error


def _is_tensor(value: Any) -> TypeGuard[_Tensor]:
    """Whether a value is a tensor, or an array of numpy with plain numbers."""
    if isinstance(value, PickledArray):
        return value.content is not None
    return isinstance(value, TensorRecord)


def _is_of_torch(value: Any) -> TypeGuard[_Tensor]:
    """Whether a value is a tensor of torch: weights are, and arrays beside them may be anything."""
    return isinstance(value, TensorRecord)


def _archive(path: str) -> _TorchFile:
    records = ZipRecords(path)
    prefix = records.folder_of("data.pkl")
    if records.text(f"{prefix}byteorder", "little") != "little":
        raise DamagedPickle("its numbers are big-endian, which hookscope does not read")
    data = records.content(f"{prefix}data.pkl", LONGEST_PICKLE)
    unpickler = TorchUnpickler(io.BytesIO(data))
    root = unpickler.load()

    def storage(key: str) -> ByteRange:
        range_ = records.range(f"{prefix}data/{key}")
        check_record_size(f"{prefix}data/{key}", range_.size, unpickler.needed[key])
        return range_

    return _TorchFile("torch.save", root, len(data), unpickler, storage)


def _legacy_file(path: str, file: IO[bytes]) -> _TorchFile:
    unpickler = TorchUnpickler(file)
    if unpickler.load() != LEGACY_MAGIC:
        raise DamagedPickle("it is a pickle that torch.save did not write")
    version, machine = unpickler.load(), unpickler.load()
    if version != _VERSION or not isinstance(machine, dict):
        raise DamagedPickle("its version is not known")
    if machine.get("little_endian") is not True:
        raise DamagedPickle("its numbers are big-endian, which hookscope does not read")
    root, keys = unpickler.load(), unpickler.load()
    size = file.tell()
    if not isinstance(keys, list) or not all(isinstance(key, str | int) for key in keys):
        raise DamagedPickle("it does not list its storages")
    ranges = _legacy_ranges(path, file, [str(key) for key in keys], unpickler.storages)

    def storage(key: str) -> ByteRange:
        if key not in ranges:
            raise DamagedPickle(f"its storage {key!r} is missing")
        return ranges[key]

    return _TorchFile("torch.save, old format", root, size, unpickler, storage)


def _legacy_ranges(
    path: str, file: IO[bytes], keys: list[str], sizes: Mapping[str, int]
) -> dict[str, ByteRange]:
    """The bytes of each storage: its number of elements as eight bytes, and its elements."""
    ranges = {}
    end = os.fstat(file.fileno()).st_size
    position = file.tell()
    for key in keys:
        file.seek(position)
        count = int.from_bytes(file.read(8), "little", signed=True)
        # A storage of an unknown dtype cannot be skipped: its size is not known.
        size = count * sizes.get(key, -1)
        if not 0 <= size <= end - position - 8:
            raise DamagedPickle(f"the storage {key!r} is cut off or of an unknown dtype")
        ranges[key] = ByteRange(position + 8, size)
        position += 8 + size
    return ranges


def _stored(path: str, content: _TorchFile, chosen: CheckpointPart[_Tensor]) -> StoredWeights:
    """The tensors with their locations; those with the same place in a storage are tied."""
    ranges: dict[str, ByteRange] = {}
    first: dict[tuple[object, ...], str] = {}
    tensors = []
    allowed = os.path.getsize(path) + _EXPANDED
    in_arrays = in_all = 0
    for name, record in chosen.tensors.items():
        place: tuple[object, ...]
        if isinstance(record, PickledArray):
            location = _array_location(path, record)
            place = _array_place(record, location)
        else:
            key = record.storage.key
            if key not in ranges:
                ranges[key] = content.storages(key)
            location = _location(path, record, ranges[key])
            place = (key, location)
        numel = prod(location.shape)
        nbytes = numel * bits_of(location.dtype) // 8
        if nbytes > allowed:
            raise DamagedPickle(f"{name!r} has more values than its file can hold")
        tied_to = first.setdefault(place if numel else (name,), name)
        in_all += nbytes if tied_to == name else 0
        if in_all > _MOST_VIEWS * allowed:
            raise DamagedPickle("its tensors have far more values than its file")
        if isinstance(record, PickledArray) and tied_to == name:
            in_arrays += nbytes
            if in_arrays > content.pickle_size:
                raise DamagedPickle("its arrays have more values than its pickle can hold")
        tensor = WeightTensor(
            name, location.dtype, location.shape, nbytes, path, "" if tied_to == name else tied_to
        )
        tensors.append((tensor, location))
    notes = tuple(_notes(path, content, chosen))
    return StoredWeights(content.kind, tensors, chosen.metadata, chosen.name, notes)


def _location(path: str, record: TensorRecord, bytes_: ByteRange) -> StridedLocation:
    """Where a tensor is in the file, which must be inside its storage."""
    size = bits_of(record.dtype) // 8
    start = record.storage.offset * record.storage.itemsize + record.offset * size
    span = span_of(record.shape, record.strides) * size
    if span and start + span > bytes_.size:
        raise DamagedPickle("a tensor extends beyond its storage")
    in_order = is_row_major(record.shape, record.strides)
    return StridedLocation(
        path,
        bytes_.offset + start,
        record.dtype,
        record.shape,
        None if in_order else record.strides,
        bytes_.record,
    )


def _array_location(path: str, record: PickledArray) -> StridedLocation:
    """The values of an array, which are in the pickle."""
    array = record.content
    assert array is not None  # as _is_tensor found
    strides = column_major_strides(array.shape) if array.column_major else None
    return StridedLocation(
        path, 0, array.dtype, array.shape, strides, big_endian=array.big_endian, data=array.data
    )


def _array_place(record: PickledArray, location: StridedLocation) -> tuple[object, ...]:
    """What two arrays with the same values in a pickle have in common."""
    # Python has each text of one byte once, so that arrays of one byte would all be the same.
    if location.data is None or len(location.data) < 2:
        return (id(record),)
    order = (location.strides, location.big_endian)
    return (id(location.data), location.dtype, location.shape, *order)


def _notes(path: str, content: _TorchFile, chosen: CheckpointPart[_Tensor]) -> Iterator[str]:
    if chosen.name and chosen.others:
        others = listed_parts({f"{path}#{name}": n for name, n in chosen.others.items()})
        yield f"This is the part {chosen.name!r}. There is also {others}."
    called, classes = _foreign(content)
    if classes:
        yield (
            f"The file has Python objects ({join_first(classes)}). They were not built: no code of"
            " the file was run."
        )
    if called:
        yield f"Opening it in PyTorch would call {join_first(called)}. Nothing was called here."
    unread = [
        f"{name or 'the file'!r} ({_noun(kind)})"
        for name, kind in chosen.unread.items()
        if kind.startswith(_TENSOR_LIKE)
    ]
    if unread:
        yield f"Not listed, since they are not plain tensors: {join_first(unread)}."


def _foreign(content: _TorchFile) -> tuple[list[str], list[str]]:
    """The functions that opening it would call, the worst first, and the names of other classes."""
    called = foreign_globals(content.unpickler.called)
    worst = dangerous_globals(called)
    classes = [name for name in foreign_globals(content.unpickler.names) if name not in called]
    return [*worst, *(name for name in called if name not in worst)], classes


def _no_tensors(path: str, content: _TorchFile) -> WeightsFileError:
    called, classes = _foreign(content)
    if not (called or classes):
        return WeightsFileError(f"The file {path!r} contains no tensors.", SAVE_WEIGHTS)
    objects = f"has Python objects ({join_first(classes)}) and " if classes else "has "
    would = f" Opening it in PyTorch would call {join_first(called)}." if called else ""
    hint = f"If you trust the file: hookscope tree {quote_word(path)} --trust"
    if dangerous_globals(content.unpickler.names):
        hint = "Do not open it: a file of weights does not need such functions."
    return WeightsFileError(
        f"{path!r} {objects}no tensors that can be read without running code of the file.{would}",
        hint,
    )


def _noun(kind: str) -> str:
    """What a value is that is not a plain tensor, by the function that would build it."""
    function = kind.rpartition(".")[2]
    if kind == "numpy.ndarray":
        return "an array of numpy without plain numbers"
    if kind.startswith("numpy."):
        return "an array of numpy of a class of its own"
    if match := re.fullmatch(r"_rebuild_(\w+?)_tensor(_\w+)?", function):
        return f"a {match[1].replace('_', ' ')} tensor"
    if match := re.fullmatch(r"torch\.Tensor \((.+)\)", kind):  # named so in torch_pickle.py
        return f"a {match[1]} tensor"
    if function == "_rebuild_qtensor" or re.fullmatch(r"Q\w+Storage", function):
        return "a quantized tensor"
    return kind
