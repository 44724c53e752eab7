"""Readers of the values of options: sizes in bytes, shapes, numbers, indices, KEY=VALUE pairs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from hookscope.errors import InputError, RequestError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}

_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}

_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)


class CommandLineText(str):
    """A value from the command line. The parameter that receives it determines its type."""

    __slots__ = ()


def read_byte_count(value: Any) -> int:
    """Parse a number of bytes: k, M, G are powers of 1000, Ki, Mi, Gi powers of 1024.

    >>> read_byte_count("500MB"), read_byte_count("1.5 GiB"), read_byte_count(42)
    (500000000, 1610612736, 42)
    """
    match = _BYTES.fullmatch(str(value))
    size = (_UNITS | _BINARY).get(match[2].lower()) if match else None
    if match is None or size is None:
        raise ValueError(f"{value!r} is not a valid size. Write 500MB, 2GB or 1GiB.")
    return int(float(match[1]) * size)


def read_shape(value: Any) -> tuple[int, ...]:
    """Parse the shape of a tensor; commas are accepted too, and the list of a settings file."""
    text = "x".join(map(str, value)) if isinstance(value, list) else str(value)
    parts = [part.strip() for part in re.split(r"[x,×]", text.lower())]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InputError(
            f"{text!r} is not a valid shape.", "Write positive numbers separated by x: 1x3x224x224."
        )
    return tuple(int(part) for part in parts)


def read_size(value: Any) -> int | tuple[int, int]:
    """Parse the size of an image in pixels: one side, or height and width.

    >>> read_size("224"), read_size("224x320")
    (224, (224, 320))
    """
    sides = value if isinstance(value, list) else str(value).lower().split("x")
    if not 1 <= len(sides) <= 2 or not all(str(s).isdecimal() and int(s) for s in sides):
        raise ValueError(
            f"{value!r} is not a valid size. Write 224, or HEIGHTxWIDTH such as 224x320."
        )
    numbers = [int(side) for side in sides]
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def read_numbers(value: Any) -> tuple[float, ...]:
    """Parse one number for each channel.

    >>> read_numbers("0.5,0.25")
    (0.5, 0.25)
    """
    try:
        return tuple(float(word) for word in read_items(value))
    except ValueError:
        raise ValueError(f"{value!r} is not a list of numbers. Write 0.485,0.456,0.406.") from None


def read_indices(value: Any) -> tuple[int, ...]:
    """Parse indices from 0, and ranges with their last index.

    >>> read_indices("0,3,8-11")
    (0, 3, 8, 9, 10, 11)
    """
    indices: list[int] = []
    for item in read_items(value):
        first, dash, last = str(item).strip().partition("-")
        ends = (first, last if dash else first)
        if not all(end.isdecimal() for end in ends):
            raise ValueError(f"{value!r} is not a list of channels. Write 0,3,8-11.")
        if int(ends[0]) > int(ends[1]):
            raise ValueError(f"The range {str(item).strip()!r} ends before it begins. Write 8-11.")
        indices += range(int(ends[0]), int(ends[1]) + 1)
    return tuple(dict.fromkeys(indices))


def read_divisors(value: Any) -> tuple[float, ...]:
    """Parse one number for each channel, none of them zero.

    >>> read_divisors("0.5,0.25")
    (0.5, 0.25)
    """
    values = read_numbers(value)
    if 0 in values:
        raise ValueError(f"{value!r} contains 0, and the channels are divided by these numbers.")
    return values


def read_items(value: Any) -> list[Any]:
    """Return the words between commas, or the items of a list of a settings file."""
    return list(value) if isinstance(value, list | tuple) else str(value).split(",")


def read_memory(pairs: tuple[str, ...]) -> dict[str, int]:
    """Parse ``DEVICE=SIZE`` pairs.

    >>> read_memory(("cuda:0=10GB", "cpu=1GiB"))
    {'cuda:0': 10000000000, 'cpu': 1073741824}
    """
    memory: dict[str, int] = {}
    for pair in pairs:
        device, equals, size = pair.partition("=")
        if not equals:
            raise ValueError(f"{pair!r} is not of the form DEVICE=SIZE, such as cuda:0=10GB.")
        if device in memory:
            raise ValueError(f"{pair!r} is given twice.")
        memory[device] = read_byte_count(size)
    return memory


def read_arguments(pairs: Iterable[str]) -> dict[str, CommandLineText]:
    """Parse ``KEY=VALUE`` pairs. A value stays a text until its parameter is known."""
    values: dict[str, CommandLineText] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise RequestError(f"{pair!r} is not KEY=VALUE.", "Write it as in width=8.")
        if key in values:
            raise RequestError(f"{key!r} is given twice.", "Give each key once.")
        values[key] = CommandLineText(value)
    return values


def read_prefixes(pairs: Iterable[str]) -> dict[str, str]:
    """Parse ``OLD=NEW`` pairs of prefixes of dotted names; either may be empty.

    >>> read_prefixes(["backbone.=features", "head="])
    {'backbone': 'features', 'head': ''}
    """
    found: dict[str, str] = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        old, new = old.strip("."), new.strip(".")
        if not equals:
            raise RequestError(f"{pair!r} is not OLD=NEW.", "Write it as in backbone=features.")
        if old in found:
            raise RequestError(f"{old!r} is given twice.", "Give each prefix once.")
        found[old] = new
    return found


def read_name_map(texts: Sequence[str]) -> dict[str, str] | str:
    """Parse ``OLD=NEW`` pairs of prefixes, or return the path of a file of rules.

    >>> read_name_map(["head="]), read_name_map(["map.toml"])
    ({'head': ''}, 'map.toml')
    """
    if not names_rules(texts):
        return read_prefixes(texts)
    if len(texts) > 1:
        raise RequestError(
            f"{' and '.join(texts)} are given, and a file of rules is the only map.",
            "Write all rules in one file.",
        )
    return texts[0]


def names_rules(map: Any) -> bool:
    """Whether a map of names, as Python or the command line gives it, is a file of rules.

    >>> names_rules("map.toml"), names_rules(["a=b"]), names_rules({"a": "b"}), names_rules(None)
    (True, False, False, False)
    """
    texts = [map] if isinstance(map, str | os.PathLike) else map or ()
    return any(os.fspath(text).endswith(".toml") for text in texts)
