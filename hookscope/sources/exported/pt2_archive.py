"""Checks of a ``.pt2`` archive for code, before torch opens it.

``torch.export.load`` unpickles records that the archive flags as pickles, and example inputs that
its safe reader rejects. It evaluates sizes as Python, by sympy, imports the modules that containers
name, calls any function of torch as an operator, and loads compiled libraries.
"""

from __future__ import annotations

import ast
import io
import json
import re
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import torch

from hookscope.errors import ModelError
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.pickle_scan import DamagedPickle, LongPickle, foreign_globals, list_globals
from hookscope.sources.torchscript.operators import REFUSED
from hookscope.stores.weights.tensor_location import span_of
from hookscope.stores.weights.zip_records import (
    DamagedArchive,
    check_record_size,
    check_record_sizes,
)
from hookscope.tensors.torch_internals import HigherOrderOperator, OpOverload, export_reader
from hookscope.tensors.torch_release import reads_pickles_safely

_CONFIG = re.compile(r"(data/(?:weights|constants)/).*_config\.json", re.DOTALL)
_PROGRAM = re.compile(r"models/.*|serialized_exported_program\.json", re.DOTALL)
_PICKLED = re.compile(r"data/.*\.pt|serialized_(?!exported_program\.json).*", re.DOTALL)
_OBJECTS = ("custom_obj_", "opaque_obj_")  # unpickled whatever their flag is

# Bytes of an element by the number that the format has for a dtype.
_ITEMSIZES = {
    **dict.fromkeys(["1", "2", "12", "29", "30", "31", "32", "33"], 1),
    **dict.fromkeys(["3", "6", "13", "28"], 2),
    **dict.fromkeys(["4", "7", "9", "34"], 4),
    **dict.fromkeys(["5", "8", "10", "35"], 8),
    "11": 16,
}

# Functions that a graph may call besides operators: arithmetic, and modes of autograd.
_ALLOWED_CALL = re.compile(
    r"_operator\.(getitem|add|mul|sub|truediv|ge|le|gt|lt|eq|ne|floordiv|mod|and_|or_|not_|pow|neg"
    r"|abs|lshift|rshift)|math\.(ceil|floor|trunc)|round|torch\.sym_\w+|torch\._check\w*"
    r"|torch\._C\._set_grad_enabled|torch\.autograd\.grad_mode\.set_grad_enabled"
    r"|torch\.amp\.autocast_mode\._(enter|exit)_autocast|torch\._functorch\.predispatch\.\w+"
    r"|torch\.fx\.experimental\.symbolic_shapes\.cast_symbool_to_symint_guardless"
)
_SYMPY_CONSTANT = re.compile(r"\w+|[-+]?[\d.]+(e[-+]?\d+)?")  # the name of a symbol, or a number
_SYMPY_FUNCTION = re.compile(r"[A-Z]\w*|floor|ceiling|exp|log|sqrt|sin|cos|tan")
_ARITHMETIC = (
    *(ast.Expression, ast.Name, ast.Constant, ast.Load, ast.Call, ast.Compare, ast.cmpop),
    *(ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.BoolOp, ast.boolop, ast.keyword),
)


@dataclass(frozen=True)
class ArchiveRecords:
    """The records of an archive by name, and a function that reads one."""

    names: Collection[str]
    read: Callable[[str], bytes]


def check_no_code(file: IO[bytes], path: str) -> None:
    """Raise ModelError if opening the archive would run code in it."""
    findings = list(dict.fromkeys(x for layout in _layouts(file) for x in _code_in(layout)))
    if findings:
        raise ModelError(
            f"Opening {path!r} would run code in it: {'; '.join(findings[:3])}.",
            "Add --trust if you trust its author. A program of plain tensors saved by"
            " torch.export.save does not need it.",
        )


def check_layout(file: IO[bytes], path: str) -> None:
    """Raise ModelError if the archive has a layout that this release of torch cannot read."""
    with zipfile.ZipFile(file) as archive:
        is_newer = any(name.endswith("/archive_format") for name in archive.namelist())
    if is_newer and export_reader() is None:
        installed = torch.__version__.partition("+")[0]
        raise ModelError(
            f"{path!r} was exported by a newer torch than {installed}, which cannot open it.",
            f"Install torch 2.8 or newer, or export the model again with torch {installed}.",
        )


