"""The tables of edits: what each computes, written out. Torch-free, so help can show it.

In the formulas ``x`` is the activation, ``g`` its gradient, and what follows the colon is named.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from hookscope.specs.choices import DTYPES


class Formula(NamedTuple):
    """One operation by name.

    Attributes:
        name: the word behind the equals sign.
        form: the word with what its argument stands for.
        example: the operation as one would type it.
        formula: what is computed.
        read: the argument's text to its value; a ValueError says what is wrong with it.
    """

    name: str
    form: str
    example: str
    formula: str
    read: Callable[[str], Any]


def _nothing(text: str) -> None:
    if text:
        raise ValueError(f"it takes no argument, and {text!r} is given")


def _number(low: float = -math.inf, below: float = math.inf) -> Callable[[str], float]:
    """A reader of a finite number from ``low`` on and ``below`` another."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is no number" if text else "a number is missing") from None
        if not (low <= value < below and math.isfinite(value)):
            raise ValueError(f"{text} is out of range")
        return value

    return read


def _noise_size(text: str) -> tuple[float, bool]:
    """A size, and whether it counts standard deviations of what the noise is added to."""
    return _number(0)(text.removesuffix("std")), text.endswith("std")


def _bounds(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} are no two numbers") from None
    if math.isnan(low) or math.isnan(high):
        raise ValueError(f"{text!r} are no two numbers")
    if not low <= high:
        raise ValueError(f"{low:g} is not below {high:g}")
    return low, high


def _bits(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 16:
        raise ValueError(f"{text!r} is no number of bits from 1 to 16")
    return int(text)


def _choice(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(filter(None, words))}")
        return text

    return read


def _file(text: str) -> str:
    if not os.path.isfile(text):
        alone = "; it takes a file alone" if os.path.isfile(text.rpartition("#")[0]) else ""
        raise ValueError(f"there is no file {text!r}{alone}")
    return text


def _file_and_key(text: str) -> tuple[str, str]:
    file, hash_sign, key = text.rpartition("#")
    if not hash_sign or not file or not key:
        raise ValueError(f"{text!r} does not name a file and a key in it")
    return _file(file), key


def _table(*entries: Formula) -> dict[str, Formula]:
    return {entry.name: entry for entry in entries}


VALUES = _table(
    Formula("zero", "zero", "zero", "0", _nothing),
    Formula("scale", "scale:A", "scale:0.5", "A x", _number()),
    Formula("clamp", "clamp:LOW,HIGH", "clamp:-1,1", "min(max(x, LOW), HIGH)", _bounds),
    Formula(
        "noise",
        "noise:S[std]",
        "noise:0.1 or noise:1std",
        "x + S n, n standard normal from the seed; with std: x + S std(x) n",
        _noise_size,
    ),
    Formula(
        "mean",
        "mean[:spatial|:channel]",
        "mean or mean:spatial or mean:channel",
        "mean of x over the batch; over space, for each sample and channel; or over the batch and"
        " space, for each channel",
        _choice("", "batch", "spatial", "channel"),
    ),
    Formula(
        "add", "add:FILE#KEY", "add:mean.safetensors#fc/output", "x + tensor KEY", _file_and_key
    ),
    Formula(
        "patch", "patch:FILE", "patch:clean.safetensors", "the same key of that capture", _file
    ),
    Formula(
        "quantize",
        "quantize:BITS",
        "quantize:8",
        "s (clamp(round(x / s) + z, 0, 2^BITS - 1) - z), s and z from x's range and 0",
        _bits,
    ),
    Formula(
        "dropout",
        "dropout:P",
        "dropout:0.2",
        "x m / (1 - P), m = 0 with probability P, else 1, from the seed",
        _number(0, 1),
    ),
    Formula(
        "dtype", "dtype:DTYPE", "dtype:bfloat16", "x rounded to DTYPE and back", _choice(*DTYPES)
    ),
)

GRADIENTS = _table(
    Formula("clip", "clip:V", "clip:1.0", "min(max(g, -V), V)", _number(0)),
    Formula("norm", "norm:V", "norm:1.0", "g min(1, V / (||g|| + 1e-6))", _number(0)),
    Formula("scale", "scale:A", "scale:0.5", "A g", _number()),
    Formula("zero", "zero", "zero", "0", _nothing),
    Formula(
        "noise",
        "noise:S[std]",
        "noise:0.1 or noise:1std",
        "g + S n, n standard normal from the seed; with std: g + S std(g) n",
        _noise_size,
    ),
    Formula("sign", "sign", "sign", "-1, 0 or 1", _nothing),
    Formula("l2", "l2:A", "l2:0.01", "g + A x", _number()),
    Formula("l1", "l1:A", "l1:0.01", "g + A sign(x)", _number()),
    Formula("reverse", "reverse", "reverse", "-g", _nothing),
)
