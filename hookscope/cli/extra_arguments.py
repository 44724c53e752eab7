"""Arguments that a command does not take, such as the files of a pattern that was not quoted."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from hookscope.errors import RequestError
from hookscope.files.shell_words import quote_word

# Options with patterns: a file after such a value is not a model of the user's.
_PATTERNS = ("--layer", "-l", "--type")
_INPUTS = ("--input", "-i")
_MODELS = (".py", ".pt", ".pth", ".pt2")  # may follow an input of the same kind


def check_arguments(ctx: click.Context, typed: Sequence[str], extra: Sequence[str]) -> None:
    """Raise an error if arguments are left, or the files of a pattern take the model's place.

    Args:
        ctx: the context of the command.
        typed: all arguments of the command, as the shell passed them.
        extra: those that are neither options nor arguments of the command.

    Raises:
        RequestError: several files follow a repeatable option, which takes one value each time.
        click.UsageError: there are other arguments that the command does not take.
    """
    flag, files = _option_with_files(ctx.command, typed)
    if flag and (extra or _stands_for_model(flag, files)):
        raise RequestError(
            f"{flag} takes one value, and {len(files)} files follow it: {_listed(files)}.",
            f"Put a pattern in quotes, so that the shell does not expand it: {flag} 'PATTERN'."
            f" For several values repeat {flag}.",
        )
    if not extra:
        return
    _check_input_files(ctx.command, extra)
    if any(map(os.path.isfile, extra)):
        raise RequestError(
            f"Got unexpected extra argument{'s' * (len(extra) > 1)}: {_listed(extra)}.",
            f"{'Write --input before a file of input. ' * _takes_input(ctx.command)}"
            "If a pattern was meant, put it in quotes, so that the shell does not expand it to"
            " names of files.",
        )
    ctx.fail(f"Got unexpected extra argument{'s' * (len(extra) > 1)} ({' '.join(extra)})")


def _check_input_files(command: click.Command, extra: Sequence[str]) -> None:
    """Raise RequestError if all arguments that are left are files which ``--input`` takes."""
    from hookscope.files.file_types import ARRAY, AUDIO, IMAGE, VIDEO, describe_file

    if not any("--input" in param.opts for param in command.params):
        return
    if all(
        os.path.isfile(f) and describe_file(f)[0] in (ARRAY, AUDIO, IMAGE, VIDEO) for f in extra
    ):
        kind = describe_file(extra[0])[0]
        raise RequestError(
            f"Got unexpected extra argument{'s' * (len(extra) > 1)}: {_listed(extra)}.",
            f"{extra[0]} is {kind}. Give an input with --input {quote_word(extra[0])}"
            + (" and repeat --input for each." if len(extra) > 1 else ""),
        )


def _option_with_files(command: click.Command, typed: Sequence[str]) -> tuple[str, list[str]]:
    """Return the first repeatable option that several files follow, and the files; else empty."""
    # Only an option that can be repeated may be meant to take several files.
    options = [param for param in command.params if isinstance(param, click.Option)]
    flags = {flag for option in options if option.multiple for flag in option.opts}
    for position, word in enumerate(typed):
        if word in flags:
            files = []
            for name in typed[position + 1 :]:
                if not os.path.isfile(name):
                    break
                files.append(name)
            if len(files) > 1:
                return word, files
    return "", []


def _takes_input(command: click.Command) -> bool:
    return any("--input" in param.opts for param in command.params)


def _stands_for_model(flag: str, files: Sequence[str]) -> bool:
    """Whether the second file cannot be meant as the model after a value of the option."""
    endings = {os.path.splitext(file)[1] for file in files}
    if len(endings) > 1 or endings == {""}:
        return False
    return flag in _PATTERNS or (flag in _INPUTS and not endings & set(_MODELS))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
