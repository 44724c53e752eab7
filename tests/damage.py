"""Damage to files, and what every reader has to make of it: a sentence and exit status 2."""

from __future__ import annotations

import copy
import io
import json
import random
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from cProfile import Profile
from pathlib import Path
from typing import Any

import pytest

from hookscope.errors import HookscopeError

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

# Bytes that reading a damaged file of a few kilobytes takes; 100 MB of them buffer an index.
MOST_MEMORY = 160 << 20
_MOST_ADDRESSES = 1 << 30  # bytes beyond those that the process has, whoever asks for them
_SIZES = {1: "B", 2: "H", 4: "I", 8: "Q"}
# What stands in a value's place: of every type of JSON, some of them far from what is sensible.
_OTHERS = (None, True, -1, 0, 10**18, 10**30, 1e308, 1.5, "", "x", "NaN", "\n\x1b[31m", "-Infinity")


class CountedCalls:
    """Counts the calls of functions in a block: the same number on every machine."""

    number = 0

    def __enter__(self) -> CountedCalls:
        self._profile = Profile()
        self._profile.enable()
        return self

    def __exit__(self, *error: object) -> None:
        self._profile.disable()
        self.number = sum(entry.callcount for entry in self._profile.getstats())


@contextmanager
def few_addresses() -> Iterator[None]:
    """Let the process take little more memory than it has, so that an attempt is an error."""
    status = Path("/proc/self/status")
    if resource is None or not status.exists():
        yield
        return
    taken = next(line for line in status.read_text().splitlines() if line.startswith("VmSize"))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1024 * int(taken.split()[1]) + _MOST_ADDRESSES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def cut(data: bytes) -> Iterator[bytes]:
    """The beginnings of a file, of which the longest lacks one byte."""
    yield from (data[: len(data) * part // 8] for part in range(8))
    yield data[:-1]


def damaged(data: bytes, rounds: int, seed: int) -> Iterator[bytes]:
    """The file cut off, with bytes changed, taken out or put in, and with long runs of one byte."""
    yield from list(cut(data))[:8]
    yield from changed(data, rounds, seed)


def changed(data: bytes, rounds: int, seed: int) -> Iterator[bytes]:
    """The file with bytes changed, taken out or put in, and with long runs of one byte."""
    source = random.Random(seed)
    for _ in range(rounds):
        made = bytearray(data)
        for _ in range(source.choice((1, 1, 2, 8))):
            # the head matters most, and is a small part of most files
            end = source.choice((16, 64, 256, len(made)))
            at = source.randrange(max(1, min(end, len(made))))
            how = source.randrange(4)
            if how == 0:
                made[at : at + 1] = bytes([source.randrange(256)])
            elif how == 1:
                del made[at : at + source.randrange(1, 9)]
            elif how == 2:
                made[at:at] = source.randbytes(source.randrange(1, 9))
            else:
                made[at : at + 4] = bytes([source.choice((0, 0x7F, 0xFF))]) * 4
        yield bytes(made)


def recounted(data: bytes, rounds: int, seed: int) -> Iterator[bytes]:
    """The file with numbers of one to eight bytes changed to extreme ones, and with parts of it
    repeated, exchanged or many times in a row.
    """
    source = random.Random(seed)
    for _ in range(rounds):
        made = bytearray(data)
        for _ in range(source.choice((1, 1, 2, 4))):
            at, other = (source.randrange(max(1, len(made))) for _ in range(2))
            length = source.choice((2, 8, 32, 128))
            how = source.randrange(4)
            if how < 2:
                size = source.choice(tuple(_SIZES))
                largest = (1 << 8 * size) - 1
                value = source.choice((0, 1, largest, largest >> 1, 1 << 8 * size - 1, largest - 7))
                made[at : at + size] = struct.pack(f"<{_SIZES[size]}", value)
            elif how == 2:
                made[at:at] = made[other : other + length] * source.choice((1, 2, 100))
            else:
                made[at : at + length] = made[other : other + length]
        yield bytes(made)


def altered(value: Any, rounds: int, seed: int) -> Iterator[Any]:
    """JSON with a value or two taken out, renamed, or exchanged for one of another type."""
    source = random.Random(seed)
    for _ in range(rounds):
        made = copy.deepcopy(value)
        for _ in range(source.choice((1, 1, 2))):
            if places := list(_places(made)):
                _alter(*source.choice(places), source)
        yield made


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    inner = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in inner:
        yield value, key
        yield from _places(value[key])


def _alter(holder: Any, key: Any, source: random.Random) -> None:
    how = source.randrange(5)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        holder["x"] = holder.pop(key)
    elif how == 2:
        holder[key] = source.choice(([], {}, [[]], {"a": 1}, [1, 2]))
    else:
        holder[key] = source.choice(_OTHERS)


def repacked(data: bytes, rounds: int, seed: int) -> Iterator[bytes]:
    """A zip archive with right checksums, in which one record is changed."""
    source = random.Random(seed)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    described = [name for name in records if name.endswith((".pkl", ".json", ".py"))]
    for n in range(rounds):
        name = source.choice(
            described if described and n % 3 else [n for n in records if records[n]]
        )
        if name.endswith(".json") and n % 2:
            other = json.dumps(next(altered(json.loads(records[name]), 1, n))).encode()
        else:
            other = list(source.choice((damaged, recounted))(records[name], 1, n))[-1]
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if n % 5 == 4 else 0) as made:
            for each, record in records.items():
                made.writestr(each, other if each == name else record)
        yield buffer.getvalue()


def endure(
    path: Path,
    contents: Iterable[bytes],
    read: Callable[[], object],
    kind: type[HookscopeError] = HookscopeError,
    named: Sequence[str] = ("",),
) -> int:
    """Have each of ``contents`` read from ``path``; return how many were refused.

    A file may be read in spite of its damage. One that is refused is refused in one sentence that
    contains one of ``named``, by an error of ``kind`` with exit status 2. Little memory is taken.
    """
    refused = 0
    tracemalloc.start(1)
    try:
        for content in contents:
            path.write_bytes(content)
            tracemalloc.reset_peak()
            try:
                with warnings.catch_warnings(), few_addresses():
                    warnings.simplefilter("ignore")
                    read()
            except kind as error:
                refused += 1
                assert error.exit_code == 2, error
                assert error.message and "\n" not in error.message
                assert len(error.message) < 1100 and len(error.hint) < 2100
                assert any(name in str(error) for name in named), error
            assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY + 40 * len(content)
    finally:
        tracemalloc.stop()
    return refused


def few_or_many(few: int, many: int) -> list[Any]:
    """Rounds and seed of a quick test, and those of three long ones."""
    long = [pytest.param(many, seed, marks=pytest.mark.exhaustive) for seed in range(1, 4)]
    return [(few, 0), *long]
