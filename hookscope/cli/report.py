"""``hookscope report``: a result file, a training run or weights as one HTML page."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hookscope.cli import options
from hookscope.cli.commands import Example, command, option
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.param_types import FileName
from hookscope.cli.recording_command import note_written_file
from hookscope.cli.run_context import reading
from hookscope.errors import RequestError
from hookscope.stores.weights.open_weights import default_stem

EXAMPLES = (
    Example(
        "hookscope report sample_models/five.safetensors",
        "Write five.html with the contents of a capture.",
    ),
    Example(
        "hookscope report sample_models/five.safetensors -o page.html",
        "Choose the name of the page.",
    ),
    Example(
        "hookscope report trained.capture.safetensors trained.grads.safetensors -o both.html",
        "Values and gradients of sample_models/digits.py:trained, side by side.",
    ),
    Example("hookscope report sample_models/run", "Write run.html with the curves of a run."),
    Example(
        "hookscope report sample_models/digits.safetensors", "The tensors of a file of weights."
    ),
)


@command(
    "report",
    click.argument("file", type=FileName("file"), help="Result file, run folder or weights."),
    click.argument(
        "others",
        type=FileName("file"),
        nargs=-1,
        metavar="[FILE]...",
        help="A second one to show beside it, or more runs.",
    ),
    option(
        "--output",
        "-o",
        section="Output",
        type=FileName("file"),
        help="Page to write. Default: the name of FILE with .html.",
    ),
    options.force,
    options.trust_weights,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="output force",
)
def report(
    ctx: click.Context,
    file: str,
    others: tuple[str, ...],
    output: str | None,
    force: bool,
    trust: bool,
) -> None:
    """Write an HTML report of a result file, a training run or weights.

    The report is a single HTML file that works without a network. Of a result file it has a tree
    and a graph of the modules, the statistics, histograms and feature maps of each, a sortable
    table, plots of values and gradients by layer, warnings, and the command that wrote the result
    file. Two files are shown side by side.

    For a run folder, which hookscope run wrote, it has curves over the steps: loss, learning rates,
    gradient norms, and for each layer the activations, gradients and updates. The curves of several
    runs are drawn together. A folder of runs, such as runs/, means all of them.

    For weights (a file, a folder or an index) it has totals, the findings of hookscope check, a
    tree of names, and statistics and a histogram of each tensor.
    """
    console: Console = ctx.obj
    from hookscope.files import output_path as outputs

    path = Path(output) if output else _default_path(Path(file))
    for source in (file, *others):
        if path.exists() and Path(source).exists() and path.samefile(source):
            raise RequestError(
                f"{path} is an input of this command and would be overwritten by its output.",
                "Name another file with --output.",
            )
    outputs.check_ending(path, outputs.PAGE)
    replaces = outputs.check_output(path, force, suffix=outputs.PAGE)
    console.interrupt_message = "Interrupted; nothing was written."
    reading_file = reading(console, f"Reading {file} ...", trust)
    with reading_file, console.bar("Reading") as advance:
        from hookscope.api.report import report as api_report

        result = api_report(file, *others, trust=trust, progress=advance)
        size = result.save(path)
        console.interrupt_message = f"Interrupted; {path} was written."
    if console.json:
        from hookscope.views.view import make_document

        description = {name: value for name, value in vars(result).items() if name != "html"}
        console.document(make_document("report", {"file": str(path), "bytes": size, **description}))
    else:
        from hookscope.views import display

        console.result(display.text(result, console.text_options))
    for failed in result.failed:
        console.warning(f"not plotted: {failed}")
    note_written_file(console, path, size, replaces)
    # A file URL, which terminals show as a link and browsers open.
    console.note(f"next: open {path.absolute().as_uri()} in a browser")


def _default_path(source: Path) -> Path:
    """The name of the source with .html; a dot in the name of a folder begins no suffix."""
    return Path(f"{default_stem(os.fspath(source))}.html")
