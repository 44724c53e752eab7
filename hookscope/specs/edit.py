"""Edits: the grammar of ``--edit`` and ``--grad-edit``, and the tables of their operations.

In the formulas ``x`` is the activation, ``g`` its gradient, and what follows the colon is named.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from hookscope.errors import EditError
from hookscope.files.output_path import holds_features
from hookscope.files.shell_words import quote_word
from hookscope.files.suggestions import did_you_mean
from hookscope.specs.choices import DTYPES, GRADIENT_HOOKS
from hookscope.specs.patterns import compile_pattern
from hookscope.specs.position_spec import Positions, cut_quoted, find_positions, split_positions
from hookscope.specs.tensor_key import INPUT, OUTPUT, OUTPUT_GRAD

# The part before the equals sign: a glob, a call, and channels. A last bracket that holds only
# numbers means channels; to match one character of a set of digits, write {1,2}.
_TARGET = re.compile(r"(.+?)(?::(\d+))?(?:\[([\d,\s-]*)\])?", re.DOTALL)
_SPECIAL = re.compile(r"[@:*?\[\]{}]")
_AFTER_NAME = re.compile(r"(:\d+)?(@|\[[\d,\s-]*\]=|=)")
_RANGE = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")
_MOST = 1 << 20  # channels that one range may name
WEIGHTS = "weights"  # the kind of an edit that changes the parameters of a layer


class Edit(NamedTuple):
    """One parsed edit."""

    text: str
    kind: str
    pattern: str
    call: int | None
    channels: tuple[int, ...] | None
    name: str
    argument: Any
    positions: Positions | None = None

    @property
    def what(self) -> str:
        """The operation as typed, ``scale:0.5``."""
        return self.text[cut_quoted(self.text).index("=") + 1 :]


def parse_edits(specs: str | Iterable[str], *, gradients: bool = False) -> tuple[Edit, ...]:
    """Parse edits, in the order given; a single text is accepted too.

    >>> [edit] = parse_edits("layer3.0.relu:2[3,7,10-12]=scale:0.5")
    >>> edit.pattern, edit.call, edit.channels, edit.name, edit.argument
    ('layer3.0.relu', 2, (3, 7, 10, 11, 12), 'scale', 0.5)
    """
    listed = [specs] if isinstance(specs, str) else list(specs)
    return tuple(_read(spec, gradients) for spec in listed)


def files_read_by(specs: Iterable[str]) -> list[str]:
    """Return the files that edits of activations read."""
    sources = [edit.argument for edit in parse_edits(specs)]
    return [source.path for source in sources if isinstance(source, TensorSource)]


def check_comparison(compare: bool, *changes: object) -> None:
    """Raise EditError if ``compare`` is set and the run has no edits and no hooks."""
    if compare and not any(changes):
        raise EditError(
            "--compare compares with a run without edits and hooks, but this run has none.",
            "Add --edit LAYER=OPERATION, or leave out --compare.",
        )


def check_second_order(penalty: object, grad_edits: object, kinds: Iterable[str]) -> None:
    """Raise EditError if a penalty is combined with edits or hooks of gradients.

    The second backward pass reads values that the first one saved before the change, so the result
    would differ from the same hook's on the tensor itself.
    """
    hooked = [kind for kind in kinds if kind in GRADIENT_HOOKS]
    if penalty and (grad_edits or hooked):
        change = "--grad-edit" if grad_edits else f"a hook of kind {hooked[0]}"
        raise EditError(
            f"--penalty differentiates the gradients again, but {change} changes them.",
            "Leave out one of the two.",
        )


def read_again(edit: Edit, names: Iterable[str]) -> Edit:
    """Return an edit, whose pattern is one of the ``names`` if its text begins with that name.

    Characters in the name then mean nothing else: not a call, positions, channels or a glob.

    >>> [edit] = parse_edits("block[0]=zero")
    >>> edit.pattern, edit.channels
    ('block', (0,))
    >>> edit = read_again(edit, ["block[0]"])
    >>> edit.pattern, edit.channels
    ('block[0]', None)
    """
    side, text = "", edit.text
    if edit.kind == INPUT:
        side, text = text[: len("input:")], text.removeprefix("input:")
    for name in sorted(filter(_SPECIAL.search, names), key=len, reverse=True):
        rest = text.removeprefix(name)
        if rest != text and _AFTER_NAME.match(rest):
            again = _read(f"{side}_{rest}", edit.kind == OUTPUT_GRAD)
            return again._replace(text=edit.text, pattern=name)
    return edit


def _read(spec: str, gradients: bool) -> Edit:
    flag = "--grad-edit" if gradients else "--edit"
    target, equals, what = _split(str(spec))
    side = INPUT if target.startswith("input:") else OUTPUT
    target, positions = _cut_positions(target.removeprefix("input:"))
    match = _TARGET.fullmatch(target)
    if not equals or not what or match is None or match[1].startswith("!"):
        raise EditError(
            f"{spec!r} is not a valid edit.",
            f"Write {flag} LAYER=OPERATION, such as {quote_word('layer1.*=scale:0.5')}. A leading !"
            " is not allowed here.",
        )
    if gradients and side == INPUT:
        raise EditError(
            f"{spec!r} names an input, but --grad-edit changes gradients at a module's output.",
            "Name the layer that returns this input.",
        )
    compile_pattern(match[1])
    name, _, argument = what.partition(":")
    known = GRADIENT_OPERATIONS if gradients else VALUE_OPERATIONS
    if name not in known:
        other = VALUE_OPERATIONS if gradients else GRADIENT_OPERATIONS
        elsewhere = (
            f"It belongs to {'--edit' if gradients else '--grad-edit'}." if name in other else ""
        )
        raise EditError(
            f"{spec!r}: there is no operation {name!r} for {flag}.",
            f"{elsewhere or did_you_mean(name, known)} Use {', '.join(known)}.".strip(),
        )
    call = int(match[2]) if match[2] else None
    if call == 0:
        raise EditError(f"{spec!r} names call 0.", "Calls are counted from 1.")
    channels = None if match[3] is None else _channels(spec, match[3])
    value = _argument(spec, known[name], argument)
    kind = OUTPUT_GRAD if gradients else side
    if known[name].changes_weights:
        _check_whole(spec, f"{match[1]}={what}", name, (side == INPUT, call, positions, match[3]))
        kind = WEIGHTS
    return Edit(spec, kind, match[1], call, channels, name, value, positions)


def _check_whole(spec: str, plain: str, name: str, parts: tuple[Any, ...]) -> None:
    """Raise EditError if an edit of weights names an input, a call, positions or channels."""
    for part, given in zip(
        ("the prefix input:", "a call", "positions", "channels"), parts, strict=True
    ):
        if given not in (None, False):
            raise EditError(
                f"{spec!r}: {name} changes the weights of the layer for the whole run, so {part}"
                " cannot be used.",
                f"Write {quote_word(plain)}.",
            )


def _split(spec: str) -> tuple[str, str, str]:
    """The target, the first equals sign outside of a token in quotes, and the operation."""
    at = cut_quoted(spec).find("=")
    return (spec, "", "") if at < 0 else (spec[:at], "=", spec[at + 1 :])


def _cut_positions(target: str) -> tuple[str, Positions | None]:
    """The target without its positions, which are before the channels."""
    at = find_positions(target)
    if at < 0:
        return target, None
    opening = cut_quoted(target).find("[", at)
    end = len(target) if opening < 0 else opening
    return target[:at] + target[end:], split_positions(target[:end])[1]


def _argument(spec: str, formula: EditOperation, text: str) -> Any:
    try:
        return formula.read(text)
    except ValueError as error:
        raise EditError(f"{spec!r}: {error}.", f"Write {formula.example}.") from None


def _channels(spec: str, text: str) -> tuple[int, ...]:
    """Parse ``3,7,10-12`` into ascending numbers without duplicates."""
    channels: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 <= last - first < _MOST:
            raise EditError(
                f"{spec!r}: {part!r} is not a valid channel or range of channels.",
                "Write numbers and ranges: [3,7,10-12].",
            )
        channels.update(range(first, last + 1))
    return tuple(sorted(channels))


class EditOperation(NamedTuple):
    """One operation by name."""

    name: str
    form: str
    example: str
    formula: str
    read: Callable[[str], Any]
    changes_weights: bool = False


def _nothing(text: str) -> None:
    if text:
        raise ValueError(f"it takes no argument, but {text!r} is given")


def _number(low: float = -math.inf, below: float = math.inf) -> Callable[[str], float]:
    """Return a parser of finite numbers from ``low`` (inclusive) to ``below`` (exclusive)."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(
                f"{text!r} is not a number" if text else "a number is missing"
            ) from None
        if not (low <= value < below and math.isfinite(value)):
            raise ValueError(f"{text} is out of range")
        return value

    return read


