"""A module's type with those of its arguments that tell a reader something."""

from __future__ import annotations

import re

# Said by their place alone, as in Conv2d(3, 64, 7x7).
BARE = {"in_features", "out_features", "kernel_size", "output_size", "normalized_shape", "p"}
# Say nothing about what a layer does to a shape or a value at a glance.
DROPPED = {
    *("bias", "eps", "momentum", "affine", "elementwise_affine", "track_running_stats"),
    *("padding", "output_padding", "ceil_mode", "count_include_pad", "return_indices"),
}
# Shown when they are not 1, as in "stride 2".
STEPS = {"stride", "dilation", "groups"}

_KEYWORD = re.compile(r"(\w+)\s*=\s*(.+)", re.DOTALL)
_NUMBERS = re.compile(r"\(\s*-?\d+(?:\s*,\s*-?\d+)*\s*,?\s*\)")
_CLOSES = {")": "(", "]": "[", "}": "{"}


def compact(kind: str, arguments: str, limit: int | None = None) -> str:
    """Return type and arguments in short form.

    Args:
        kind: the type's name.
        arguments: what the module's ``extra_repr()`` gave; anything that cannot be read as a list
            of arguments is kept as it is, on one line.
        limit: cut the arguments to this many characters, with ``...`` for the rest.

    Example:
        >>> compact("Conv2d", "3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3)")
        'Conv2d(3, 64, 7x7, stride 2)'
        >>> compact("ReLU", "inplace=True"), compact("MaxPool2d", "kernel_size=3, stride=2")
        ('ReLU(inplace)', 'MaxPool2d(3x3, stride 2)')
    """
    text = " ".join(arguments.split())
    parts = split_arguments(text)
    if parts is not None:
        text = ", ".join(shown for part in parts if (shown := _argument(part, kind)))
    if limit is not None and len(text) > limit:
        text = text[: limit - 3].rstrip() + "..."
    return f"{kind}({text})" if text else kind


def split_arguments(text: str) -> list[str] | None:
    """Split at the commas outside brackets and quotes; None where those do not match up."""
    parts, start, quote = [], 0, ""
    open_brackets: list[str] = []
    for i, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            open_brackets.append(character)
        elif character in ")]}":
            if not open_brackets or open_brackets.pop() != _CLOSES[character]:
                return None
        elif character == "," and not open_brackets:
            parts.append(text[start:i].strip())
            start = i + 1
    if quote or open_brackets:
        return None
    return [*parts, text[start:].strip()]


def _argument(part: str, kind: str) -> str:
    keyword = _KEYWORD.fullmatch(part)
    if not keyword:
        return _value(part)
    name, value = keyword.groups()
    if name in DROPPED or value in ("False", "None"):
        return ""
    if value == "True":
        return name
    if name in STEPS:
        numbers = set(_numbers(value) or [value])
        if numbers == {"1"}:
            return ""
        return f"{name} {numbers.pop() if len(numbers) == 1 else _value(value)}"
    if name == "kernel_size" and value.isdigit():
        return "x".join([value] * _dimensions(kind))
    return _value(value) if name in BARE else f"{name}={_value(value)}"


def _numbers(value: str) -> list[str]:
    """The integers of a written tuple; empty for anything else."""
    return re.findall(r"-?\d+", value) if _NUMBERS.fullmatch(value) else []


def _value(value: str) -> str:
    if numbers := _numbers(value):
        return "x".join(numbers)
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


def _dimensions(kind: str) -> int:
    """How many dimensions a type's name claims: 2 for MaxPool2d, 1 where it claims none."""
    claimed = re.search(r"([123])d$", kind)
    return int(claimed[1]) if claimed else 1
