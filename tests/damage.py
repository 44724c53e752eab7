"""Damage to files, and what every reader has to make of it: a sentence and exit status 2."""

from __future__ import annotations

import copy
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hookscope.errors import HookscopeError

MOST_CALLS = 300_000_000  # of functions, while one damaged file of a few kilobytes is read
# What stands in a value's place: of every type of JSON, some of them far from what is sensible.
_OTHERS = (None, True, -1, 0, 10**18, 10**30, 1e308, 1.5, "", "x", "NaN", "\n\x1b[31m", "-Infinity")


class CountedCalls:
    """Counts the calls and returns of functions in a block: the same number on every machine."""

    def __init__(self) -> None:
        self.number = 0

    def __enter__(self) -> CountedCalls:
        sys.setprofile(self._count)
        return self

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        self.number += 1

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)


def damaged(data: bytes, rounds: int, seed: int) -> Iterator[bytes]:
    """The file cut off, with bytes changed, taken out or put in, and with long runs of one byte."""
    source = random.Random(seed)
    yield from (data[: len(data) * part // 8] for part in range(8))
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


def endure(
    path: Path,
    contents: Iterable[bytes],
    read: Callable[[], object],
    kind: type[HookscopeError] = HookscopeError,
) -> int:
    """Have each of ``contents`` read from ``path``; return how many were refused.

    A file may be read in spite of its damage. One that is refused is refused in one sentence, by
    an error of ``kind`` with exit status 2, and after little work.
    """
    refused = 0
    for content in contents:
        path.write_bytes(content)
        calls = CountedCalls()
        try:
            with warnings.catch_warnings(), calls:
                warnings.simplefilter("ignore")
                read()
        except kind as error:
            refused += 1
            assert error.exit_code == 2, error
            assert error.message
            assert "\n" not in error.message
        assert calls.number < MOST_CALLS
    return refused


def few_or_many(few: int, many: int) -> list[Any]:
    """Rounds and seed of a quick test, and those of three long ones."""
    long = [pytest.param(many, seed, marks=pytest.mark.exhaustive) for seed in range(1, 4)]
    return [(few, 0), *long]