def _noise_size(text: str) -> tuple[float, bool]:
    """Parse a size, and whether it is a multiple of the tensor's standard deviation."""
    return _number(0)(text.removesuffix("std")), text.endswith("std")


def _bounds(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not LOW,HIGH") from None
    if math.isnan(low) or math.isnan(high):
        raise ValueError(f"{text!r} contains NaN")
    if not low <= high:
        raise ValueError(f"{low:g} is greater than {high:g}")
    return low, high


def _bits(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= 16:
            raise ValueError(f"{text!r} is not a number of bits from {least} to 16")
        return int(text)

    return read


def _choice(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is not one of {', '.join(filter(None, choices))}")
        return text

    return read


class TensorSource(NamedTuple):
    """A tensor of a file: ``FILE#KEY[:SCALE]``, or an array, ``FILE.npy[:SCALE]``."""

    path: str
    key: str | None = None
    scale: float = 1.0
    typed: str = ""


def _source(*, scaled: bool = False, keyed: bool = True) -> Callable[[str], TensorSource]:
    """Return a parser of a tensor in a file; ``keyed`` if it must name one."""

    def read(text: str) -> TensorSource:
        if _is_source(text):
            path, typed = text, ""
        else:
            path, _, typed = text.rpartition("#")
            if not path and scaled and _is_source(text.rpartition(":")[0]):
                path, typed = text.rpartition(":")[0], text
        if not path:
            raise ValueError(f"{text!r} is not FILE#KEY" if keyed else f"there is no file {text!r}")
        if not _is_source(path):
            raise ValueError(f"there is no file {path!r}")
        array = path.endswith(".npy")
        if not typed and keyed and not array:
            raise ValueError(f"{text!r} is not FILE#KEY")
        if array and typed and typed != text:
            raise ValueError(f"{path!r} is a single array; leave out the part after the #")
        key, colon, number = typed.rpartition(":")
        scale = _scale(number) if scaled and colon else None
        if scale is None:
            return TensorSource(path, typed or None, 1.0, typed)
        return TensorSource(path, None if array else key, scale, "" if array else typed)

    return read


def _is_source(path: str) -> bool:
    return bool(path) and (os.path.isfile(path) or holds_features(path))


def _scale(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _table(*entries: EditOperation) -> dict[str, EditOperation]:
    return {entry.name: entry for entry in entries}


VALUE_OPERATIONS = _table(
    EditOperation("zero", "zero", "zero", "0", _nothing),
    EditOperation("scale", "scale:A", "scale:0.5", "A x", _number()),
    EditOperation("clamp", "clamp:LOW,HIGH", "clamp:-1,1", "min(max(x, LOW), HIGH)", _bounds),
    EditOperation("clip", "clip:V", "clip:1.0", "min(max(x, -V), V), as clamp:-V,V", _number(0)),
    EditOperation(
        "noise",
        "noise:S[std]",
        "noise:0.1 or noise:1std",
        "x + S n, n standard normal from the seed; with std: x + S std(x) n",
        _noise_size,
    ),
    EditOperation(
        "mean",
        "mean[:spatial|:channel]",
        "mean or mean:spatial or mean:channel",
        "mean of x over the batch; over space, for each sample and channel; or over the batch and"
        " space, for each channel",
        _choice("", "batch", "spatial", "channel"),
    ),
    EditOperation(
        "add",
        "add:FILE#KEY[:SCALE]",
        "add:steer.safetensors#v:4",
        "x + SCALE v, v tensor KEY of FILE; of a features folder, the mean of its rows",
        _source(scaled=True),
    ),
    EditOperation(
        "patch",
        "patch:FILE[#KEY]",
        "patch:clean.safetensors, a file that capture wrote",
        "tensor KEY of FILE, or the same key of that capture",
        _source(keyed=False),
    ),
    EditOperation(
        "project",
        "project:FILE#KEY",
        "project:steer.safetensors#v",
        "x - v (x . v) / (v . v): x without its part along v, over the channels",
        _source(),
    ),
    EditOperation(
        "quantize",
        "quantize:BITS",
        "quantize:8",
        "s (clamp(round(x / s) + z, 0, 2^BITS - 1) - z), s and z from x's range and 0",
        _bits(1),
    ),
    EditOperation(
        "quantize-weights",
        "quantize-weights:BITS",
        "quantize-weights:8",
        "changes the weights: s round(w / s), s = max |w| / (2^(BITS - 1) - 1) of each output"
        " channel",
        _bits(2),  # the grid is symmetric
        changes_weights=True,
    ),
    EditOperation(
        "dropout",
        "dropout:P",
        "dropout:0.2",
        "x m / (1 - P), m = 0 with probability P, else 1, from the seed",
        _number(0, 1),
    ),
    EditOperation(
        "dtype", "dtype:DTYPE", "dtype:bfloat16", "x rounded to DTYPE and back", _choice(*DTYPES)
    ),
)

GRADIENT_OPERATIONS = _table(
    EditOperation("clip", "clip:V", "clip:1.0", "min(max(g, -V), V), as clamp:-V,V", _number(0)),
    EditOperation("clamp", "clamp:LOW,HIGH", "clamp:-1,1", "min(max(g, LOW), HIGH)", _bounds),
    EditOperation("norm", "norm:V", "norm:1.0", "g min(1, V / (||g|| + 1e-6))", _number(0)),
    EditOperation("scale", "scale:A", "scale:0.5", "A g", _number()),
    EditOperation("zero", "zero", "zero", "0", _nothing),
    EditOperation(
        "noise",
        "noise:S[std]",
        "noise:0.1 or noise:1std",
        "g + S n, n standard normal from the seed; with std: g + S std(g) n",
        _noise_size,
    ),
    EditOperation("sign", "sign", "sign", "-1, 0 or 1", _nothing),
    EditOperation("l2", "l2:A", "l2:0.01", "g + A x", _number()),
    EditOperation("l1", "l1:A", "l1:0.01", "g + A sign(x)", _number()),
    EditOperation("reverse", "reverse", "reverse", "-g", _nothing),
)
