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
    """Raise an error if arguments are left, or the files of a pattern take the model's place."""
    flag, files = _option_with_files(ctx.command, typed)
    if flag and (extra or _stands_for_model(flag, files)):
        raise RequestError(
            f"{flag} takes one value, and {len(files)} files follow it: {_listed(files)}.",
            f"Put a pattern in quotes, so that the shell does not expand it: {flag} 'PATTERN'."
            f" For several values repeat {flag}.",
        )
    if not extra:
        return
    if any(map(os.path.isfile, extra)):
        raise RequestError(
            f"Got unexpected extra argument{'s' * (len(extra) > 1)}: {_listed(extra)}.",
            _hint_for_files(extra, takes_input=_takes_input(ctx.command)),
        )
    ctx.fail(f"Got unexpected extra argument{'s' * (len(extra) > 1)} ({' '.join(extra)})")


def _hint_for_files(extra: Sequence[str], *, takes_input: bool) -> str:
    """Return what to do about arguments that are left, of which some are files."""
    from hookscope.files.file_types import ARRAY, AUDIO, IMAGE, VIDEO, describe_file

    kinds = [describe_file(file)[0] if os.path.isfile(file) else None for file in extra]
    if takes_input and all(kind in (ARRAY, AUDIO, IMAGE, VIDEO) for kind in kinds):
        several = " and repeat --input for each." if len(extra) > 1 else ""
        return (
            f"{extra[0]} is {kinds[0]}. Give an input with --input {quote_word(extra[0])}{several}"
        )
    return (
        f"{'Write --input before a file of input. ' * takes_input}"
        "If a pattern was meant, put it in quotes, so that the shell does not expand it to names of"
        " files."
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
