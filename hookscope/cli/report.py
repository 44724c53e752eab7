"""``hookscope report``: a file of results as one HTML page."""

from __future__ import annotations

import click

from hookscope.cli.commands import Example, command, flag, option
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.param_types import FileName
from hookscope.cli.recording_command import note_written_file
from hookscope.errors import RequestError

EXAMPLES = (
    Example(
        "hookscope report sample_models/five.safetensors",
        "What a capture holds, as the page five.html.",
    ),
    Example(
        "hookscope report trained.capture.safetensors trained.grads.safetensors -o both.html",
        "What capture and grads wrote of sample_models/digits.py:trained, side by side.",
    ),
)


@command(
    "report",
    click.argument("file", type=FileName("file"), help="A file that hookscope wrote."),
    click.argument(
        "other",
        type=FileName("file"),
        required=False,
        metavar="[FILE2]",
        help="A second one, shown beside it.",
    ),
    option(
        "--output",
        "-o",
        section="Output",
        type=FileName("file"),
        help="The page to write; the name of FILE with .html, here, if not given.",
    ),
    flag("force", section="Output", help="Replace a file that hookscope did not write."),
    global_options,
    click.pass_context,
    examples=EXAMPLES,
)
def report(
    ctx: click.Context, file: str, other: str | None, output: str | None, force: bool
) -> None:
    """Write a page with all that a file of results holds.

    One HTML file, which needs no network and opens from disk: the tree of layers with a filter,
    each layer's statistics, histograms and feature maps, a table that sorts, how values and
    gradients flow, warnings, and the command that made it. With two files, both side by side.
    """
    console: Console = ctx.obj
    from pathlib import Path

    from hookscope.specs import output_path as outputs

    path = Path(output) if output else Path(Path(file).with_suffix(".html").name)
    for source in (file, other):
        if source is not None and path.exists() and Path(source).exists() and path.samefile(source):
            raise RequestError(
                f"{path} is read by this command, and would be replaced by what it writes.",
                "Name another file with --output.",
            )
    outputs.check_ending(path, outputs.PAGE)
    replaces = outputs.check_output(path, force, suffix=outputs.PAGE)
    console.interrupt_message = "Interrupted; nothing was written."
    with console.status(f"Reading {file} ..."):
        from hookscope.api.report import report as api_report

        result = api_report(file, other)
        size = result.save(path)
        console.interrupt_message = f"Interrupted; {path} was written."
    if console.json:
        from hookscope.views.text.documents import document

        description = {name: value for name, value in vars(result).items() if name != "html"}
        console.document(document("report", {"file": str(path), "bytes": size, **description}))
    else:
        from hookscope.views import display

        console.result(display.text(result, console.text_options))
    for failed in result.failed:
        console.warning(f"not drawn: {failed}")
    note_written_file(console, path, size, replaces)
    # A file URL, which terminals show as a link and browsers open.
    console.note(f"next: open {path.absolute().as_uri()} in a browser")
