"""The command that goes on from what was shown: a look at the file, or the same run otherwise."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from hookscope.cli.commands import Command, Option
from hookscope.results.dimensions import layout
from hookscope.specs.record_kinds import ATTENTION, OUTPUT

if TYPE_CHECKING:
    from pathlib import Path

    from hookscope.hooks.capture import Capture
    from hookscope.results.records import Record

# What to record is not the same choice there, and the file is another one.
_OWN = {"model", "what", "output", "force"}


def next_command(ctx: click.Context, capture: Capture, path: Path) -> str:
    """Return the line, quoted for the shell: a look at ``path``, or the gradients of this run.

    Gradients and steps are drawn from layer to layer. A capture of layers that were named is looked
    at; one of a whole model goes on to the gradients, with all that was chosen for this run.
    """
    if ctx.info_name != "capture":
        return shlex.join(["hookscope", "plot" if find_spec("matplotlib") else "report", str(path)])
    if any(record.kind == ATTENTION for record in capture.records) and find_spec("matplotlib"):
        return shlex.join(["hookscope", "plot", str(path), "--kind", "attention"])
    maps = [record.key for record in capture.records if _has_maps(record, capture.image)]
    if maps and ctx.params["layers"]:
        return shlex.join(["hookscope", "show", str(path), maps[-1], "--map"])
    return _gradients(ctx, capture)


def _has_maps(record: Record, image: tuple[int, int] | None) -> bool:
    letters = layout(record.type, record.kind, record.shape, image)
    sides = [n for n, letter in zip(record.shape, letters, strict=False) if letter == "S"]
    return record.kind == OUTPUT and "C" in letters and min(sides) > 1


def _gradients(ctx: click.Context, capture: Capture) -> str:
    group = ctx.find_root().command
    assert isinstance(group, click.Group)
    model = ctx.params["model"]
    words = ["hookscope", "grads", model]
    if not _has_classes(model, capture.output):
        words += ["--loss", "sum"]
    other = group.commands["grads"]
    assert isinstance(ctx.command, Command) and isinstance(other, Command)
    shared = {option.key for option in other.options() if option.expose_value} - _OWN
    if not (ctx.params["edits"] or ctx.params["hooks"]):  # nothing there could be compared
        shared.discard("compare")
    return shlex.join([*words, *_chosen(ctx, shared)])


def edit_command(ctx: click.Context, edit: str) -> str:
    """Return the line that captures the same run with this edit and tells what it did."""
    return _same_run(ctx, "capture", ["--edit", edit, "--compare"], {"method"})


def grads_command(ctx: click.Context, layer: str | None) -> str:
    """Return the line that shows the gradients of the score that ``cam`` explained."""
    words = ["--loss", "logit", *(["--layer", layer] if layer else [])]
    return _same_run(ctx, "grads", words, {"target"})


def _same_run(ctx: click.Context, verb: str, words: list[str], more: set[str]) -> str:
    """The line for another verb on the same model and input."""
    group = ctx.find_root().command
    assert isinstance(group, click.Group)
    other = group.commands[verb]
    assert isinstance(other, Command)
    shared = {option.key for option in other.options() if option.section in ("Input", "Run")}
    chosen = _chosen(ctx, shared | {"model-arg", "trust"} | more)
    return shlex.join(["hookscope", verb, ctx.params["model"], *words, *chosen])


def _chosen(ctx: click.Context, keys: set[str]) -> Iterator[str]:
    """The words of those of these options that were chosen for this run."""
    assert isinstance(ctx.command, Command)
    for option in ctx.command.options():
        if option.key in keys and option.was_chosen(ctx):
            yield from _words(option, option.given(ctx), ctx)


def _words(option: Option, given: Any, ctx: click.Context) -> Iterator[str]:
    """The words that give an option its value, in the form in which they were written."""
    flag = f"--{option.key}"
    if option.is_bool_flag:
        yield flag if ctx.params[option.name] else f"--no-{option.key}"
        return
    between = "x" if option.key in ("shape", "size") else ","
    for value in given if option.multiple else [given]:
        yield flag
        # A settings file may hold a list where the command line has one word.
        yield between.join(map(str, value)) if isinstance(value, list) else str(value)


def _has_classes(model: str, output: Any) -> bool:
    """Whether the loss that grads takes by default means anything for this output."""
    from hookscope.execution.losses.loss import has_classes
    from hookscope.specs import catalog

    return has_classes(
        output, next((x.task for x in catalog.bundled_models() if x.name == model), "")
    )
