"""What a TorchScript archive says beside its graphs, read without running or building anything.

PyTorch's own loader makes the modules. It does not tell the device they were saved on, the shapes a
model was traced with, or the members of an enum whose Python class is not at hand. Those are read
here from the pickles and the code of the archive, with an unpickler that knows plain records alone.
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


@dataclass
class Record:
    """An object of any class: the class's name, what it was called with, its attributes."""

    kind: str
    args: tuple[Any, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)

    def __setstate__(self, state: Any) -> None:
        self.state = dict(state) if isinstance(state, dict) else {"": state}


@dataclass(frozen=True)
class Storage:
    """A run of numbers: the archive's member that holds it, and the device it was on."""

    dtype: torch.dtype
    key: str
    location: str


@dataclass(frozen=True)
class TensorRecord:
    """A tensor that has not been read: a view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class ScriptArchive:
    """A TorchScript file, opened to be looked at.

    Raises:
        LookupError, ValueError, pickle.UnpicklingError: it is damaged.
    """

    def __init__(self, path: str) -> None:
        self._zip = zipfile.ZipFile(path)
        self._names = set(self._zip.namelist())
        shallow = [name for name in self._names if name.rpartition("/")[2] == "data.pkl"]
        self._prefix = min(shallow, key=len).removesuffix("data.pkl")
        self._locations: list[str] = []

    @cached_property
    def root(self) -> Any:
        """The root module as a record; its submodules are records in its ``state``."""
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
        """Names of what whoever saved the model put in beside it."""
        folder = f"{self._prefix}extra/"
        return tuple(sorted(name[len(folder) :] for name in self._names if name.startswith(folder)))

    def traced_inputs(self, method: str) -> tuple[Any, ...] | None:
        """The inputs that ``method`` was traced with, tensors as records; None if not stored."""
        if f"{self._prefix}traced_inputs.pkl" not in self._names:
            return None
        found = self._unpickle("traced_inputs.pkl")
        if not isinstance(found, dict):
            raise pickle.UnpicklingError("traced_inputs.pkl holds no inputs by name")
        return None if found.get(method) is None else tuple(found[method])

    def attribute(self, path: tuple[str, ...], name: str) -> Any:
        """What the module at ``path`` has under ``name``: plain values and records."""
        owner = self.root
        for part in path:
            owner = owner.state[part]
        return owner.state[name]

    def tensor(self, record: TensorRecord) -> Tensor:
        """Read a tensor."""
        storage = record.storage
        data = bytearray(self._zip.read(f"{self._prefix}data/{storage.key}"))
        flat = torch.frombuffer(data, dtype=storage.dtype) if data else torch.empty(0)
        return torch.as_strided(flat, record.shape, record.stride, record.offset)

    def mentions(self, text: str) -> bool:
        """Whether the code of the archive holds ``text``."""
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
        """The enums that the code defines, by qualified name."""
        found: dict[str, type[Enum]] = {}
        for module, text in self._code.items():
            if "(Enum):" in text:
                found.update(_enums(text, module))
        return found

    def _unpickle(self, name: str) -> Any:
        reader = _Unpickler(io.BytesIO(self._zip.read(self._prefix + name)), self._locations)
        try:
            return reader.load()
        except Exception as error:  # of changed bytes a pickle's reader raises nearly anything
            raise pickle.UnpicklingError(f"{name} in it is no sound pickle") from error


def _enums(text: str, module: str) -> dict[str, type[Enum]]:
    """Enum classes in one file of code: ``class Color(Enum):`` with literal members."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and [ast.unparse(b) for b in node.bases] == ["Enum"]:
            members = {
                ast.unparse(line.targets[0]): ast.literal_eval(line.value)
                for line in node.body
                if isinstance(line, ast.Assign)
            }
            found[f"{module}.{node.name}"] = cast(type[Enum], Enum(node.name, members))
    return found


class _Unpickler(pickle._Unpickler):
    """Reads a pickle; every class it names becomes a record, and none is looked up.

    Python's own reader in Python, as the one in C refuses what PyTorch writes for an enum: a call
    with a value in place of the tuple of arguments.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: io.BytesIO, locations: list[str]) -> None:
        super().__init__(file)
        self._seen = locations

    def find_class(self, module: str, name: str) -> Any:
        whole = f"{module}.{name}"
        if module == "torch" and name.endswith("Storage"):
            return name
        known = _KNOWN.get(whole)
        if known is not None:
            return known
        return type(name, (Record,), {"__new__": _maker(whole), "__init__": _nothing})

    def persistent_load(self, pid: Any) -> Storage:
        _, kind, key, location, _ = pid
        self._seen.append(location)
        return Storage(_dtype(kind), key, location)


def _reduce(reader: Any) -> None:
    given = reader.stack.pop()
    function = reader.stack[-1]
    reader.stack[-1] = function(*given) if isinstance(given, tuple) else function(given)


_Unpickler.dispatch[pickle.REDUCE[0]] = _reduce


def _nothing(self: Record, *args: Any) -> None:
    """A record is whole once it is made."""


def _maker(whole: str) -> Callable[..., Record]:
    def make(kind: type[Record], *args: Any) -> Record:
        made = object.__new__(kind)
        made.kind, made.args, made.state = whole, args, {}
        return made

    return make


def _dtype(kind: str) -> torch.dtype:
    names = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16"}
    names |= {"Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8"}
    names |= {"Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128"}
    names |= {"QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32"}
    found: torch.dtype = getattr(torch, names.get(kind.removesuffix("Storage"), "uint8"))
    return found


def _tensor(storage: Storage, offset: int, shape: Any, stride: Any, *rest: Any) -> TensorRecord:
    return TensorRecord(storage, offset, tuple(shape), tuple(stride))


def _same(value: Any, *rest: Any) -> Any:
    return value


_KNOWN: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_qtensor": _tensor,
    "torch.jit._pickle.restore_type_tag": _same,
    "torch.jit._pickle.build_intlist": _same,
    "torch.jit._pickle.build_doublelist": _same,
    "torch.jit._pickle.build_boollist": _same,
    "torch.jit._pickle.build_tensorlist": _same,
    "collections.OrderedDict": OrderedDict,
}
