"""The types of options: byte counts, shapes, sizes, lists, files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from hookscope.errors import HookscopeError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)


class ParsedValue(click.ParamType[Any]):
    """A value that a function parses; its ValueError says what is wrong."""

    def __init__(self, name: str, parse: Callable[[Any], Any]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value, or fail with a usage error."""
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        except HookscopeError as error:
            self.fail(f"{error.message} {error.hint}".strip(), param, ctx)


class FileName(click.ParamType[str]):
    """A path or glob; an environment variable may have several, like ``PATH``."""

    envvar_list_splitter = os.path.pathsep

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the path; an empty one is an error, as of a variable that is not set."""
        if not value:
            self.fail("The path is empty. Give one, or leave out the option.", param, ctx)
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Let the shell complete file names."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


class InputName(FileName):
    """A value of ``--input``; a variable with a single spec may contain colons."""

    def split_envvar_value(self, rv: str) -> list[str]:
        """Return the specs in an environment variable."""
        from hookscope.specs.input_spec import is_single_spec

        return [rv] if is_single_spec(rv) else list(super().split_envvar_value(rv))


class CommaList(ParsedValue):
    """One or more of several choices, separated by commas: ``output,input``."""

    def __init__(self, *choices: str, aliases: Mapping[str, str] | None = None) -> None:
        super().__init__("list", self._split)
        self.choices = choices
        self.aliases = aliases

    def _split(self, value: Any) -> tuple[str, ...]:
        words = [str(word).strip() for word in _items(value)]
        for word in words:
            if word not in self.choices:
                from hookscope.files.suggestions import did_you_mean

                known = ", ".join(self.choices)
                near = did_you_mean(word, self.choices, self.aliases)
                raise ValueError(
                    f"{word!r} is not one of {known}. Separate several with commas. {near}".strip()
                )
        return tuple(dict.fromkeys(words))

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the choices."""
        return ",".join(self.choices)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Offer the choices after the last comma."""
        from click.shell_completion import CompletionItem

        done, comma, last = incomplete.rpartition(",")
        return [CompletionItem(done + comma + c) for c in self.choices if c.startswith(last)]


class Choice(click.Choice[str]):
    """One of several choices; the error suggests those that resemble a wrong value."""

    def __init__(self, choices: Iterable[str], aliases: Mapping[str, str] | None = None) -> None:
        super().__init__(list(choices))
        self.aliases = aliases

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return the error with its suggestion."""
        from hookscope.files.suggestions import did_you_mean

        known = ", ".join(self.choices)
        near = did_you_mean(str(value), self.choices, self.aliases)
        return f"{str(value)!r} is not one of {known}. {near}".strip()


class ChoiceOrFunction(Choice):
    """One of several choices, or ``FILE.py:FUNCTION`` or ``package.module:FUNCTION``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value, or fail with a usage error. A function is checked by the request."""
        from hookscope.specs.model_spec import may_name_function

        if may_name_function(str(value)):
            return str(value)
        return super().convert(value, param, ctx)


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
    """Parse the shape of a tensor, or take the list of a settings file.

    >>> read_shape("1x3x224x224"), read_shape([1, 3, 8, 8])
    ((1, 3, 224, 224), (1, 3, 8, 8))
    """
    from hookscope.specs.model_spec import parse_shape

    return parse_shape("x".join(map(str, value)) if isinstance(value, list) else str(value))


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
        return tuple(float(word) for word in _items(value))
    except ValueError:
        raise ValueError(f"{value!r} is not a list of numbers. Write 0.485,0.456,0.406.") from None


def read_indices(value: Any) -> tuple[int, ...]:
    """Parse indices from 0, and ranges with their last index.

    >>> read_indices("0,3,8-11")
    (0, 3, 8, 9, 10, 11)
    """
    indices: list[int] = []
    for item in _items(value):
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


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else str(value).split(",")
