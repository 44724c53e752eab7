"""Patterns of layer names, as plain strings.

``*`` matches any run of characters, dots included, ``?`` one character, ``[ab]`` and ``[!ab]`` one
of a set, exactly as in Python's ``fnmatch``; ``{a,b}`` is either; a leading ``!`` excludes. The
model itself is named ``.``, or ``(model)`` as in tables. Matching is case-sensitive. A pattern also
matches the name that is written exactly like it, whatever characters that has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from fnmatch import translate
from typing import Any

from hookscope.errors import LayerError
from hookscope.files.suggestions import near
from hookscope.specs.settings import setting

MAX_ALTERNATIVES = 4096
ROOT = "."  # the name of the model itself
MODEL = "(model)"  # its name in tables, which users copy


def as_texts(texts: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return several texts as a tuple; a single text or path is accepted too."""
    several = [texts] if isinstance(texts, str | os.PathLike) else texts
    return tuple(os.fspath(text) for text in several)


def stored_layers(
    help: str = "Layer, key or glob of either. Repeatable. Default: all.",
    python: str = "layers, keys or globs of either; none means all.",
) -> Any:
    """Return the field of a group that selects layers among those in a file or folder."""
    return setting(
        (),
        help,
        section="Layers",
        flags=("--layer", "-l"),
        metavar="KEY",
        many=True,
        complete="layers",
        python=python,
    )


def matches(pattern: str, name: str) -> bool:
    """Whether ``name`` is matched by one positive ``pattern``."""
    return compile_pattern(pattern)(name)


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Compile one positive pattern into a function that tests a name."""
    texts = [root_named(text) for text in expand_braces(pattern)]
    names = {text for text in texts if not set("*?[") & set(text)}
    globs = [translate(text) for text in texts if text not in names]
    names.add(root_named(pattern))
    if not globs:  # thousands of names are compared with as many patterns that are plain names
        return names.__contains__
    glob = re.compile("|".join(globs))
    return lambda name: name in names or glob.match(name) is not None


def root_named(name: str) -> str:
    """Return a layer, a call or a key with the model itself named ``.`` instead of ``(model)``.

    >>> root_named("(model)"), root_named("(model)/output"), root_named("fc")
    ('.', './output', 'fc')
    """
    rest = name.removeprefix(MODEL)
    return ROOT + rest if rest != name and rest[:1] in ("", ":", "/") else name


def split_exclusions(patterns: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split ``patterns`` into those that include and those that exclude, without their ``!``."""
    included: list[str] = []
    excluded: list[str] = []
    for pattern in patterns:
        if pattern in ("", "!"):
            raise LayerError(
                "A layer pattern is empty.", "Give a name or a glob such as 'layer3.*', or '.'."
            )
        (excluded if pattern.startswith("!") else included).append(pattern.removeprefix("!"))
    return included, excluded


def check_patterns(patterns: Iterable[str]) -> None:
    """Raise LayerError if a pattern is empty or cannot be parsed."""
    for part in split_exclusions(patterns):
        for pattern in part:
            compile_pattern(pattern)


def expand_braces(pattern: str) -> list[str]:
    """Expand ``{a,b}`` to one pattern for each choice; choices may nest."""
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
                f"The layer pattern {pattern!r} expands to over {MAX_ALTERNATIVES} patterns.",
                "Use * in place of some of the braces.",
            )
    return done


def near_patterns(pattern: str, names: Iterable[str]) -> list[str]:
    """Return globs like ``pattern`` that match some of ``names``, the nearest first.

    A part between dots without ``*``, ``?``, ``[`` or ``{`` is replaced by a similar part of names.

    >>> near_patterns("layer5.*", ["layer3", "layer3.0", "layer4", "layer4.0", "fc"])
    ['layer4.*', 'layer3.*']
    >>> near_patterns("*.cnv1", ["layer4.0.conv1"])
    ['*.conv1']
    """
    if not set("*?[{") & set(pattern):
        return []
    names = list(names)
    parts = pattern.split(".")
    known = dict.fromkeys(part for name in names for part in name.split("."))
    found = []
    for at, part in enumerate(parts):
        if not part or set("*?[{}]") & set(part):
            continue
        for similar in reversed(near(part, reversed(known), count=4)):
            found.append(".".join((*parts[:at], similar, *parts[at + 1 :])))
    return [glob for glob in reversed(found) if any(map(compile_pattern(glob), names))][:3]


def _choices(text: str, opening: int, pattern: str) -> tuple[list[str], int]:
    """Return the choices in the brace at ``opening``, and the position of its end."""
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
        f"The layer pattern {pattern!r} has an unbalanced brace.",
        "Write {a,b} to match a or b, and ? to match a brace in a name.",
    )


def layer_text(name: str) -> str:
    """Return the name of a module for users: the model itself is ``(model)``."""
    return MODEL if name == ROOT else name
