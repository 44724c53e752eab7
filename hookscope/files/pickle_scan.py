"""The globals that a pickle would load, read from its instructions. Nothing is unpickled."""

from __future__ import annotations

import io
import pickletools
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle in a file of an old torch.save
_LEGACY_PREAMBLE = 3  # pickles before the object: magic number, protocol, sizes of the machine
_LONGEST_PICKLE = 1 << 26  # bytes of the pickle in an archive, which may be compressed
MOST_INSTRUCTIONS = 4_000_000  # in a pickle; a tensor takes about 25

# The errors of zipfile for a damaged archive: an unknown version, names that are not text, a
# password, compressed data that cannot be decompressed.
DAMAGED_ZIP = (
    *(zipfile.BadZipFile, zlib.error, struct.error),
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


class DamagedPickle(ValueError):
    """The bytes are not a complete pickle."""


class LongPickle(DamagedPickle):
    """A pickle has too many instructions; reading it would take minutes."""


def list_globals(file: IO[bytes]) -> list[str]:
    """Return the dotted names of a pickle's globals, each once, in the order of their first use.

    A name that is computed while the pickle is loaded is returned as ``?``.

    Args:
        file: a pickle, or a file of ``torch.save`` (in its old format, the pickle of the object is
            read).

    Raises:
        LongPickle: it has more than ``MOST_INSTRUCTIONS``.
        DamagedPickle: it ends early, or is not a pickle.

    Example:
        >>> import collections, pickle
        >>> list_globals(io.BytesIO(pickle.dumps(collections.OrderedDict())))
        ['collections.OrderedDict']
    """
    try:
        start = file.read(2)
        file.seek(0)
        if start == b"PK":
            file = io.BytesIO(_data_pickle(file))
        names = list(_names(file))
        if names == [str(_LEGACY_MAGIC)]:
            for _ in range(_LEGACY_PREAMBLE):
                names = list(_names(file))
        return [name for name in dict.fromkeys(names) if not name.isdecimal()]
    except LongPickle:
        raise
    except (IndexError, KeyError, StopIteration, EOFError, MemoryError, *DAMAGED_ZIP) as exc:
        raise DamagedPickle(str(exc)) from exc


def foreign_globals(names: list[str]) -> list[str]:
    """Return the names that do not build tensors, arrays or plain containers.

    >>> foreign_globals(["torch._utils._rebuild_tensor_v2", "mynet.Net"])
    ['mynet.Net']
    """
    return [name for name in names if not _HARMLESS.fullmatch(name)]


def _data_pickle(file: IO[bytes]) -> bytes:
    with zipfile.ZipFile(file) as archive:
        name = next(n for n in archive.namelist() if n.rpartition("/")[2] == "data.pkl")
        with archive.open(name) as record:
            data = record.read(_LONGEST_PICKLE + 1)
    if len(data) > _LONGEST_PICKLE:
        raise LongPickle(f"it is longer than {_LONGEST_PICKLE:,} bytes")
    return data


def _names(file: IO[bytes]) -> Iterator[str]:
    """Yield the globals of one pickle; the magic number of an old ``torch.save`` as its digits."""
    before = last = "?"  # the last two strings on the stack, which STACK_GLOBAL uses
    memo: dict[int, str] = {}
    for count, (opcode, arg, _) in enumerate(pickletools.genops(file)):
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
            yield str(arg).replace(" ", ".")
        elif effect == "stack global":
            yield f"{before}.{last}"
        elif effect == "extension":
            yield "?"
        elif effect == "number" and arg == _LEGACY_MAGIC:
            yield str(arg)


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
