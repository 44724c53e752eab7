"""Keys of tensors in a file: their kinds, and how users select them and parts of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import EllipsisType

from hookscope.errors import RequestError
from hookscope.files.shell_words import cite_command
from hookscope.files.suggestions import did_you_mean
from hookscope.files.words import shape_label
from hookscope.specs.patterns import compile_pattern

Index = tuple[int | slice | EllipsisType, ...]
WHOLE: Index = (...,)

_SLICE = re.compile(r"(.*?)\[([^\]a-zA-Z!?*]*)\]", re.DOTALL)
_ENTRY = re.compile(r"(-?\d+)|(-?\d*):(-?\d*)(?::(-?\d*))?|(\.\.\.)")

OUTPUT, INPUT = "output", "input"
OUTPUT_GRAD, INPUT_GRAD, PARAM_GRAD = "output.grad", "input.grad", "param.grad"
OP, OP_GRAD = "op", "op.grad"  # the result of a function called between modules
ATTENTION = "attention"  # the weights of one call of attention
STATE, GATE = "state", "gate"  # of a recurrent layer, at each step
EMITTED = "emitted"  # a value that a user hook passed to hookscope.emit
CAM = "cam"  # a class activation map over the image
ATTRIBUTION = "attribution"  # the contribution of each entry of the model's input to the score
COLUMN = "column"  # numbers that are stored beside the rows of a dataset, such as labels
WEIGHT = "weight"  # a tensor of a file of weights
# The suffix of a kind, and of a tensor's name, for the value before an edit.
UNEDITED = ".unedited"
# The values of --what with their kinds: of a forward pass, and of a backward pass.
VALUE_KINDS = {"output": OUTPUT, "input": INPUT}
CAPTURED_KINDS = {**VALUE_KINDS, "state": STATE}  # capture alone
GRADIENT_KINDS = {"output": OUTPUT_GRAD, "input": INPUT_GRAD, "param": PARAM_GRAD}
# What a gradient penalty and an optimizer's step record.
SCORE_GRAD, PARAM_UPDATE = "score.grad", "param.update"


def layer_of_key(key: str) -> Iterator[str]:
    """Yield the layer that a key of a capture belongs to.

    >>> list(layer_of_key("layer3.0/output"))
    ['layer3.0']
    """
    yield key.rpartition("/")[0]


def modules_above(name: str) -> Iterator[str]:
    """Yield the modules that contain a tensor of a file of weights, the innermost first."""
    for at in range(len(name) - 1, 0, -1):
        if name[at] in "./":
            yield name[:at]


def choose_keys(
    selectors: Sequence[str],
    keys: Sequence[str],
    path: object,
    listing: str = "",
    holders: Callable[[str], Iterator[str]] = layer_of_key,
) -> list[tuple[str, Index]]:
    """Return the keys that ``selectors`` select, each with a slice.

    A selector is a key, a glob of keys, or the name or glob of layers for all their records.
    Numbers in brackets at its end are a slice as in numpy. Keys come in the order of the selectors,
    those of one selector in the order of ``keys``.

    >>> choose_keys(["conv?", "fc/output[0,...]"], ["conv1/output", "fc/output"], "a")
    [('conv1/output', (Ellipsis,)), ('fc/output', (0, Ellipsis))]
    """
    found: dict[tuple[str, str], tuple[str, Index]] = {}
    held = {name for key in keys for name in holders(key)}
    for selector in selectors:
        is_name = selector in keys or selector in held
        pattern, index = (selector, WHOLE) if is_name else split_slice(selector)
        chosen = [pattern] if pattern in keys else _matching(pattern, keys, holders)
        if not chosen and index != WHOLE:  # conv[12] may be a glob
            chosen, index = _matching(selector, keys, holders), WHOLE
        if not chosen:
            near = did_you_mean(pattern, [*keys, *(name for key in keys for name in holders(key))])
            listed = (
                listing or f"{cite_command('hookscope', 'show', str(path))} lists what is in it."
            )
            raise RequestError(f"{pattern!r} matches nothing in {path}.", near or listed)
        found |= {(key, str(index)): (key, index) for key in chosen}
    return list(found.values())


def split_slice(selector: str) -> tuple[str, Index]:
    """Split a selector into the part before its slice, and the slice."""
    match = _SLICE.fullmatch(selector)
    if match is None:
        return selector, WHOLE
    return match[1], tuple(_entry(text.strip(), match[2]) for text in match[2].split(","))


def slice_text(index: Index) -> str:
    """Return a slice as text to append to a key; empty for the whole tensor."""
    return "" if index == WHOLE else f"[{','.join(map(_text, index))}]"


def _matching(
    pattern: str, keys: Iterable[str], holders: Callable[[str], Iterator[str]]
) -> list[str]:
    test = compile_pattern(pattern)
    exact = [key for key in keys if pattern in holders(key)]
    return exact or [key for key in keys if test(key) or any(map(test, holders(key)))]


def _entry(text: str, whole: str) -> int | slice | EllipsisType:
    match = _ENTRY.fullmatch(text)
    if match is None or match[4] in ("0", "-0"):
        raise RequestError(
            f"Cannot read the slice [{whole}].",
            "Write numbers, a:b, a:b:step or ... with commas between: [0,3] or [0,:,4:8].",
        )
    if match[1]:
        return int(match[1])
    if match[5]:
        return ...
    return slice(*(int(part) if part else None for part in match.group(2, 3, 4)))


def _text(entry: int | slice | EllipsisType) -> str:
    if not isinstance(entry, slice):
        return "..." if entry is ... else str(entry)
    parts = ["" if part is None else str(part) for part in (entry.start, entry.stop)]
    return ":".join([*parts, str(entry.step)] if entry.step is not None else parts)


def is_gradient(kind: str) -> bool:
    """Whether a record of this kind is a gradient."""
    return kind.removesuffix(UNEDITED).endswith(".grad")


def resolve_kinds(what: str | Iterable[str], known: Mapping[str, str]) -> set[str]:
    """Return the kinds of records that ``--what`` selects.

    >>> sorted(resolve_kinds("output,param", GRADIENT_KINDS))
    ['output.grad', 'param.grad']
    """
    names = [name.strip() for name in what.split(",")] if isinstance(what, str) else list(what)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        message = f"{unknown[0]!r} cannot be recorded." if unknown else "--what is empty."
        raise RequestError(message, f"Choose among {', '.join(known)}.")
    return {known[name] for name in names}


def slice_error(key: str, shape: Sequence[int], error: IndexError) -> RequestError:
    """Return the error for a slice that does not fit a tensor."""
    return RequestError(
        f"{key} is {shape_label(shape)}, and the slice does not fit: {error}.",
        "Count from 0, and give at most one entry for each dimension.",
    )
