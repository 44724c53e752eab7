"""The types of options: byte counts, shapes, sizes, lists, files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from hookscope.errors import HookscopeError
from hookscope.specs.settings import Setting, not_one_of
from hookscope.specs.value_readers import read_items

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class IntRange(click.IntRange):
    """A whole number with bounds, which errors call an integer, as one without."""

    name = "integer"


class FloatRange(click.FloatRange):
    """A number with bounds, named like one without."""

    name = "float"


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
        words = [str(word).strip() for word in read_items(value)]
        for word in words:
            if word not in self.choices:
                raise ValueError(not_one_of(word, self.choices, self.aliases, commas=True))
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

    def __init__(
        self,
        choices: Iterable[str],
        aliases: Mapping[str, str] | None = None,
        synonyms: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(list(choices))
        self.aliases = aliases
        self.synonyms = synonyms or {}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the choice that is meant, or fail with a usage error."""
        return super().convert(self.synonyms.get(value, value), param, ctx)

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return the error with its suggestion."""
        return not_one_of(str(value), self.choices, self.aliases)


class OpenChoice(Choice):
    """One of several choices, or another value that is allowed, such as ``FILE.py:FUNCTION``."""

    def __init__(self, about: Setting, also: Callable[[Any], bool]) -> None:
        super().__init__(about.choices, about.aliases)
        self._also = also

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value, or fail with a usage error."""
        return str(value) if self._also(value) else super().convert(value, param, ctx)
