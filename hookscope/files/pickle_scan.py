"""The globals that a pickle would load, read from its instructions. Nothing is unpickled."""

from __future__ import annotations

import io
import pickletools
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle in a file of an old torch.save
_LEGACY_PREAMBLE = 3  # pickles before the object: magic number, protocol, sizes of the machine
LONGEST_PICKLE = 1 << 26  # bytes of the pickle in an archive, which may be compressed
_LONGEST_VALUE = 1 << 26  # bytes of one instruction, such as an array of numpy
# A name may be put together from two long texts, any number of times.
_LONGEST_GLOBAL = 1000  # characters
_MOST_GLOBALS = 10_000

# The errors of zipfile for a damaged archive: an unknown version, names that are not text, a
# password, compressed data that cannot be decompressed, a record beyond the end of the file.
DAMAGED_ZIP = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError, OSError),
)

# The globals that build tensors, arrays and plain containers.
_HARMLESS = re.compile(
    r"torch\.\w+|torch\.(_utils|_tensor|storage|serialization|nn\.parameter)\.\w+"
    r"|collections\.(OrderedDict|defaultdict|Counter|deque)|_codecs\.encode"
    r"|numpy\.(dtype|ndarray|bool_|u?int\d+|float\d+)"
    r"|numpy\._?core\.(multiarray|numeric)\.\w+"
    r"|(builtins|__builtin__)\.(set|frozenset|dict|list|tuple|int|float|complex|bool|bytes"
    r"|bytearray|slice|range)"
)

# Modules, and functions of ``builtins``, that run any command or code, or change files.
_DANGEROUS = re.compile(
    r"(os|posix|nt|subprocess|sys|shutil|pty|commands|importlib|runpy|ctypes|code|codeop|webbrowser"
    r"|socket|_posixsubprocess)(\..*)?"
    r"|(builtins|__builtin__)\.(eval|exec|execfile|compile|open|__import__|getattr|setattr|delattr)"
)


class DamagedPickle(ValueError):
    """The bytes are not a complete pickle."""


class LongPickle(DamagedPickle):
    """A pickle has too many instructions, or values that are too long, to be read."""


class LargePickle(LongPickle):
    """A pickle, or a value in it, has more bytes than are read."""


class BoundedFile:
    """A file whose single reads are limited, since a pickle gives the lengths of its values."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        """Return the next bytes; fewer at the end of the file."""
        if size > _LONGEST_VALUE:
            raise LargePickle(f"it has a value of more than {_LONGEST_VALUE:,} bytes")
        return self._file.read(size)

    def readline(self) -> bytes:
        """Return the bytes up to the next newline."""
        line = self._file.readline(_LONGEST_VALUE)
        if len(line) == _LONGEST_VALUE:
            raise LargePickle(f"it has a value of more than {_LONGEST_VALUE:,} bytes")
        return line


class GlobalNames:
    """The dotted names of the globals of a file, each once, in the order of their first use."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def add(self, module: str, name: str = "") -> str:
        """Add a global and return its dotted name, which is the same object each time."""
        if len(module) + len(name) > _LONGEST_GLOBAL:
            raise LongPickle(f"it names a global of more than {_LONGEST_GLOBAL:,} characters")
        dotted = f"{module}.{name}" if name else module
        if dotted not in self._names and len(self._names) == _MOST_GLOBALS:
            raise LongPickle(f"it names more than {_MOST_GLOBALS:,} globals")
        return self._names.setdefault(dotted, dotted)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)


def list_globals(file: IO[bytes]) -> list[str]:
    """Return the names of a pickle's globals, in order of first use; ``?`` for computed ones."""
    try:
        start = file.read(2)
        file.seek(0)
        if start == b"PK":
            file = io.BytesIO(_data_pickle(file))
        names = GlobalNames()
        if _scan(file, names):
            for _ in range(_LEGACY_PREAMBLE):
                names = GlobalNames()
                _scan(file, names)
        return list(names)
    except LongPickle:
        raise
    except (IndexError, KeyError, StopIteration, MemoryError, *DAMAGED_ZIP) as exc:
        raise DamagedPickle(str(exc)) from exc


def foreign_globals(names: Iterable[str]) -> list[str]:
    """Return the names that do not build tensors, arrays or plain containers.

    >>> foreign_globals(["torch._utils._rebuild_tensor_v2", "mynet.Net"])
    ['mynet.Net']
    """
    return [name for name in names if not _HARMLESS.fullmatch(name)]


def dangerous_globals(names: Iterable[str]) -> list[str]:
    """Return the names that a file of weights has no honest use for.

    >>> dangerous_globals(["posix.system", "mynet.Net", "builtins.eval", "oslo.Net"])
    ['posix.system', 'builtins.eval']
    """
    return [name for name in names if _DANGEROUS.fullmatch(name)]


def _data_pickle(file: IO[bytes]) -> bytes:
    with zipfile.ZipFile(file) as archive:
        name = next(n for n in archive.namelist() if n.rpartition("/")[2] == "data.pkl")
        with archive.open(name) as record:
            data = record.read(LONGEST_PICKLE + 1)
    if len(data) > LONGEST_PICKLE:
        raise LargePickle(f"it is longer than {LONGEST_PICKLE:,} bytes")
    return data


def _scan(file: IO[bytes], names: GlobalNames) -> bool:
    """Add the globals of one pickle; return whether it has the number of an old ``torch.save``."""
    is_legacy = False
    before = last = "?"  # the last two strings on the stack, which STACK_GLOBAL uses
    memo: dict[int, str] = {}
    for count, (opcode, arg, _) in enumerate(pickletools.genops(BoundedFile(file))):  # type: ignore[arg-type]
        if count == MOST_INSTRUCTIONS:
            raise LongPickle(f"it has more than {MOST_INSTRUCTIONS:,} instructions")
        effect = _EFFECTS.get(opcode.name, "push")
        if effect == "push":
            before, last = last, "?"
        elif effect == "text":
            before, last = last, str(arg)
        elif effect == "get":
            before, last = last, memo.get(arg or 0, "?")
        elif effect == "put":
            memo[len(memo) if arg is None else arg] = last
        elif effect == "global":
            names.add(str(arg).replace(" ", ".", 1))
        elif effect == "stack global":
            names.add(before, last)
        elif effect == "extension":
            names.add("?")
        elif effect == "number" and arg == LEGACY_MAGIC:
            is_legacy = True
    return is_legacy


def _effect(name: str) -> str:
    """The effect of an instruction on the names of globals."""
    if name in ("GLOBAL", "INST"):
        return "global"
    if name.startswith(("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT")):
        return "put"
    if name.endswith("GET"):
        return "get"
    if "UNICODE" in name or name.endswith("STRING"):
        return "text"
    named = {"STACK_GLOBAL": "stack global", "LONG1": "number", "PROTO": "", "FRAME": ""}
    return named.get(name, "extension" if name.startswith("EXT") else "push")


_EFFECTS = {opcode.name: _effect(opcode.name) for opcode in pickletools.opcodes}

MOST_INSTRUCTIONS = 4_000_000  # in a pickle that is read; a tensor takes about 25
