"""The magic of notebooks: ``%load_ext hookscope``, then ``%%hookscope capture`` above a cell."""

from __future__ import annotations

import ast
import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import click

from hookscope.cli.console import Console
from hookscope.cli.main import cli
from hookscope.commands.run import read_groups, run_command
from hookscope.errors import HookscopeError, RequestError
from hookscope.escapes import visible
from hookscope.files.frame_variables import variables_of
from hookscope.files.suggestions import did_you_mean
from hookscope.specs.program_options import MODES

if TYPE_CHECKING:
    from hookscope.results.result import Result
    from hookscope.training.called_models import CalledModel

    Raised = tuple[type[BaseException], BaseException, Any]  # as of ``sys.exc_info``

CELL = "the cell"
log = logging.getLogger("hookscope")


def add_magic(shell: Any) -> None:
    """Let cells of an IPython shell begin with ``%%hookscope MODE OPTIONS``."""
    shell.register_magic_function(partial(run_cell, shell), "cell", "hookscope")


def run_cell(shell: Any, line: str, cell: str) -> Result | None:
    """Run a cell and return what its models did, which the notebook shows; None for ``--help``.

    An error of hookscope or of a model is shown as a sentence, one of other code with its
    traceback. It ends the run of a notebook as it would without the magic.

    Args:
        shell: the shell of IPython.
        line: one of ``list``, ``capture``, ``check`` and ``trace``, with options of
            ``hookscope run``.
        cell: the code.

    Raises:
        RequestError: the line is wrong.
        Exception: the cell raised it.
    """
    try:
        return _run_followed(shell, line, cell)
    except click.exceptions.Exit:  # the help was printed
        return None
    except HookscopeError as error:
        _show_instead(error, f"Error: {error}".splitlines())
        raise


def _run_followed(shell: Any, line: str, cell: str) -> Result | None:
    from hookscope.training.followed_models import FollowedModels

    values = _read_line(line)
    _check_syntax(shell.transform_cell(cell))
    options, interventions, _ = read_groups(values)
    if options.capture and values["output"] is not None:
        options.check_output(values["output"])
    followed = FollowedModels(options, tuple(values["layers"]), interventions)
    followed.start()
    try:
        with _exceptions_kept(shell) as raised:
            ran = shell.run_cell(cell)
    finally:
        followed.end()
    if isinstance(ran.error_in_exec, SystemExit):  # of --stop-after, or of the cell itself
        return None
    if not ran.success:
        raise _explained(shell, ran, raised, followed.called.models)
    for sentence in followed.unmet():
        log.warning(sentence)
    result = followed.result(CELL)
    if values["output"] is not None:
        result.save(values["output"])
    return result


def _check_syntax(code: str) -> None:
    """Raise RequestError if code is not valid Python, which IPython would show with our frames."""
    try:
        ast.parse(code)
    except SyntaxError as error:
        where = f"line {error.lineno} of the cell: {(error.text or '').strip()}"
        raise RequestError(f"SyntaxError: {error.msg}, in {where}", "Correct the cell.") from None


def _read_line(line: str) -> dict[str, Any]:
    """Return the values of the options of ``hookscope run`` in the line of the magic."""
    try:
        mode, *words = shlex.split(line) or [""]
    except ValueError as error:
        raise RequestError(
            f"{line!r} cannot be split into words: {error}.", "Close the quotation mark."
        ) from None
    if mode not in MODES:
        hint = did_you_mean(mode, MODES) or "Write, for example: %%hookscope capture --layer fc"
        if mode in cli.commands:
            hint = f"In a cell of its own write: !hookscope {mode} ..."
        wrong = f"{mode!r} is not one of them" if mode else "the line is empty"
        raise RequestError(f"%%hookscope needs {', '.join(MODES)}, and {wrong}.", hint)
    try:
        words = [f"--{mode}", *words, CELL]
        context = run_command.make_context("run", words, click.Context(cli, obj=Console()))
    except click.ClickException as error:
        raise RequestError(error.format_message(), "See 'hookscope run --help'.") from None
    return context.params


@contextmanager
def _exceptions_kept(shell: Any) -> Iterator[list[Raised]]:
    """Let IPython collect the exceptions of a cell in place of showing them."""
    raised: list[Raised] = []
    before = shell.custom_exceptions, shell.CustomTB

    def keep(shell: Any, *raised_now: Any, tb_offset: int | None = None) -> None:
        raised.append(raised_now)

    shell.set_custom_exc((Exception,), keep)
    ours = shell.custom_exceptions, shell.CustomTB
    try:
        yield raised
    finally:
        if (shell.custom_exceptions, shell.CustomTB) == ours:  # not those of the cell
            shell.custom_exceptions, shell.CustomTB = before


def _explained(
    shell: Any, ran: Any, raised: list[Raised], models: list[CalledModel]
) -> BaseException:
    """Return the exception of a cell, which the notebook shows as a sentence or as always."""
    error: BaseException = ran.error_in_exec or ran.error_before_exec
    if not raised:  # of a transformation of the cell, which was shown
        _show_instead(error, [])
    elif isinstance(error, HookscopeError):
        pass  # run_cell shows it
    elif layer := _layer_of(raised[0], models):
        said = " ".join(str(error).split())
        sentence = visible(f"Error: {layer} raised {type(error).__name__}: {said}")
        _show_instead(error, [sentence, "%tb shows the whole traceback."])
    else:
        traceback = shell.InteractiveTB.structured_traceback(*raised[0], tb_offset=1)
        _show_instead(error, traceback)
    return error


def _layer_of(raised: Raised, models: list[CalledModel]) -> str:
    """Return the layer that raised an exception, as ``net.fc (Linear)``; empty if none did."""
    from torch import nn

    caller = nn.Module.__call__.__code__.co_filename
    frames = [frame for frame, _ in walk_tb(raised[2]) if frame.f_code.co_filename == caller]
    called = [
        one for frame in frames if isinstance(one := variables_of(frame).get("self"), nn.Module)
    ]
    for model in models if called else ():
        if model.outer is called[0]:
            names = {module: name for name, module in called[0].named_modules()}
            path = ".".join(filter(None, (model.name, names.get(called[-1], ""))))
            return f"{path} ({type(called[-1]).__name__})"
    return ""


def _show_instead(error: BaseException, lines: list[str]) -> None:
    """Let IPython show lines once in place of the traceback of an exception."""

    def render() -> list[str]:
        del error._render_traceback_  # type: ignore[attr-defined] # %tb shows the traceback
        return lines

    with suppress(AttributeError):  # a class with slots
        error._render_traceback_ = render  # type: ignore[attr-defined]
