"""The command ``hookscope``: its group of commands, and how a run of it ends.

Nothing here or in the files it imports may import torch, numpy or rich: ``--help`` and a mistyped
option are answered without them.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from hookscope.cli import completion, error_report
from hookscope.cli.commands import MAX_WIDTH, Commands, Group, Option
from hookscope.cli.console import Console, columns, discard_output, finish, prepare_streams
from hookscope.cli.global_options import global_options


def _print_versions(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    out = ctx.ensure_object(Console)
    found = dict(error_report.versions())
    if out.json:
        out.document({"schema": 1, "command": "version", "versions": found})
    else:
        out.text("\n".join(f"{name} {version}" for name, version in found.items()))
    ctx.exit()


# Each command's file in this folder bears its name; it is imported when it is asked for.
COMMANDS = {
    "tree": "Show the named modules of a model.",
    "capture": "Run a model and record the tensors at its layers.",
    "grads": "Run a model backward and record the gradients.",
    "extract": "Run a model over a dataset and store the features of its layers.",
    "step": "Make one step of an optimizer and record what it changes.",
    "ablate": "Knock out layers in turn and rank them by what that does.",
    "trace": "Show what fires when a model runs, in order: forward, then backward.",
    "check": "Say what is wrong with a model.",
    "gradcheck": "Compare a backward with numerical gradients.",
    "diff": "Compare two captures, or two models on one input.",
    "cam": "Show where in an image the score of a class comes from.",
    "show": "Look at what a file holds.",
    "plot": "Draw what a file holds.",
    "filters": "Draw the weights of a layer.",
    "export": "Write the features of a dataset, or tensors of a capture, to one file.",
    "verify": "Check the features of a dataset against what was written.",
    "report": "Write a page with all that a file of results holds.",
    "models": "List the models that can be named.",
    "config": "Show every setting and where it came from.",
    "completion": "Print a script that teaches a shell to complete.",
    "help": "Explain a command, or list the commands.",
}


@click.group(
    cls=Group,
    commands=Commands(__package__, COMMANDS),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_WIDTH},
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
    """See what happens inside a PyTorch model: activations and gradients at any layer.

    Try it: hookscope tree resnet18
    """


# Before the command the options have no variables of their own: after it the same ones count. They
# are eager there, so that --version knows of a --json that follows it.
for _param in cli.params:
    if isinstance(_param, Option):
        _param.show_envvar = False
        _param.is_eager = True


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run ``hookscope`` with ``args`` (those of the process if None) and exit.

    The status is 0 when done, 1 when a sound request failed, 2 when it was wrong, 130 after Ctrl-C.
    """
    prepare_streams()
    out = Console()
    try:
        status = _run(list(sys.argv[1:] if args is None else args), out)
        finish()
    except KeyboardInterrupt:
        status = error_report.INTERRUPTED
        out.interrupted()
    except OSError as error:
        status = _output_failed(error, out)
    sys.exit(status)


def _run(args: list[str], out: Console) -> int:
    command = ""
    try:
        if os.environ.get(completion.VARIABLE):
            return _complete(os.environ[completion.VARIABLE])
        # Not cli.main(): it turns Ctrl-C and a closed pipe into status 1, and on Windows expands
        # layer3.* against the files of the working folder.
        with cli.make_context("hookscope", args, obj=out, **_width()) as ctx:
            try:
                cli.invoke(ctx)
            finally:
                command = ctx.invoked_subcommand or ""
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        out.hint(error.format_message())
        return error.exit_code
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except click.Abort:
        return error_report.INTERRUPTED
    except (Exception, SystemExit) as error:
        if _is_closed_pipe(error):
            raise
        return error_report.report_error(error, out, command)
    return 0


def _width() -> dict[str, Any]:
    """Let help follow a narrow terminal too, which Click alone does only down to 50 columns."""
    return {"terminal_width": max(min(columns(), MAX_WIDTH), 20)}


def _complete(instruction: str) -> int:
    from click.shell_completion import shell_complete

    try:
        status = shell_complete(cli, {}, "hookscope", completion.VARIABLE, instruction)
    except (KeyError, ValueError) as error:
        raise click.UsageError(
            f"{completion.VARIABLE} is set, but COMP_WORDS and COMP_CWORD are not as a shell sets"
            " them."
        ) from error
    if status:
        raise click.UsageError(
            f"{completion.VARIABLE} is {instruction!r}, which is not SHELL_source or"
            " SHELL_complete. A completion script sets it; unset it."
        )
    return 0


def _is_closed_pipe(error: BaseException) -> bool:
    # Windows reports a closed pipe as EINVAL.
    codes = (errno.EPIPE, errno.EINVAL) if os.name == "nt" else (errno.EPIPE,)
    return isinstance(error, OSError) and error.errno in codes


def _output_failed(error: OSError, out: Console) -> int:
    discard_output()
    return 0 if _is_closed_pipe(error) else error_report.report_error(error, out)
