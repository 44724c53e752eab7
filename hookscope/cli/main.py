"""The command ``hookscope``. Neither this file nor its imports import torch, numpy or rich."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from hookscope import errors
from hookscope.cli import error_report
from hookscope.cli.command_group import Commands, Group
from hookscope.cli.commands import Example, Option
from hookscope.cli.completion_values import VARIABLE
from hookscope.cli.console import Console, columns, discard_output, finish, prepare_streams
from hookscope.cli.global_options import global_options
from hookscope.cli.help_layout import MAX_WIDTH
from hookscope.cli.help_topics import TOPICS
from hookscope.files.end_signals import catch_end_signals, end_if_asked
from hookscope.specs.commands import COMMANDS

if TYPE_CHECKING:
    from hookscope.training.script_runner import Program


def _print_versions(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    console = ctx.ensure_object(Console)
    installed = dict(error_report.versions())
    if console.json:
        console.document({"schema": 1, "command": "version", "versions": installed})
    else:
        console.text("\n".join(f"{name} {version}" for name, version in installed.items()))
    ctx.exit()


EXAMPLES = (
    Example("hookscope tree resnet18", "The layers of a model."),
    Example(
        'hookscope capture --layer "layer3.*" --input img.png',
        "The outputs of some layers of resnet18 for an image.",
    ),
    Example(
        "hookscope grads --loss kl --target 3",
        "The gradients of a loss at every layer.",
    ),
)


@click.group(
    cls=Group,
    commands=Commands("hookscope.commands", COMMANDS),
    examples=EXAMPLES,
    topics=TOPICS,
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help"], "max_content_width": MAX_WIDTH},
)
@global_options
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    callback=_print_versions,
    help="Print the versions of hookscope, torch and torchvision.",
)
def cli() -> None:
    """Inspect activations and gradients at any layer of a PyTorch model."""


# Eager, so that --version sees a --json that follows it.
for _param in cli.params:
    if isinstance(_param, Option):
        _param.is_eager = True


def main(args: Sequence[str] | None = None) -> None:
    """Run ``hookscope`` with ``args`` (those of the process if None) and exit.

    The status is 0 for success, 1 for a valid request that failed, 2 for a wrong request, 130 after
    Ctrl-C, 143 after SIGTERM, 129 after SIGHUP. Only where a program of the user's was run and has
    ended does this return.
    """
    console = Console()
    try:
        restore_streams = prepare_streams()
        with catch_end_signals():
            outcome = _run(list(sys.argv[1:] if args is None else args), console)
            finish()
    except KeyboardInterrupt as error:
        outcome = getattr(error, "status", errors.INTERRUPTED)
        console.interrupted()
    except OSError as error:
        outcome = _output_failed(error, console)
    if isinstance(outcome, int):
        sys.exit(outcome)
    # Outside of all handlers: how the program ends is not the business of this command.
    restore_streams()
    outcome.run()


def _run(args: list[str], console: Console) -> int | Program:
    """Run a command; return its exit status, or the program that it asks to run."""
    command = ""
    try:
        if os.environ.get(VARIABLE):
            return _complete(os.environ[VARIABLE])
        # Not cli.main(): it exits with 1 after Ctrl-C and for a closed pipe, and on Windows expands
        # layer3.* to files of the working folder.
        with cli.make_context("hookscope", args, obj=console, **_width()) as ctx:
            try:
                result = cli.invoke(ctx)
            finally:
                command = ctx.invoked_subcommand or ""
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        console.hint(error.format_message())
        return error.exit_code
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except click.Abort:
        return errors.INTERRUPTED
    except (Exception, SystemExit) as error:
        if _is_closed_pipe(error):
            raise
        failure = error
    else:
        return 0 if result is None else result
    end_if_asked()  # a module whose import a signal interrupted is not there
    return error_report.report_error(failure, console, command)


def _width() -> dict[str, Any]:
    """Return the width of the help. Click alone has a minimum of 50 columns."""
    return {"terminal_width": max(min(columns(), MAX_WIDTH), 20)}


def _complete(instruction: str) -> int:
    from click.shell_completion import shell_complete

    try:
        status = shell_complete(cli, {}, "hookscope", VARIABLE, instruction)
    except (KeyError, ValueError) as error:
        raise click.UsageError(
            f"{VARIABLE} is set, but COMP_WORDS and COMP_CWORD are not set as a shell sets them."
        ) from error
    if status:
        raise click.UsageError(
            f"{VARIABLE} is {instruction!r}, which is not SHELL_source or"
            " SHELL_complete. A completion script sets it; unset it."
        )
    return 0


def _is_closed_pipe(error: BaseException) -> bool:
    # Windows reports a closed pipe as EINVAL.
    codes = (errno.EPIPE, errno.EINVAL) if os.name == "nt" else (errno.EPIPE,)
    return isinstance(error, OSError) and error.errno in codes


def _output_failed(error: OSError, console: Console) -> int:
    discard_output()
    return 0 if _is_closed_pipe(error) else error_report.report_error(error, console)
