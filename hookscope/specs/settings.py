"""What a user can set, declared once: as a field of a group of options.

A group is a frozen dataclass whose fields are made by ``setting``. From the description of a field
come the option of the command line, its help and its completion (``hookscope.cli.declared``), and
the keyword of the function in Python with its line under ``Args`` (``hookscope.specs.public``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import Any

from hookscope.errors import HookscopeError
from hookscope.files.suggestions import did_you_mean

_KEY = "setting"
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
    aliases: Mapping[str, str] | None = None  # words that users type for a choice
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
    negative: bool = True  # a switch has a flag ``--no-NAME``
    of_shell: bool = True  # there is an option, not only a keyword

    def fault(self, annotation: str, value: Any) -> str:
        """Say, in the words of the command line, what is wrong with a value that Python gives."""
        if value is None and annotation not in ("str", "int", "float"):
            return ""
        if self.also is not None and self.also(value):
            return ""
        several = isinstance(value, list | tuple)
        if self.commas and isinstance(value, str):
            value, several = [word.strip() for word in value.split(",")], True
        if self.choices:
            values = value if several and (self.commas or self.many) else [value]
            wrong = [one for one in values if _may_be_choice(one, annotation, self.choices)]
            return not_one_of(wrong[0], self.choices, self.aliases, self.commas) if wrong else ""
        if self.parse is not None:
            return self._unreadable(value)
        return self._wrong_number(annotation.removesuffix(" | None"), value)

    def _unreadable(self, value: Any) -> str:
        assert self.parse is not None
        if isinstance(value, list | tuple):
            nested = self.many and any(isinstance(one, list | tuple | str) for one in value)
            values = [list(one) if isinstance(one, tuple) else one for one in value]
            values = values if nested else [values]
        else:
            values = [str(value)] if isinstance(value, str | int | float) else []
        for one in values:
            try:
                if one != []:
                    self.parse(one)
            except ValueError as error:
                return str(error)
            except HookscopeError as error:
                return f"{error.message} {error.hint}".strip()
        return ""

    def _wrong_number(self, kind: str, value: Any) -> str:
        named = {"int": "integer", "float": "float"}.get(kind)
        if named is None:
            return ""
        try:
            number = operator.index(value) if kind == "int" else float(value)
        except (TypeError, ValueError):
            number = None
        if number is None or isinstance(value, str):
            named += " range" if self.minimum is not None else ""
            return f"{value!r} is not a valid {named}."
        least, most = self.minimum, self.maximum
        if least is None or (least <= number and (most is None or number <= most)):
            return ""
        allowed = f"x>={least}" if most is None else f"{least}<=x<={most}"
        return f"{value} is not in the range {allowed}."


def _may_be_choice(value: Any, annotation: str, choices: Sequence[str]) -> bool:
    is_text = annotation.removesuffix(" | None") == "str" or isinstance(value, str)
    return is_text and value not in choices


def not_one_of(
    value: Any,
    choices: Sequence[str],
    aliases: Mapping[str, str] | None = None,
    commas: bool = False,
) -> str:
    """Return the message about a value that is none of the choices."""
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
