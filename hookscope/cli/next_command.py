"""The suggestion after a command: look at the file, or run a related command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from hookscope.cli.commands import Command, Option, commands_of
from hookscope.files.file_types import ONNX, describe_file
from hookscope.files.optional_packages import package_folders
from hookscope.files.output_path import is_run_folder
from hookscope.files.shell_words import join_words
from hookscope.results.dimensions import layout
from hookscope.specs.tensor_key import ATTENTION, OUTPUT

if TYPE_CHECKING:
    from pathlib import Path

    from hookscope.hooks.capture import Capture
    from hookscope.results.records import Record

# Options that have other values there.
_NOT_SHARED = {"model", "what", "output", "no-output", "force"}


def next_command(ctx: click.Context, capture: Capture, path: Path | None) -> str:
    """Return what to run after a recording, quoted for the shell; empty if there is nothing."""
    if not _has_gradients(ctx) and path is None:
        return ""
    if ctx.params.get("generate"):  # grads has no such option
        return join_words(["hookscope", "show", str(path)]) if path is not None else ""
    if path is None:
        return _gradients(ctx, capture) if ctx.info_name == "capture" else ""
    if ctx.info_name != "capture":
        return join_words(
            ["hookscope", "plot" if package_folders("matplotlib") else "report", str(path)]
        )
    if any(record.kind == ATTENTION for record in capture.records) and package_folders(
        "matplotlib"
    ):
        return join_words(["hookscope", "plot", str(path)])
    maps = [record.key for record in capture.records if _has_maps(record, capture.image)]
    if maps and ctx.params["layers"]:
        return join_words(["hookscope", "show", str(path), maps[-1], "--map"])
    if not _has_gradients(ctx):
        return join_words(["hookscope", "show", str(path)])
    return _gradients(ctx, capture)


def _has_gradients(ctx: click.Context) -> bool:
    model = ctx.params["model"]
    if is_run_folder(model):
        return False
    return not os.path.isfile(model) or describe_file(model)[0] != ONNX


def _has_maps(record: Record, image: tuple[int, int] | None) -> bool:
    letters = layout(record.type, record.kind, record.shape, image)
    sides = [n for n, letter in zip(record.shape, letters, strict=False) if letter == "S"]
    return record.kind == OUTPUT and "C" in letters and min(sides) > 1


def _gradients(ctx: click.Context, capture: Capture) -> str:
    model = ctx.params["model"]
    words = ["hookscope", "grads", model]
    if not _has_classes(model, capture.output):
        words += ["--loss", "sum"]
    options = commands_of(ctx)["grads"].options()
    shared = {option.key for option in options if option.expose_value} - _NOT_SHARED
    if not (ctx.params["edits"] or ctx.params["hooks"]):
        shared.discard("compare")  # with a run without interventions, which this is
    return join_words([*words, *_chosen(ctx, shared)])


def edit_command(ctx: click.Context, edit: str) -> str:
    """Return the command line that captures the same run with this edit and its effect."""
    return _same_run(ctx, "capture", ["--edit", edit, "--compare"], {"method"})


def grads_command(ctx: click.Context, layer: str | None) -> str:
    """Return the command for gradients of the score that ``cam`` explained; empty without them."""
    if not _has_gradients(ctx):
        return ""
    words = ["--loss", "logit", *(["--layer", layer] if layer else [])]
    return _same_run(ctx, "grads", words, {"target"})


def _same_run(ctx: click.Context, command: str, arguments: list[str], more: set[str]) -> str:
    """Return the command line of another command on the same model and input."""
    options = commands_of(ctx)[command].options()
    shared = {option.key for option in options if option.section in ("Input", "Run")}
    chosen = _chosen(ctx, shared | {"model-arg", "trust"} | more)
    return join_words(["hookscope", command, ctx.params["model"], *arguments, *chosen])


def _chosen(ctx: click.Context, keys: set[str]) -> Iterator[str]:
    """Yield the arguments of those options that were set for this run."""
    assert isinstance(ctx.command, Command)
    for option in ctx.command.options():
        if option.key in keys and option.was_chosen(ctx):
            yield from _arguments(option, option.raw_value(ctx), ctx)


def _arguments(option: Option, written: Any, ctx: click.Context) -> Iterator[str]:
    """Yield the arguments that set an option, as they were written."""
    flag = f"--{option.key}"
    if option.is_bool_flag:
        yield flag if ctx.params[option.name] else option.secondary_opts[0]
        return
    between = "x" if option.key in ("shape", "size") else ","
    for value in written if option.multiple else [written]:
        yield flag
        # A settings file may have a list instead of a text.
        yield between.join(map(str, value)) if isinstance(value, list) else str(value)


def _has_classes(model: str, output: Any) -> bool:
    """Whether the default loss of grads is defined for this output."""
    from hookscope.execution.loss import has_classes
    from hookscope.specs import catalog

    return has_classes(
        output, next((x.task for x in catalog.bundled_models() if x.name == model), "")
    )
