"""What PyTorch's loader does not return of a TorchScript archive, read without running code.

That is the device it was saved on, the shapes of traced inputs, and the members of enums.
"""

from __future__ import annotations

import ast
import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from hookscope.sources.torchscript.private import ArchiveReader


@dataclass
class ArchiveRecord:
    """An object of any class: the name of the class, the arguments of its call, its attributes."""

    kind: str
    args: tuple[Any, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)

    def __setstate__(self, state: Any) -> None:
        self.state = dict(state) if isinstance(state, dict) else {"": state}


@dataclass(frozen=True)
class Storage:
    """The data of tensors: the archive's member with the values, and the device it was on."""

    dtype: torch.dtype
    key: str
    location: str


@dataclass(frozen=True)
class ArchiveTensor:
    """A tensor that has not been read: a view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class ScriptArchive:
    """A TorchScript file, opened for reading."""

    def __init__(self, path: str) -> None:
        self._zip = zipfile.ZipFile(path)
        self._names = set(self._zip.namelist())
        pickles = [name for name in self._names if name.rpartition("/")[2] == "data.pkl"]
        self._prefix = min(pickles, key=len).removesuffix("data.pkl")
        self._locations: list[str] = []

    @cached_property
    def root(self) -> Any:
        """The root module as a record; its submodules are records in ``state``."""
        return self._unpickle("data.pkl")

    @property
    def home(self) -> torch.device:
        """The device that the tensors were on when the file was saved."""
        _ = self.root
        if not self._locations:
            self._unpickle("constants.pkl")
        return torch.device(self._locations[0] if self._locations else "cpu")

    @property
    def extra(self) -> tuple[str, ...]:
        """The names of the extra files that were saved with the model."""
        folder = f"{self._prefix}extra/"
        return tuple(sorted(name[len(folder) :] for name in self._names if name.startswith(folder)))

    def traced_inputs(self, method: str) -> tuple[Any, ...] | None:
        """The inputs that ``method`` was traced with, tensors as records; None if not stored."""
        if f"{self._prefix}traced_inputs.pkl" not in self._names:
            return None
        inputs = self._unpickle("traced_inputs.pkl")
        if not isinstance(inputs, dict):
            raise pickle.UnpicklingError("traced_inputs.pkl contains no named inputs")
        return None if inputs.get(method) is None else tuple(inputs[method])

    def attribute(self, path: tuple[str, ...], name: str) -> Any:
        """Return an attribute of the module at ``path``, as plain values and records."""
        owner = self.root
        for part in path:
            owner = owner.state[part]
        return owner.state[name]

    def tensor(self, record: ArchiveTensor) -> Tensor:
        """Read a tensor."""
        storage = record.storage
        data = bytearray(self._zip.read(f"{self._prefix}data/{storage.key}"))
        flat = torch.frombuffer(data, dtype=storage.dtype) if data else torch.empty(0)
        return torch.as_strided(flat, record.shape, record.stride, record.offset)

    def mentions(self, text: str) -> bool:
        """Whether the code of the archive contains ``text``."""
        return any(text in code for code in self._code.values())

    @cached_property
    def _code(self) -> dict[str, str]:
        """The source of each module of code by the module's dotted name."""
        folder = f"{self._prefix}code/"
        return {
            name[len(folder) : -3].replace("/", "."): self._zip.read(name).decode()
            for name in self._names
            if name.startswith(folder) and name.endswith(".py")
        }

    def enums(self) -> dict[str, type[Enum]]:
        """Return the enums that the code defines, by qualified name."""
        enums: dict[str, type[Enum]] = {}
        for module, text in self._code.items():
            if "(Enum):" in text:
                enums.update(_enums(text, module))
        return enums

    def _unpickle(self, name: str) -> Any:
        reader = _Unpickler(io.BytesIO(self._zip.read(self._prefix + name)), self._locations)
        try:
            return reader.load()
        except Exception as error:  # the reader raises nearly any type for a damaged pickle
            raise pickle.UnpicklingError(f"its record {name} is not a valid pickle") from error


def read_code(path: str) -> bytes:
    """Return the code in an archive by the reader that opens it: Python's may see other records."""
    reader = ArchiveReader(path)
    names = [name for name in reader.get_all_records() if name.startswith("code/")]
    return b"\n".join(reader.get_record(name) for name in names)


def _enums(text: str, module: str) -> dict[str, type[Enum]]:
    """The enum classes in one file of code: ``class Color(Enum):`` with literal members."""
    enums = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and [ast.unparse(b) for b in node.bases] == ["Enum"]:
            members = {
                ast.unparse(line.targets[0]): ast.literal_eval(line.value)
                for line in node.body
                if isinstance(line, ast.Assign)
            }
            enums[f"{module}.{node.name}"] = cast(type[Enum], Enum(node.name, members))
    return enums


class _Unpickler(pickle._Unpickler):
    """Reads a pickle. Every class in it becomes a record, and none is imported."""

    # The unpickler in C rejects what PyTorch writes for an enum: a call with a value as arguments.

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: io.BytesIO, locations: list[str]) -> None:
        super().__init__(file)
        self._locations = locations

    def find_class(self, module: str, name: str) -> Any:
        qualified = f"{module}.{name}"
        if module == "torch" and name.endswith("Storage"):
            return name
        if qualified in _KNOWN:
            return _KNOWN[qualified]
        members = {"__new__": _constructor(qualified), "__init__": _no_init}
        return type(name, (ArchiveRecord,), members)

    def persistent_load(self, pid: Any) -> Storage:
        _, kind, key, location, _ = pid
        self._locations.append(location)
        return Storage(_dtype(kind), key, location)


def _reduce(reader: Any) -> None:
    args = reader.stack.pop()
    function = reader.stack[-1]
    reader.stack[-1] = function(*args) if isinstance(args, tuple) else function(args)


_Unpickler.dispatch[pickle.REDUCE[0]] = _reduce


def _no_init(self: ArchiveRecord, *args: Any) -> None:
    """The constructor has set everything."""


def _constructor(class_name: str) -> Callable[..., ArchiveRecord]:
    def make_record(cls: type[ArchiveRecord], *args: Any) -> ArchiveRecord:
        record = object.__new__(cls)
        record.kind, record.args, record.state = class_name, args, {}
        return record

    return make_record


def _dtype(kind: str) -> torch.dtype:
    names = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16"}
    names |= {"Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8"}
    names |= {"Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128"}
    names |= {"QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32"}
    dtype: torch.dtype = getattr(torch, names.get(kind.removesuffix("Storage"), "uint8"))
    return dtype


def _tensor(storage: Storage, offset: int, shape: Any, stride: Any, *rest: Any) -> ArchiveTensor:
    return ArchiveTensor(storage, offset, tuple(shape), tuple(stride))


def _unchanged(value: Any, *rest: Any) -> Any:
    return value


_KNOWN: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_qtensor": _tensor,
    "torch.jit._pickle.restore_type_tag": _unchanged,
    "torch.jit._pickle.build_intlist": _unchanged,
    "torch.jit._pickle.build_doublelist": _unchanged,
    "torch.jit._pickle.build_boollist": _unchanged,
    "torch.jit._pickle.build_tensorlist": _unchanged,
    "collections.OrderedDict": OrderedDict,
}
