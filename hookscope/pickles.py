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
_MOST = 1 << 26  # bytes of a pickle that are looked at

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


def globals_in(file: IO[bytes]) -> list[str]:
    """Return the dotted names that a pickle looks up, each once, in the order of their first use.

    ``file`` holds a pickle, or what ``torch.save`` wrote (in its old format the pickle of the
    object itself is looked at). A name that is put together while loading stands as ``?``.

    Raises:
        DamagedPickle: it ends early, or is no pickle.

    Example:
        >>> import collections, pickle
        >>> globals_in(io.BytesIO(pickle.dumps(collections.OrderedDict())))
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
    except (IndexError, KeyError, StopIteration, EOFError, MemoryError, *DAMAGED_ZIP) as exc:
        raise DamagedPickle(str(exc)) from exc


def foreign(names: list[str]) -> list[str]:
    """Return those of the names that are not there to build tensors, arrays and plain containers.

    >>> foreign(["torch._utils._rebuild_tensor_v2", "mynet.Net"])
    ['mynet.Net']
    """
    return [name for name in names if not _PLAIN.fullmatch(name)]


def _data_pickle(file: IO[bytes]) -> bytes:
    with zipfile.ZipFile(file) as archive:
        name = next(n for n in archive.namelist() if n.rpartition("/")[2] == "data.pkl")
        with archive.open(name) as record:
            return record.read(_MOST)


def _names(file: IO[bytes]) -> Iterator[str]:
    """Yield what one pickle looks up; the magic number of an old ``torch.save`` as its digits."""
    pushed: list[str] = []
    memo: dict[int, str] = {}
    for opcode, arg, place in pickletools.genops(file):
        name = opcode.name
        if name in ("GLOBAL", "INST"):
            yield str(arg).replace(" ", ".")
        elif name == "STACK_GLOBAL":
            yield ".".join(pushed[-2:])
        elif name == "LONG1" and arg == _LEGACY_MAGIC:
            yield str(arg)
        elif name.startswith(("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT")):
            memo[len(memo) if arg is None else arg] = pushed[-1] if pushed else "?"
        elif name.endswith("GET"):
            pushed.append(memo.get(arg or 0, "?"))
        elif name.startswith("EXT"):
            yield "?"
        elif "UNICODE" in name or name.endswith("STRING"):
            pushed.append(str(arg))
        elif name not in ("PROTO", "FRAME"):
            pushed.append("?")
        if place is not None and place > _MOST:
            return
