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
    """The description of one field of a group.

    Attributes:
        help: what the option does, for the help of the command; ends with a full stop.
        python: the same for the docstring of the function, if Python needs other words.
        annotation: the type for Python, if that of the field is too wide.
        section: of the help; empty for that of the group, its attribute ``section``.
        flags: such as ``("--layer", "-l")``; empty for the name of the field.
        metavar: what stands for the value in the help.
        choices: the possible values, if they are few.
        aliases: words that users type for a choice.
        minimum: the smallest number.
        maximum: the largest number, if there is a smallest one.
        file: the value names a file or folder; what it is called in the help.
        kind: what ``parse`` reads, for the help.
        parse: turns the text of the shell into the value; its ValueError says what is wrong.
        many: the option can be repeated.
        commas: commas separate several of the choices.
        collect: turns all texts of a repeated option into the value.
        callback: the name of a function of ``hookscope.cli.declared`` that checks the value, with
            Click's context.
        complete: what completes the value; a name of ``hookscope.cli.completion_values``.
        shared: an environment variable that sets the value for every command.
        shown_default: what the help says is the default.
        shell_default: the default of the command, if it is not that of the function.
        also: whether a value that is none of the choices is allowed, such as ``FILE.py:NAME``.
        in_files: whether a settings file may set it.
        negative: whether a switch also has a flag ``--no-NAME``.
        of_shell: whether there is an option; else there is a keyword alone.
    """

    help: str = ""
    python: str = ""
    annotation: str = ""
    section: str = ""
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    choices: Sequence[str] = ()
    aliases: Mapping[str, str] | None = None
    minimum: int | None = None
    maximum: int | None = None
    file: str = ""
    kind: str = ""
    parse: Callable[[Any], Any] | None = None
    many: bool = False
    commas: bool = False
    collect: Callable[[tuple[str, ...]], Any] | None = None
    callback: str = ""
    complete: str = ""
    shared: str = ""
    shown_default: str = ""
    shell_default: Any = field(default_factory=lambda: MISSING)
    also: Callable[[Any], bool] | None = None
    in_files: bool = True
    negative: bool = True
    of_shell: bool = True

    def fault(self, annotation: str, value: Any) -> str:
        """Say what is wrong with a value that Python gives; empty if nothing is.

        The words are those of the command line for the same value. Objects of other types stand
        for themselves: what uses them checks them.
        """
        if value is None or (self.also is not None and self.also(value)):
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
    near = did_you_mean(str(value), choices, aliases)
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
    """Return a field with the description and the default that it has in another group.

    Args:
        group: the other group.
        name: of the field.
        default: of the field in this group, if it differs.
        changes: what differs in the description.
    """
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
