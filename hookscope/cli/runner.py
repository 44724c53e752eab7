"""The one way in which a command runs: check its file, run, write the file, print the result."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hookscope.cli import completion_values
from hookscope.cli.console import Console
from hookscope.cli.next_command import next_command
from hookscope.cli.options import note_model_source
from hookscope.cli.output_file import RECORDING, Output, OutputFile, files_read, without_output
from hookscope.cli.run_context import running, show_logs
from hookscope.errors import HookError
from hookscope.files.output_path import SUFFIX
from hookscope.specs.public import HANDLERS, Checked, check_accepted
from hookscope.specs.subject_kinds import (
    MODEL_AND_DUMP,
    MODEL_AND_FINGERPRINT,
    MODEL_AND_WEIGHTS,
    MODELS,
    RUNS,
    STRUCTURES,
)

if TYPE_CHECKING:
    from hookscope.hooks.capture import Capture
    from hookscope.results.records import Coverage
    from hookscope.views.images.figures.drawing import Drawing

NOTHING_WRITTEN = "Interrupted; nothing was written."


def run_analysis(
    ctx: click.Context,
    function: Any,
    values: Mapping[str, Any],
    output: Output | None = None,
    bar: str = "",
    runs: str = "",
) -> Any:
    """Run a function of a model; write its file, print its result, and return it.

    ``bar`` is for a function with ``progress``. ``runs`` says what it does one after another, if it
    writes a JSON file meanwhile and the same command resumes.
    """
    values = without_output(values)
    job = function.checked(**values)
    file = output.resolve(ctx, job.request.model.stem, files_read(values)) if output else None
    note_model_source(ctx)
    step = running(ctx.obj, f"Running {values['model']} ...")
    return _run(ctx.obj, job, file, step, bar, runs)


def run_on_features(
    ctx: click.Context,
    function: Any,
    folders: Sequence[str | None],
    values: Mapping[str, Any],
    output: Output,
    bar: str,
) -> None:
    """Run a function of features folders, without torch; write its file and print its result."""
    job = function.checked(*folders, **without_output(values))
    file = output.resolve(ctx, folders=folders)
    show_logs(ctx.obj)
    _run(ctx.obj, job, file, ctx.obj.status(f"{bar} ..."), bar)


def _run(
    console: Console,
    job: Any,
    file: OutputFile | None,
    step: AbstractContextManager[None],
    bar: str = "",
    runs: str = "",
) -> Any:
    resumable = file if file is not None and runs and file.ending == ".json" else None
    written = {"file": resumable and resumable.path} if runs else {}
    console.interrupt_message = NOTHING_WRITTEN
    with step:
        with _progress(console, bar, resumable, runs) as progress:
            result = job(**written, **progress)
        if resumable is not None:
            size = resumable.path.stat().st_size
            file = resumable._replace(replaces=resumable.replaces and not result.resumed)
        elif file is not None:
            from hookscope.views.display import write_analysis

            size = write_analysis(result, file.path, file.dpi)
        if file is not None:
            console.interrupt_message = f"Interrupted; {file.path} was written."
    console.show(result, None if file is None else str(file.path))
    if file is not None:
        console.note(file.written(size))
    return result


@contextmanager
def _progress(
    console: Console, bar: str, resumable: OutputFile | None, runs: str
) -> Iterator[dict[str, Any]]:
    """Yield the keyword ``progress`` of a job, if it has one."""
    if not bar:
        yield {}
        return
    with console.bar(bar) as advance:

        def progress(done: int, total: int) -> None:
            if done and resumable is not None:
                console.interrupt_message = (
                    f"Interrupted; {done} of {total} {runs} are in {resumable.path}."
                    " Run the same command to resume."
                )
            advance(done, total)

        yield {"progress": progress}


def checked_job(ctx: click.Context, function: Any, values: Mapping[str, Any]) -> Checked:
    """Check the values that apply to the kind of subject; another that was typed is an error."""
    job: Checked
    if function.find_subject is None:
        job = function.checked(**values)
        return job
    subject = function.find_subject(values)
    handler = HANDLERS.get((function.__name__, subject.kind))
    if handler:
        for name in values:
            typed = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
            if typed and name not in handler.function.keywords:
                check_accepted(function, name, subject)
    job = function.checked_of(subject.kind, values)
    return job


@contextmanager
def job_step(
    console: Console, job: Checked, what: str, bar: str = "Reading"
) -> Iterator[dict[str, Any]]:
    """Show what a job does, with torch for a model and for trusted code; yield its progress."""
    with_model = (
        *(MODELS, MODEL_AND_WEIGHTS, MODEL_AND_DUMP, MODEL_AND_FINGERPRINT),
        STRUCTURES,
    )
    needs_torch = job.kind in with_model or any(
        getattr(part, "trust", False) for part in job.values.values()
    )
    with running(console, what) if needs_torch else console.status(what):
        if "progress" not in inspect.signature(job.function).parameters:
            yield {}
            return
        with console.bar(bar) as advance:
            yield {"progress": advance}


def run_recording(ctx: click.Context, function: Any, values: Mapping[str, Any]) -> None:
    """Run ``capture``, ``grads`` or ``step``; write what was recorded also if a hook fails."""
    console: Console = ctx.obj
    values = without_output(values)
    job = checked_job(ctx, function, values)
    is_live = job.kind == RUNS
    stem = Path(values["model"]).resolve().name if is_live else job.request.model.stem
    file = RECORDING.resolve(ctx, stem, files_read(values))
    holds_arrays = file is not None and file.ending != SUFFIX
    note_model_source(ctx)
    console.interrupt_message = NOTHING_WRITTEN
    verb = "Waiting for the next step of" if is_live else "Running"
    with running(console, f"{verb} {values['model']} ..."):
        failure: HookError | None = None
        writes_itself = ctx.info_name == "capture" and file is not None and not holds_arrays
        try:
            capture: Capture = job(file=file.path) if file and writes_itself else job()
        except HookError as error:
            # A file of arrays cannot note that a hook failed.
            if not error.capture or holds_arrays:
                raise
            failure, capture = error, error.capture
        if file is not None:
            console.step(f"Writing {file.path} ...")
            written = writes_itself and failure is None
            size = file.path.stat().st_size if written else capture.save(file.path)
            console.interrupt_message = f"Interrupted; {file.path} was written."
        console.step("Done.")
    narrowed = any(values[name] for name in ("layers", "types", "leaves", "depth"))
    remember_executed(values["model"], capture.coverage, complete=not narrowed)
    path = None if file is None else file.path
    console.show(capture, None if path is None else str(path))
    if file is not None:
        console.note(file.written(size))
    if failure is not None:
        holder = "the table" if path is None else path
        console.warning(f"{holder} contains only what was recorded before a hook failed.")
        raise failure
    if file is not None and holds_arrays:
        console.note(
            f"{file.path.suffix} files contain arrays only; 'hookscope show' reads .safetensors"
            " files"
        )
    elif suggested := next_command(ctx, capture, path):
        console.note(f"next: {suggested}")


def show_picture(console: Console, drawing: Drawing, file: OutputFile, command: str) -> None:
    """Write a picture, and print what it shows."""
    console.step(f"Writing {file.path} ...")
    size = drawing.save(file.path, file.dpi)
    if console.json:
        from hookscope.views.display import make_document

        description = {"file": str(file.path), "kind": drawing.kind, "shows": drawing.shows}
        console.document(make_document(command, description))
    else:
        from hookscope.views.text.text_table import sentence

        for line in drawing.shows:
            console.result(sentence(line, console.text_options))
    console.note(file.written(size))


def remember_executed(model: str, coverage: Coverage, complete: bool = False) -> None:
    """Store the names of the layers for completion."""
    names = [(layer.module, layer.type) for layer in coverage.executed]
    names += [(layer.module, layer.type) for layer in coverage.not_executed]
    completion_values.remember_layers(model, names, complete)
