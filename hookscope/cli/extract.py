"""``hookscope extract``: a whole dataset through a model, into a folder."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

import click

from hookscope.cli import input_options, options
from hookscope.cli.commands import Example, combine, command, flag, option
from hookscope.cli.console import Console
from hookscope.cli.global_options import global_options
from hookscope.cli.param_types import FileName, InputName, ParsedValue, read_byte_count
from hookscope.cli.run_context import running
from hookscope.cli.table_options import precision_option
from hookscope.errors import RequestError
from hookscope.specs.choices import AUTOCASTS, DECODINGS
from hookscope.specs.input_list import is_listing
from hookscope.specs.reduction import STORE_DTYPES

if TYPE_CHECKING:
    from hookscope.extraction.batch_runner import RunProgress

SECTION = "Dataset"

EXAMPLES = (
    Example(
        "hookscope extract sample_models/digits.py:trained --layer pool"
        " --input sample_models/digits/ -o features/",
        "One row for each image of a folder.",
    ),
    Example(
        'hookscope extract sample_models/digits.py:trained --layer "conv*"'
        " --input sample_models/digits/ --reduce mean -o means/",
        "The mean of each channel over the image.",
    ),
    Example(
        "hookscope extract sample_models/digits.py:trained --layer fc"
        " --input sample_models/digits/ --stats-only -o statistics/",
        "Statistics of each unit over all images, and no rows.",
    ),
)


dataset = combine(
    option(
        "--batch",
        section=SECTION,
        type=click.IntRange(min=1),
        metavar="N",
        help="Inputs at once; as many as --memory allows, 64 at most and on a CPU no more"
        " than 5 MB of them, if not given.",
    ),
    option(
        "--memory",
        section=SECTION,
        default="2GB",
        type=ParsedValue("bytes", read_byte_count),
        help="What the run may take beside the model, by an estimate.",
    ),
    option(
        "--workers",
        section=SECTION,
        type=click.IntRange(min=0),
        metavar="N",
        help="Processes that read and preprocess; one fewer than there are cores if not given.",
    ),
    option(
        "--shard-size",
        section=SECTION,
        type=ParsedValue("bytes", read_byte_count),
        help="Size of one file of results, roughly; 512MB at most, and 16 files if there are rows"
        " for so many batches, if not given.",
    ),
    option(
        "--every",
        section=SECTION,
        default=1,
        type=click.IntRange(min=1),
        metavar="N",
        help="Take every N-th input, beginning with the first.",
    ),
    option(
        "--reduce",
        section=SECTION,
        metavar="WORD",
        help="Keep less of each row: mean, max, cls, flatten, topk:K, pca:K or histogram, with"
        " :space, :tokens or :all behind it.",
    ),
    option(
        "--store-dtype",
        section=SECTION,
        type=click.Choice(STORE_DTYPES),
        help="Keep floating-point values in this dtype; --dtype is what the model computes in.",
    ),
    flag(
        "stats-only",
        section=SECTION,
        help="Keep statistics of each channel over all inputs, and no row.",
    ),
    option(
        "--decode",
        section=SECTION,
        default=DECODINGS[0],
        type=click.Choice(DECODINGS),
        help="fast lets a JPEG be scaled down while it is decoded, to no less than twice the side"
        " of what the model is given.",
    ),
    flag(
        "stop",
        section=SECTION,
        default=True,
        help="End each pass after the last layer that is wanted, where the order of layers does not"
        " depend on data.",
    ),
    flag(
        "skip-bad",
        section=SECTION,
        help="Go on where a file cannot be used; its row is NaN.",
    ),
    flag(
        "resume",
        section=SECTION,
        help="Go on with what an earlier run of the same command left, and mend what is damaged.",
    ),
    flag("channels-last", section=SECTION, help="Keep images and weights in that memory format."),
    option(
        "--autocast",
        section=SECTION,
        type=click.Choice(AUTOCASTS),
        help="Run under torch.autocast to this dtype.",
    ),
)


def _none_if_empty(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> list[str] | None:
    return list(value) or None


inputs = option(
    "--input",
    "-i",
    section="Input",
    multiple=True,
    type=InputName("word"),
    callback=_none_if_empty,
    help="Images, folders or globs of them; @LIST, a file with one of them on each line; a .tar of"
    " them; or FILE.py:NAME of a Dataset. Repeatable.",
)

output = combine(
    option(
        "--output",
        "-o",
        "folder",
        section="Output",
        default="features/",
        type=FileName("folder"),
        metavar="FOLDER",
        help="The folder for the results, or an address such as s3://bucket/run1.",
    ),
    flag("force", section="Output", help="Replace the results in the folder."),
)


@command(
    "extract",
    options.model,
    options.layers,
    options.what("output", "output", "input"),
    inputs,
    input_options.images,
    options.weights,
    options.seed,
    options.dtype,
    options.device,
    options.device_map,
    dataset,
    output,
    precision_option,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
)
def extract(ctx: click.Context, **values: Any) -> None:
    """Run a model over a dataset and store the features of its layers.

    Writes a folder with one row for each input, however many there are, and prints what is in it.
    hookscope.load() reads it in Python, hookscope export writes it to one file. A run that was
    interrupted goes on with --resume. Started by torchrun, several processes share the inputs.
    """
    console: Console = ctx.obj
    folder: str = values["folder"]
    if not values["input"]:
        raise RequestError("There is no input.", "Give a folder of images: --input photos/")
    if not values["skip_bad"]:
        input_options.check_inputs(spec for spec in values["input"] if not is_listing(spec))
    from hookscope.cli.request_builder import build_request

    build_request("extract", values)
    from hookscope.results.features.folder import check_folder
    from hookscope.results.features.location import parse_location

    launched = "TORCHELASTIC_RUN_ID" in os.environ
    if not launched:  # the first of several processes checks it
        check_folder(parse_location(folder), resume=values["resume"], force=values["force"])
    elif os.environ["RANK"] != "0":  # only the first one prints
        console.quiet = True
    options.note_model_source(ctx)
    console.interrupt_message = "Interrupted; nothing was written."
    with running(console, f"Running {values['model']} ..."):
        from hookscope.api.extract import extract as api_extract

        several = launched and int(os.environ["WORLD_SIZE"]) > 1
        with console.bar("rows of the first process" if several else "rows") as advance:

            def progress(state: RunProgress) -> None:
                kept = f"what is finished is in {folder}; the same command with --resume goes on."
                console.interrupt_message = f"Interrupted; {kept}"
                advance(state.rows, state.total, _pace(state))

            done = api_extract(**values, progress=progress)
        console.interrupt_message = f"Interrupted; {folder} was written."
    if done.group.rank:
        return
    if console.json:
        from hookscope.views.text.documents import document

        console.document(document("extract", {**done.manifest, **done.summary(), "folder": folder}))
    else:
        _show_table(console, done)
    _say(console, folder, done)


def _say(console: Console, folder: str, done: Any) -> None:
    from hookscope.views.text.formats import bytes_text, plural

    written = sum(shard["bytes"] for shard in done.manifest["shards"])
    shards = plural(len(done.manifest["shards"]), "shard")
    if done.resumed:
        console.note(f"resumed: {plural(done.resumed, 'row')} had been done already")
    if done.state.skipped:
        console.warning(
            f"{plural(done.state.skipped, 'input')} could not be used: NaN, marked in inputs.jsonl."
        )
    if pace := _pace(done.state) if done.group.world == 1 else _pace_of_all(done):
        console.note(pace)
    console.note(f"wrote {folder} ({shards}, {bytes_text(written)})")
    console.note(f"next: {shlex.join(['hookscope', 'show', folder])}")


def _show_table(console: Console, done: Any) -> None:
    """Print the table of what is in the folder; of statistics alone that of their file."""
    from hookscope.results.features.folder import STATISTICS

    statistics = os.path.join(str(done.location), STATISTICS)
    if os.path.isfile(statistics):
        from hookscope.results.capture_file import open_capture

        console.show(open_capture(statistics))
    else:
        from hookscope.views.text.extract import extraction_lines

        console.result(extraction_lines(done.manifest, console.text_options))


def _pace(state: RunProgress) -> str:
    """Return rate, bytes written, and shares of time; empty before the first row."""
    from hookscope.views.text.formats import bytes_text

    shares = _shares(state)
    if not state.rows or not shares:
        return ""
    return f"{state.rows / state.seconds:.3g} rows/s, {bytes_text(state.bytes)}, {shares}"


def _pace_of_all(done: Any) -> str:
    """Return the rate of several processes together, and shares of time of the first."""
    shares = _shares(done.state)
    if not done.rows_now:
        return ""
    rate = f"{done.rows_now / done.state.seconds:.3g} rows/s in {done.group.world} processes"
    return f"{rate}; the first: {shares}" if shares else rate


def _shares(state: RunProgress) -> str:
    times = {"decode": state.times.read, "forward": state.times.forward}
    times["write"] = state.times.write
    whole = sum(times.values())
    return ", ".join(f"{name} {part / whole:.0%}" for name, part in times.items() if whole)
