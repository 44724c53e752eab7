"""What ``capture``, ``grads`` and ``step`` have in common: check, record, save, show, tell."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from hookscope.cli import completion_values
from hookscope.cli.console import Console
from hookscope.cli.next_command import next_command
from hookscope.cli.options import announce_model
from hookscope.cli.run_context import running
from hookscope.errors import HookError, RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from hookscope.hooks.capture import Capture


def run_recording(
    ctx: click.Context, output: str | None, force: bool, values: dict[str, Any]
) -> None:
    """Carry out the command of ``ctx``; its name is that of the function in the API."""
    out: Console = ctx.obj
    verb = ctx.info_name or ""
    path, replaces = resolve_output_path(verb, output, force, values["model"])
    if replaces:
        from hookscope.specs.edit import files_read_by
        from hookscope.specs.input_spec import input_paths

        read = [*files_read_by(values["edits"]), *input_paths(values["input"] or ())]
        check_not_an_input(path, [*read, values["weights"], values.get("target")])
    announce_model(ctx)
    out.interrupt_message = "Interrupted; nothing was written."
    with running(out, f"Running {values['model']} ..."):
        failure: HookError | None = None
        try:
            capture: Capture = getattr(import_module(f"hookscope.api.{verb}"), verb)(**values)
        except HookError as error:
            if not error.capture:
                raise
            if _holds_arrays(path):  # which could not say that a hook failed
                raise
            failure, capture = error, error.capture
        out.step(f"Writing {path} ...")
        size = capture.save(path)
        out.interrupt_message = f"Interrupted; {path} was written."
        out.step("Done.")
    _remember_layers(capture, values)
    if out.json:
        from hookscope.views.text.documents import capture_document

        out.document(capture_document(capture, str(path)))
    else:
        from hookscope.views.text.summary import summary_lines

        out.result(summary_lines(capture, out.width, out.ascii))
    note_written_file(out, path, size, replaces)
    if failure is not None:
        out.warning(f"{path} holds only what was recorded before a hook failed.")
        raise failure
    if _holds_arrays(path):
        out.note(f"{path.suffix} files hold arrays only; 'hookscope show' reads .safetensors files")
        return
    out.note(f"next: {next_command(ctx, capture, path)}")


def resolve_output_path(
    verb: str, output: str | None, force: bool, model: str, suffix: str = ""
) -> tuple[Path, bool]:
    """Return the file to be written, and whether that replaces one; refuse what cannot be.

    Without a ``suffix`` the name says in which of the formats of a recording it is.
    """
    from pathlib import Path

    from hookscope.specs import catalog
    from hookscope.specs import output_path as outputs

    spec = catalog.check_model_spec(model)
    default = outputs.default_path(spec.stem, verb, suffix or outputs.SUFFIX)
    path = Path(output) if output else default
    if suffix:
        outputs.check_ending(path, suffix)
    ending = suffix or outputs.recording_ending(path)
    return path, outputs.check_output(path, force, suffix=ending)


def _holds_arrays(path: Path) -> bool:
    from hookscope.specs.output_path import SUFFIX, recording_ending

    return recording_ending(path) != SUFFIX


def check_not_an_input(path: Path, words: Iterable[Any]) -> None:
    """Refuse to replace a file that the run reads: the clean capture of a patch, say."""
    for word in words:
        if isinstance(word, str) and os.path.exists(word) and os.path.samefile(word, path):
            raise RequestError(
                f"{path} is read by this run, and would be replaced by what it writes.",
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


def note_written_file(out: Console, path: Path, size: int, replaces: bool) -> None:
    """Note the file and its size."""
    from hookscope.views.text.formats import bytes_text

    replaced = ", replacing an earlier file" if replaces else ""
    out.note(f"wrote {path} ({bytes_text(size)}{replaced})")