def check_sizes(file: IO[bytes], path: str) -> None:
    """Raise ModelError if a record of the archive is shorter than a tensor in it."""
    try:
        with zipfile.ZipFile(file) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
        for layout in _layouts(file):
            for name in layout.names:
                if config := _CONFIG.fullmatch(name):
                    _check_tensors(_parse(layout.read(name)), config[1], sizes)
                elif _PICKLED.fullmatch(name):
                    check_record_sizes(io.BytesIO(layout.read(name)))
    except DamagedArchive as error:
        raise ModelError(f"{path!r} is damaged: {error}.", WRITE_AGAIN) from error


def _check_tensors(config: Any, folder: str, sizes: Mapping[str, int]) -> None:
    """Compare the sizes of records with the tensors that a configuration lists."""
    for _, entry in _items(config):
        meta = entry.get("tensor_meta") if isinstance(entry, dict) else None
        if not isinstance(meta, dict):
            continue
        itemsize = _ITEMSIZES.get(str(meta.get("dtype")), 0)
        shape, strides = (_numbers(meta.get(key)) for key in ("sizes", "strides"))
        (offset,) = _numbers([meta.get("storage_offset")]) or (0,)
        if shape is None or strides is None or len(shape) != len(strides):
            continue  # torch refuses it
        span = span_of(shape, strides)
        needed = (offset + span) * itemsize if span else 0
        record = f"{folder}{entry.get('path_name')}"
        for name, size in sizes.items():
            if name == record or name.partition("/")[2] == record:
                check_record_size(record, size, needed)


def _numbers(sizes: Any) -> tuple[int, ...] | None:
    """The numbers in the form ``[{"as_int": 3}]``; None for another one."""
    if not isinstance(sizes, list):
        return None
    found = (size.get("as_int") for size in sizes if isinstance(size, dict))
    numbers = tuple(number for number in found if isinstance(number, int) and number >= 0)
    return numbers if len(numbers) == len(sizes) else None


def check_operators(file: IO[bytes], path: str) -> None:
    """Raise ModelError if the program calls an operator that is not registered."""
    for layout in _layouts(file):
        targets = {name for _, program in _programs(layout) for name in _call_targets(program)}
        for target in targets:
            if target.startswith("torch.ops.") and not _is_operator(target):
                name = "::".join(target.split(".")[2:4])
                raise ModelError(
                    f"The program in {path!r} calls the operator {name}, which is not registered.",
                    "Importing the package that defines it registers it, so call hookscope from"
                    " Python after that import.",
                )


def container_types(file: IO[bytes]) -> set[str]:
    """Return the names of the container classes of the program's inputs and outputs."""
    return {
        value
        for layout in _layouts(file)
        for _, program in _programs(layout)
        for key, value in _items(program)
        if key == "type" and isinstance(value, str)
    }


def _layouts(file: IO[bytes]) -> Iterator[ArchiveRecords]:
    """The records of the archive by the newer layout, and by the older."""
    # torch tries both, with two zip readers, which may see different records in a crafted file.
    file.seek(0)
    reader_of = export_reader()
    try:
        reader = None if reader_of is None else reader_of(file)
    except (RuntimeError, AssertionError, UnicodeDecodeError):
        pass
    else:
        if reader is not None:
            yield ArchiveRecords(reader.get_file_names(), reader.read_bytes)
    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        if "version" in archive.namelist():
            yield ArchiveRecords(archive.namelist(), archive.read)
    file.seek(0)


