"""Selection of tensors in a file, and of a part of each: ``layer3.*/output[0,3]``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import EllipsisType

from hookscope.errors import RequestError
from hookscope.files.shell_words import cite_command
from hookscope.files.suggestions import did_you_mean
from hookscope.specs.patterns import compile_pattern

Index = tuple[int | slice | EllipsisType, ...]
WHOLE: Index = (...,)

_SLICE = re.compile(r"(.*?)\[([^\]a-zA-Z!?*]*)\]", re.DOTALL)
_ENTRY = re.compile(r"(-?\d+)|(-?\d*):(-?\d*)(?::(-?\d*))?|(\.\.\.)")


def layer_of_key(key: str) -> Iterator[str]:
    """Yield the layer that a key of a capture belongs to.

    >>> list(layer_of_key("layer3.0/output"))
    ['layer3.0']
    """
    yield key.rpartition("/")[0]


def modules_above(name: str) -> Iterator[str]:
    """Yield the modules that contain a tensor of a file of weights, the innermost first.

    >>> list(modules_above("layer1.0.conv1.weight"))
    ['layer1.0.conv1', 'layer1.0', 'layer1']
    """
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

    Example:
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
    """Split a selector into the part before its slice, and the slice.

    Example:
        >>> split_slice("a/output[0,2:4]"), split_slice("a[bc]")
        (('a/output', (0, slice(2, 4, None))), ('a[bc]', (Ellipsis,)))
    """
    match = _SLICE.fullmatch(selector)
    if match is None:
        return selector, WHOLE
    return match[1], tuple(_entry(text.strip(), match[2]) for text in match[2].split(","))


def slice_text(index: Index) -> str:
    """Return a slice as text to append to a key; empty for the whole tensor.

    Example:
        >>> slice_text((0, slice(None, 4), ...)), slice_text(WHOLE)
        ('[0,:4,...]', '')
    """
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
