"""What a user can set, declared once: as a field of a group of options.

A group is a frozen dataclass whose fields are made by ``setting``. From the description of a field
come the option of the command line, its help and its completion (``hookscope.cli.declared``), and
the keyword of the function in Python with its line under ``Args`` (``hookscope.specs.public``).
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import Any

from hookscope.errors import HookscopeError
from hookscope.files.suggestions import did_you_mean

_KEY = "setting"
_MAY_BE_NONE = ("None", "Any", "Sequence")  # in the annotation
_BOOLEANS = ("True", "False", "1", "0")  # as texts: numpy has booleans of its own
# The options that are repeated name one of what the keywords name.
_SINGULAR = {
    **{"layers": "layer", "types": "type", "model_args": "model-arg", "edits": "edit"},
    **{"grad_edits": "grad-edit", "hooks": "hook", "hook_args": "hook-arg", "opt_args": "opt-arg"},
}


@dataclass(frozen=True)
class Setting:
    """The description of one field of a group."""

    help: str = ""  # of the command line; ends with a full stop
    python: str = ""  # the same for the docstring of the function, if Python needs other words
    annotation: str = ""  # the type for Python, if that of the field is too wide
    section: str = ""  # of the help; empty for the attribute ``section`` of the group
    flags: tuple[str, ...] = ()  # such as ``("--layer", "-l")``; empty for the name of the field
    metavar: str | None = None  # what stands for the value in the help
    choices: Sequence[str] = ()
    aliases: Mapping[str, str] | None = None  # words for which a choice is suggested
    synonyms: Mapping[str, str] | None = None  # words that are taken for a choice
    minimum: int | None = None
    maximum: int | None = None  # only with a minimum
    file: str = ""  # what the help calls the file or folder that the value names
    kind: str = ""  # what ``parse`` reads, for the help
    parse: Callable[[Any], Any] | None = None  # its ValueError says what is wrong
    many: bool = False  # the option can be repeated
    commas: bool = False  # commas separate several of the choices
    collect: Callable[[tuple[str, ...]], Any] | None = None  # reads all texts of a repeated option
    callback: str = ""  # a function of ``hookscope.cli.declared``
    complete: str = ""  # a function of ``hookscope.cli.completion_values``
    shared: str = ""  # an environment variable for every command
    shown_default: str = ""  # in the help
    shell_default: Any = field(default_factory=lambda: MISSING)  # if not that of the function
    also: Callable[[Any], bool] | None = None  # whether another value is allowed
    in_files: bool = True  # a settings file may set it
    negative: bool | str = True  # a switch has a flag ``--no-NAME``, or one of this name
    of_shell: bool = True  # there is an option, not only a keyword

    def read(self, annotation: str, value: Any) -> Any:
        """Return a value that Python gives, with texts parsed as on the command line.

        A ValueError says, in the words of the command line, what is wrong with the value.
        """
        if value is None and any(word in annotation for word in _MAY_BE_NONE):
            return value
        if self.also is not None and self.also(value):
            return value
        if self.collect is not None:
            return self._collected(value)
        if self.parse is not None:
            return self._parsed(value)
        if "Iterable" in annotation or "Sequence" in annotation or annotation == "Hooks":
            value = _as_texts(annotation, value, self.commas)
        if self.choices:
            return self._chosen(annotation, value)
        return self._plain(annotation.removesuffix(" | None"), value)

    def _collected(self, value: Any) -> Any:
        texts = (os.fspath(value),) if isinstance(value, str | os.PathLike) else value
        if not isinstance(texts, Mapping | list | tuple):
            raise _not_valid(value, "dict")
        if isinstance(texts, Mapping) or not any(isinstance(text, str) for text in texts):
            return value
        if not all(isinstance(text, str) for text in texts):
            raise _not_valid(value, "dict")
        assert self.collect is not None
        return self.collect(tuple(texts))

    def _parsed(self, value: Any) -> Any:
        assert self.parse is not None
        if isinstance(value, list | tuple):
            if self.many and any(isinstance(one, list | tuple | str) for one in value):
                return tuple(map(self._parsed, value))
            value = list(value)
        if isinstance(value, set | Mapping | bytes):
            raise _not_valid(value, self.kind)
        if not isinstance(value, str | int | float | list) or value == []:
            return value
        try:
            return self.parse(value if isinstance(value, list) else str(value))
        except HookscopeError as error:
            raise ValueError(f"{error.message} {error.hint}".strip()) from error
        except (TypeError, AttributeError):
            raise _not_valid(value, self.kind) from None

    def _chosen(self, annotation: str, value: Any) -> Any:
        several = isinstance(value, list | tuple) and (self.commas or self.many)
        if self.synonyms and isinstance(value, str):
            value = self.synonyms.get(value, value)
        for one in value if several else [value]:
            known = one in self.choices if isinstance(one, str) else annotation == "Any"
            if not known and not (self.also is not None and self.also(one)):
                raise ValueError(not_one_of(one, self.choices, self.aliases, self.commas))
        return value

    def _plain(self, kind: str, value: Any) -> Any:
        if kind == "bool" and (isinstance(value, str) or str(value) not in _BOOLEANS):
            raise _not_valid(value, "boolean")
        if kind in ("str", "str | os.PathLike[str]") and not isinstance(value, str | os.PathLike):
            raise _not_valid(value, "text")
        if kind not in ("int", "float"):
            return value
        try:
            number = operator.index(value) if kind == "int" else float(value)
        except (TypeError, ValueError):
            number = None
        if number is None or isinstance(value, str):
            raise _not_valid(value, "integer" if kind == "int" else kind)
        least, most = self.minimum, self.maximum
        if least is not None and (number < least or (most is not None and number > most)):
            allowed = f"x>={least}" if most is None else f"{least}<=x<={most}"
            raise ValueError(f"{value} is not in the range {allowed}.")
        return value


def _as_texts(annotation: str, value: Any, commas: bool) -> Any:
    """Return several texts, which a generator yields or commas separate; one text as it is."""
    if isinstance(value, str):
        return tuple(dict.fromkeys(map(str.strip, value.split(",")))) if commas else value
    if isinstance(value, os.PathLike | Mapping) or (annotation == "Hooks" and callable(value)):
        return value
    if not isinstance(value, Iterable):
        raise _not_valid(value, "text")
    several = value if isinstance(value, list | tuple) else tuple(value)
    for one in several if "Iterable[str]" in annotation else ():
        if not isinstance(one, str | os.PathLike):
            raise _not_valid(one, "text")
    return several


def _not_valid(value: Any, kind: str) -> ValueError:
    kind = {"numbers": "list of numbers"}.get(kind, kind)
    return ValueError(f"{value!r} is not a valid {kind}.")


def not_one_of(
    value: Any,
    choices: Sequence[str],
    aliases: Mapping[str, str] | None = None,
    commas: bool = False,
) -> str:
    """Return the message about a value that is not one of the choices."""
    several = " Separate several with commas." if commas else ""
    near = did_you_mean(value, choices, aliases) if isinstance(value, str) else ""
    return f"{value!r} is not one of {', '.join(choices)}.{several} {near}".strip()


def spell_option(name: str) -> str:
    """Return an option as it is typed, by the name of its keyword.

    Example:
        >>> spell_option("model_args"), spell_option("max_bytes")
        ('--model-arg', '--max-bytes')
    """
    return f"--{_SINGULAR.get(name, name.replace('_', '-'))}"


def setting(default: Any, help: str = "", **more: Any) -> Any:
    """Return a field of a group with its default and its description; see ``Setting``.

    Example:
        >>> @dataclass(frozen=True)
        ... class Lens:
        ...     section = "Lens"
        ...     norm: str | None = setting(None, "Final norm, or none.", metavar="NAME")
        >>> [(name, described.metavar) for name, described in settings_of(Lens)]
        [('norm', 'NAME')]
    """
    return field(default=default, metadata={_KEY: Setting(help, **more)})


def same_setting(group: type, name: str, default: Any = MISSING, **changes: Any) -> Any:
    """Return a field with the description and the default that it has in another group."""
    [other] = (other for other in fields(group) if other.name == name)
    about = other.metadata[_KEY]
    changes = {"section": about.section or group.section} | changes  # type: ignore[attr-defined]
    return field(
        default=other.default if default is MISSING else default,
        metadata={_KEY: replace(about, **changes)},
    )


@cache
def described_fields(group: type) -> dict[str, Setting]:
    """Return all fields of a group that functions take, with a description, which may be empty."""
    return {each.name: each.metadata.get(_KEY) or Setting() for each in fields(group) if each.init}


def settings_of(group: type) -> Iterator[tuple[str, Setting]]:
    """Yield the name and the description of each field of a group that has one."""
    for each in fields(group):
        if _KEY in each.metadata:
            yield each.name, each.metadata[_KEY]