def _code_in(layout: ArchiveRecords) -> Iterator[str]:
    """Describe each record or value that would run code, and what it calls."""
    for name in layout.names:
        if name.startswith("data/aotinductor/"):
            yield f"machine code ({name})"
        elif config := _CONFIG.fullmatch(name):
            for tensor, entry in _items(_parse(layout.read(name))):
                file = str(entry.get("path_name")) if isinstance(entry, dict) else ""
                if file and (entry.get("use_pickle") or file.startswith(_OBJECTS)):
                    pickled = config[1] + file
                    data = layout.read(pickled) if pickled in layout.names else b""
                    yield f"a pickle for {tensor} {_pickle_calls(data)}"
        elif _PICKLED.fullmatch(name):
            data = layout.read(name)
            if data and not _is_plain(data):
                yield f"a pickle in {name} {_pickle_calls(data)}"
    for name, program in _programs(layout):
        yield from (f"{finding} in {name}" for finding in _code_in_program(program))


def _code_in_program(program: Any) -> Iterator[str]:
    for key, value in _items(program):
        if key == "expr_str" and not _is_arithmetic(value):
            yield f"the size {value!r}"
        elif key in ("default_factory_module", "__enum__"):
            yield "the import of a module for a container"
    for target in _call_targets(program):
        if not target.startswith("torch.ops.") and not _ALLOWED_CALL.fullmatch(target):
            yield f"a call of {target}"
        elif reason := REFUSED.get(_schema_name(target)):
            yield f"a call of {target}, which {reason}"


def _programs(layout: ArchiveRecords) -> Iterator[tuple[str, Any]]:
    for name in layout.names:
        if _PROGRAM.fullmatch(name):
            yield name, _parse(layout.read(name))


def _parse(data: bytes) -> Any:
    """The JSON value; empty if it is not JSON, which torch refuses."""
    try:
        return json.loads(data)
    except ValueError:
        return {}


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, also in JSON inside strings."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from _items(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _items(inner)
    elif isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        yield from _items(_parse(value.encode()))


def _call_targets(program: Any) -> Iterator[str]:
    """The names of the functions that the graphs of a program call or pass on."""
    for key, value in _items(program):
        if key == "as_operator":
            yield str(value)
        elif key == "nodes" and isinstance(value, list):
            yield from (str(node.get("target")) for node in value if isinstance(node, dict))


def _is_operator(name: str) -> bool:
    return isinstance(_resolved(name), (OpOverload, HigherOrderOperator))


def _schema_name(name: str) -> str:
    """The name of an operator in its schema, such as ``aten::relu``; of another one its text."""
    operator = _resolved(name)
    if isinstance(operator, OpOverload):
        return str(operator._schema.name)
    return "::".join(name.split(".")[2:4])


def _resolved(name: str) -> Any:
    """What torch finds by the dotted name of a call's target; None if there is nothing."""
    value: Any = torch
    for part in name.split(".")[1:]:
        value = getattr(value, part, None)
    return value


def _is_arithmetic(text: Any) -> bool:
    """Whether a size is arithmetic over names and numbers, which sympy can evaluate safely."""
    try:
        nodes = list(ast.walk(ast.parse(str(text).strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError):
        return False
    functions = [node.func for node in nodes if isinstance(node, ast.Call)]
    return (
        all(isinstance(node, _ARITHMETIC) for node in nodes)
        and all(
            _SYMPY_CONSTANT.fullmatch(str(n.value)) for n in nodes if isinstance(n, ast.Constant)
        )
        and all(isinstance(f, ast.Name) and _SYMPY_FUNCTION.fullmatch(f.id) for f in functions)
    )


def _is_plain(data: bytes) -> bool:
    """Whether torch's safe reader accepts it. Otherwise torch would unpickle it with code."""
    try:
        list_globals(io.BytesIO(data))
    except LongPickle:
        return False  # PyTorch's reader would take minutes
    except DamagedPickle:
        pass
    if not reads_pickles_safely():
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.load(io.BytesIO(data), weights_only=True)
    except Exception:
        return False
    return True


def _pickle_calls(data: bytes) -> str:
    """The names in a pickle besides tensors, for the error."""
    try:
        names = list_globals(io.BytesIO(data))
    except DamagedPickle:
        return "that cannot be read"
    called = ", ".join((foreign_globals(names) or names)[:5])
    return f"that calls {called}" if names else "of an object"
