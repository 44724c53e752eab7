"""The common part of ``capture``, ``grads`` and ``step``: check, record, save and print."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hookscope.cli import completion_values
from hookscope.cli.console import Console
from hookscope.cli.next_command import next_command
from hookscope.cli.options import note_model_source
from hookscope.cli.run_context import running
from hookscope.errors import HookError, RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from hookscope.hooks.capture import Capture
    from hookscope.specs.request import ModelRequest


def run_recording(
    ctx: click.Context, output: str | None, force: bool, values: dict[str, Any]
) -> None:
    """Run the command of ``ctx``; its name is that of the function in the API."""
    console: Console = ctx.obj
    command = ctx.info_name or ""
    job = getattr(import_module(f"hookscope.commands.{command}"), command).checked(**values)
    path, replaces = None, False
    if writes_file(ctx):
        path, replaces = resolve_output_path(command, output, force, job.request.model)
    if path is not None and replaces:
        from hookscope.specs.edit import files_read_by
        from hookscope.specs.input_spec import input_paths

        read = [*files_read_by(values["edits"]), *input_paths(values["input"] or ())]
        check_not_an_input(path, [*read, values["weights"], values.get("target")])
    note_model_source(ctx)
    console.interrupt_message = "Interrupted; nothing was written."
    with running(console, f"Running {values['model']} ..."):
        failure: HookError | None = None
        writes_itself = command == "capture" and path is not None and not _holds_arrays(path)
        try:
            capture: Capture = job(file=path) if writes_itself else job()
        except HookError as error:
            if not error.capture:
                raise
            # A file of arrays cannot note that a hook failed.
            if path is not None and _holds_arrays(path):
                raise
            failure, capture = error, error.capture
        if path is not None:
            console.step(f"Writing {path} ...")
            written = writes_itself and failure is None
            size = path.stat().st_size if written else capture.save(path)
            console.interrupt_message = f"Interrupted; {path} was written."
        console.step("Done.")
    _remember_layers(capture, values)
    console.show(capture, None if path is None else str(path))
    if path is not None:
        note_written_file(console, path, size, replaces)
    if failure is not None:
        holder = "the table" if path is None else path
        console.warning(f"{holder} contains only what was recorded before a hook failed.")
        raise failure
    if path is not None and _holds_arrays(path):
        console.note(
            f"{path.suffix} files contain arrays only; 'hookscope show' reads .safetensors files"
        )
    elif suggested := next_command(ctx, capture, path):
        console.note(f"next: {suggested}")


def writes_file(ctx: click.Context, output: str = "output") -> bool:
    """Whether the command writes a file: of --output and --no-output the stronger source counts."""
    if not ctx.params["no_output"]:
        return True
    source = ctx.get_parameter_source(output) or ParameterSource.DEFAULT
    without = ctx.get_parameter_source("no_output") or ParameterSource.DEFAULT
    if source is without:
        raise click.UsageError("--output and --no-output cannot both be given.", ctx)
    return source < without


def resolve_output_path(
    command: str, output: str | None, force: bool, model: ModelRequest, suffix: str = ""
) -> tuple[Path, bool]:
    """Return the file to write, and whether it replaces one, after checking both.

    Without a ``suffix`` the name determines the format of the recording.
    """
    from pathlib import Path

    from hookscope.files import output_path as outputs

    default = outputs.default_path(model.stem, command, suffix or outputs.SUFFIX)
    path = Path(output) if output else default
    if suffix:
        outputs.check_ending(path, suffix)
    ending = suffix or outputs.recording_ending(path)
    return path, outputs.check_output(path, force, suffix=ending)


def _holds_arrays(path: Path) -> bool:
    from hookscope.files.output_path import SUFFIX, recording_ending

    return recording_ending(path) != SUFFIX


def check_not_an_input(path: Path, inputs: Iterable[Any]) -> None:
    """Raise RequestError if ``path`` is a file that the run reads, such as that of a patch."""
    for name in inputs:
        if isinstance(name, str) and os.path.exists(name) and os.path.samefile(name, path):
            raise RequestError(
                f"{path} is an input of this run and would be overwritten by its output.",
                "Name another file with --output.",
            )


def _remember_layers(capture: Capture, values: dict[str, Any]) -> None:
    coverage = capture.coverage
    narrowed = any(values[name] for name in ("layers", "types", "leaves")) or values["depth"]
    executed = [(layer.module, layer.type) for layer in coverage.executed]
    not_executed = [(layer.module, layer.type) for layer in coverage.not_executed]
    completion_values.remember_layers(
        values["model"], executed + not_executed, complete=not narrowed
    )


def note_written_file(console: Console, path: Path, size: int, replaces: bool) -> None:
    """Print a note on the file and its size."""
    from hookscope.files.words import bytes_text

    replaced = ", replacing an earlier file" if replaces else ""
    console.note(f"wrote {path} ({bytes_text(size)}{replaced})")
