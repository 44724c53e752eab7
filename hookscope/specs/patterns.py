"""The layer-glob language, over plain strings.

``*`` matches any run of characters, dots included, ``?`` one character, ``[ab]`` and ``[!ab]`` one
of a set, exactly as in Python's ``fnmatch``; ``{a,b}`` is either; a leading ``!`` takes away. The
model itself is named ``.``. Matching is case-sensitive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import translate

from hookscope.errors import LayerError

MAX_ALTERNATIVES = 4096


def matches(pattern: str, name: str) -> bool:
    """Whether ``name`` is matched by one positive ``pattern``.

    >>> matches("layer3.*", "layer3.0.conv1"), matches("layer{1,2}", "layer2")
    (True, True)
    """
    return compile_pattern(pattern)(name)


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Turn one positive pattern into a test of a name.

    Raises:
        LayerError: a brace is left open, or the braces unfold into thousands of patterns.
    """
    expressions = [re.compile(translate(p)) for p in expand_braces(pattern)]
    return lambda name: any(e.match(name) for e in expressions)


def split_exclusions(patterns: Iterable[str]) -> tuple[list[str], list[str]]:
    """Part ``patterns`` into those that add and those that take away (their ``!`` removed).

    >>> split_exclusions(["layer3.*", "!*.bn1"])
    (['layer3.*'], ['*.bn1'])
    """
    adding: list[str] = []
    taking: list[str] = []
    for pattern in patterns:
        if pattern in ("", "!"):
            raise LayerError(
                "A layer pattern is empty.", "Give a name or a glob such as 'layer3.*', or '.'."
            )
        (taking if pattern.startswith("!") else adding).append(pattern.removeprefix("!"))
    return adding, taking


def expand_braces(pattern: str) -> list[str]:
    """Unfold ``{a,b}`` into one pattern for each choice; choices may nest.

    >>> expand_braces("layer{1,2}.{conv,bn}1")
    ['layer1.conv1', 'layer1.bn1', 'layer2.conv1', 'layer2.bn1']

    Raises:
        LayerError: a brace has no partner, or there are too many choices.
    """
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        current = waiting.pop()
        opening = current.find("{")
        if opening < 0:
            if "}" in current:
                raise _unbalanced(pattern)
            done.append(current)
            continue
        choices, closing = _choices(current, opening, pattern)
        rest = current[closing + 1 :]
        waiting += [current[:opening] + choice + rest for choice in reversed(choices)]
        if len(waiting) + len(done) > MAX_ALTERNATIVES:
            raise LayerError(
                f"The layer pattern {pattern!r} unfolds into over {MAX_ALTERNATIVES} patterns.",
                "Use * in place of some of the braces.",
            )
    return done


def _choices(text: str, opening: int, pattern: str) -> tuple[list[str], int]:
    """The comma-separated choices of the brace at ``opening``, and where it closes."""
    depth = 0
    start = opening + 1
    choices: list[str] = []
    for at in range(opening, len(text)):
        if text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return [*choices, text[start:at]], at
        elif text[at] == "," and depth == 1:
            choices.append(text[start:at])
            start = at + 1
    raise _unbalanced(pattern)


def _unbalanced(pattern: str) -> LayerError:
    return LayerError(
        f"The layer pattern {pattern!r} has a brace without its partner.",
        "Write {a,b} for either of two, and ? for a brace that is part of a name.",
    )
