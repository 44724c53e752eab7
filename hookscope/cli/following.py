"""The command that goes on from what was shown, on the same run: gradients, a capture, an edit."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from hookscope.choices import VALUE_HOOKS
from hookscope.cli.command import Command, Option

if TYPE_CHECKING:
    from hookscope.captures import Capture

# What to record is not the same choice there, and the file is another one.
_OWN = {"model", "what", "output", "force"}


def next_command(ctx: click.Context, capture: Capture) -> str:
    """Return the line, quoted for the shell, with all that was chosen for this run."""
    group = ctx.find_root().command
    assert isinstance(group, click.Group)
    verb = "grads" if ctx.info_name == "capture" else "capture"
    model = ctx.params["model"]
    words = ["hookscope", verb, model]
    if verb == "grads" and not _has_classes(model, capture.output):
        words += ["--loss", "sum"]
    other = group.commands[verb]
    assert isinstance(ctx.command, Command) and isinstance(other, Command)
    shared = {option.key for option in other.options() if option.expose_value} - _OWN
    hooked = bool(ctx.params["hooks"])
    if verb == "capture" and not set(ctx.params["hook_kind"]) <= set(VALUE_HOOKS):
        shared -= {"hook", "hook-kind", "hook-arg"}  # there they would wait in vain
        hooked = False
    if not (ctx.params["edits"] or hooked):  # nothing that both commands have could be compared
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
    from hookscope.losses.compute import has_classes
    from hookscope.sources import catalog

    return has_classes(output, next((x.task for x in catalog.bundled() if x.name == model), ""))
