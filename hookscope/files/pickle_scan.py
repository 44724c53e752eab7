"""What a pickle would call, read off its instructions. Nothing is ever unpickled.

Torch-free.
"""

from __future__ import annotations

import io
import pickletools
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # the first of the pickles in a file of an old torch.save
_BEFORE_THE_OBJECT = 3  # the magic number, the protocol and the machine's sizes
_MOST = 1 << 26  # bytes of the pickle in an archive, which may be compressed
MOST_INSTRUCTIONS = 4_000_000  # of a pickle; one of tensors has about 25 for each

# What zipfile raises of an archive in which bytes were changed: an unknown version, names that are
# no text, a password, a compression that does not unpack.
DAMAGED_ZIP = (
    *(zipfile.BadZipFile, zlib.error, struct.error),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError, OSError),
)

# What tensors, arrays and plain containers are put together with.
_PLAIN = re.compile(
    r"torch\.\w+|torch\.(_utils|_tensor|storage|serialization|nn\.parameter)\.\w+"
    r"|collections\.(OrderedDict|defaultdict|Counter|deque)|_codecs\.encode"
    r"|numpy\.(dtype|ndarray|bool_|u?int\d+|float\d+)"
    r"|numpy\._?core\.(multiarray|numeric)\.\w+"
    r"|(builtins|__builtin__)\.(set|frozenset|dict|list|tuple|int|float|complex|bool|bytes"
    r"|bytearray|slice|range)"
)


class DamagedPickle(ValueError):
    """The bytes are no whole pickle."""


class LongPickle(DamagedPickle):
    """A pickle has more instructions than are looked at; reading it would take minutes."""


def list_globals(file: IO[bytes]) -> list[str]:
    """Return the dotted names that a pickle looks up, each once, in the order of their first use.

    ``file`` holds a pickle, or what ``torch.save`` wrote (in its old format the pickle of the
    object itself is looked at). A name that is put together while loading stands as ``?``.

    Raises:
        LongPickle: it has more than ``MOST_INSTRUCTIONS``.
        DamagedPickle: it ends early, or is no pickle.

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
            for _ in range(_BEFORE_THE_OBJECT):
                names = list(_names(file))
        return [name for name in dict.fromkeys(names) if not name.isdecimal()]
    except LongPickle:
        raise
    except (IndexError, KeyError, StopIteration, EOFError, MemoryError, *DAMAGED_ZIP) as exc:
        raise DamagedPickle(str(exc)) from exc


def foreign_globals(names: list[str]) -> list[str]:
    """Return those of the names that are not there to build tensors, arrays and plain containers.

    >>> foreign(["torch._utils._rebuild_tensor_v2", "mynet.Net"])
    ['mynet.Net']
    """
    return [name for name in names if not _PLAIN.fullmatch(name)]


def _data_pickle(file: IO[bytes]) -> bytes:
    with zipfile.ZipFile(file) as archive:
        name = next(n for n in archive.namelist() if n.rpartition("/")[2] == "data.pkl")
        with archive.open(name) as record:
            data = record.read(_MOST + 1)
    if len(data) > _MOST:
        raise LongPickle(f"it is longer than {_MOST:,} bytes")
    return data


def _names(file: IO[bytes]) -> Iterator[str]:
    """Yield what one pickle looks up; the magic number of an old ``torch.save`` as its digits."""
    before = last = "?"  # the two texts pushed last; only those are ever looked up together
    memo: dict[int, str] = {}
    for count, (opcode, arg, _) in enumerate(pickletools.genops(file)):
        if count == MOST_INSTRUCTIONS:
            raise LongPickle(f"it has more than {MOST_INSTRUCTIONS:,} instructions")
        does = _DOES.get(opcode.name, "push")
        if does == "push":
            before, last = last, "?"
        elif does == "text":
            before, last = last, str(arg)
        elif does == "get":
            before, last = last, memo.get(arg or 0, "?")
        elif does == "put":
            memo[len(memo) if arg is None else arg] = last
        elif does == "global":
            yield str(arg).replace(" ", ".")
        elif does == "stack global":
            yield f"{before}.{last}"
        elif does == "extension":
            yield "?"
        elif does == "number" and arg == _LEGACY_MAGIC:
            yield str(arg)


def _does(name: str) -> str:
    """What an instruction does, as far as names go."""
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


_DOES = {opcode.name: _does(opcode.name) for opcode in pickletools.opcodes}
