"""The magic of notebooks: ``%load_ext hookscope``, then ``%%hookscope capture`` above a cell."""

from __future__ import annotations

import logging
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from hookscope.cli.console import Console
from hookscope.cli.main import cli
from hookscope.commands.run import read_groups, run_command
from hookscope.errors import RequestError
from hookscope.files.suggestions import did_you_mean
from hookscope.specs.program_options import MODES

if TYPE_CHECKING:
    from hookscope.results.result import Result

CELL = "the cell"
log = logging.getLogger("hookscope")


def add_magic(shell: Any) -> None:
    """Let cells of an IPython shell begin with ``%%hookscope MODE OPTIONS``."""
    shell.register_magic_function(partial(run_cell, shell), "cell", "hookscope")


def run_cell(shell: Any, line: str, cell: str) -> Result | None:
    """Run a cell and return what its models did, which the notebook shows; None if it raised.

    Args:
        shell: the shell of IPython.
        line: one of ``list``, ``capture``, ``check`` and ``trace``, with options of
            ``hookscope run``.
        cell: the code.

    Raises:
        RequestError: the line is wrong.
    """
    from hookscope.training.followed_models import FollowedModels

    mode, *words = shlex.split(line) or [""]
    if mode not in MODES:
        raise RequestError(
            f"{mode!r} is not one of {', '.join(MODES)}.",
            did_you_mean(mode, MODES) or "Write, for example: %%hookscope capture --layer fc",
        )
    try:
        words = [f"--{mode}", *words, CELL]
        context = run_command.make_context("run", words, click.Context(cli, obj=Console()))
    except click.ClickException as error:
        raise RequestError(error.format_message(), "See 'hookscope run --help'.") from None
    values = context.params
    options, interventions, _ = read_groups(values)
    followed = FollowedModels(options, tuple(values["layers"]), interventions)
    followed.start()
    try:
        ran = shell.run_cell(cell)
    finally:
        followed.end()
    if not ran.success:  # the shell has shown the error
        return None
    for sentence in followed.unmet():
        log.warning(sentence)
    result = followed.result(CELL)
    if values["output"] is not None:
        result.save(values["output"])
    return result
