"""Run a model over a dataset and store the features of its layers in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import click

from hookscope.cli import options
from hookscope.cli.commands import Example, combine, option
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.param_types import FileName
from hookscope.cli.run_context import running
from hookscope.cli.runner import NOTHING_WRITTEN
from hookscope.files.hub_source import hub_source
from hookscope.files.input_list import check_entries
from hookscope.files.shell_words import join_words
from hookscope.files.text_sources import text_sources
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.extract_options import ExtractOptions
from hookscope.specs.input_spec import names_object
from hookscope.specs.model_spec import parse_function
from hookscope.specs.public import Only, public
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request
from hookscope.specs.run_options import RunOptions

if TYPE_CHECKING:
    from torch import nn

    from hookscope.extraction.batch_runner import RunProgress
    from hookscope.extraction.extraction import Extraction


@public
def extract(
    model: str | os.PathLike[str] | nn.Module = DEFAULT_MODEL,
    folder: str | os.PathLike[str] = "features/",
    *,
    layers: LayerSelection,
    input: Annotated[InputRequest, Only("input", "preprocess", "size", "mean", "std", "tokenizer")],
    loading: ModelRequest,
    run: Annotated[RunOptions, Only("seed", "dtype", "device", "device_map", "max_memory")],
    options: ExtractOptions,
    request: Request,
    progress: Callable[[RunProgress], None] | None = None,
) -> Extraction:
    """Run a model over many inputs and write the outputs of its layers to a folder of shards.

    Memory does not grow with the number of inputs. Rows come in the order of the inputs. The bytes
    written depend only on the inputs, the model and the options, not on whether the run was
    interrupted.

    Args:
        folder: the folder for the results (see docs/datasets.md).
        input: folders, globs, ``@list.txt``, tar files of images; a Dataset with a length, a
            DataLoader that does not shuffle, or the spec of one: ``data.py:photos``. Texts are the
            lines of ``notes.txt``, or a column of ``reviews.jsonl:COLUMN``, of CSV, of Parquet (of
            an address too), or of a folder of the package datasets; the default column is ``text``.
            ``hub:NAME:SPLIT:COLUMN`` streams the images or texts of a data set of that package.
        progress: called with the state of the run after each batch.

    Returns:
        The manifest of the folder, and a summary of the run.

    Raises:
        ModelError, LayerError, InputError, RequestError: a spec, a pattern or a file is wrong,
            ``reduce`` cannot be applied to a layer, or ``folder`` contains something else.
        ForwardError: the model itself raised; names the layer.
        StoreError: the results cannot be written, for example because the disk is full. Finished
            shards stay.

    Example:
        >>> import hookscope, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = hookscope.extract("resnet18", folder, layers="avgpool", input="img.png")
        >>> done.rows, [key["shape"] for key in done.manifest["keys"]]
        (1, [[512, 1, 1]])
    """
    from hookscope.extraction.extraction import extract_into

    return extract_into(os.fspath(folder), request, options, progress or (lambda state: None))


EXAMPLES = (
    Example(
        "hookscope extract resnet18 --layer avgpool --input sample_models/digits/",
        "One row for each image of a folder, in features/.",
    ),
    Example(
        "hookscope extract --layer fc -i sample_models/digits/ --reduce topk:5 -o top5/",
        "The five largest values of each row.",
    ),
    Example(
        'hookscope extract sample_models/digits.py:trained --layer "conv*"'
        " --input sample_models/digits/ --reduce mean -o means/",
        "The mean of each channel over the image.",
    ),
    Example(
        "hookscope extract sample_models/digits.py:trained --layer fc"
        " --input sample_models/digits/ --stats-only -o statistics/",
        "Statistics of each unit over all images, without rows.",
    ),
)

dataset = options_of(
    ExtractOptions,
    *("batch", "memory", "workers", "shard_size", "every", "reduce", "store_dtype", "stats_only"),
    *("decode", "stop", "skip_bad", "resume", "channels_last", "autocast"),
)

inputs = options_of(
    InputRequest,
    "input",
    input={
        "callback": "",
        "collect": list,
        "help": "Image, folder, glob, @LIST, .tar file, or FILE.py:NAME. @LIST is a file with one"
        " path per line, NAME a Dataset. Texts: .txt, or FILE:COLUMN of .jsonl, .csv and .parquet."
        " hub:NAME:SPLIT is a data set of the package datasets. Repeatable.",
    },
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
        help="Folder for the results. Also an address, such as s3://bucket/run1.",
    ),
    options_of(ExtractOptions, "force"),
)


@command(
    "extract",
    options.model,
    options.layers,
    options_of(ExtractOptions, "what"),
    inputs,
    options.images,
    options.tokenizer,
    options_of(ExtractOptions, "max_tokens"),
    options.weights,
    options.seed,
    options.dtype,
    options.device,
    options.device_map,
    dataset,
    output,
    table_options,
    views="features",
    shares_work=True,
    examples=EXAMPLES,
    main="layer input model-arg batch reduce skip-bad resume output",
    also="device-map max-memory shard-size stats-only store-dtype",
    topics="model-specs layers inputs weights reductions",
)
def extract_command(ctx: click.Context, **values: Any) -> None:
    """Run a model over a dataset and store its features.

    Writes a folder with one row for each input, and prints a table of its contents. Read it in
    Python with hookscope.load(), or convert it with 'hookscope export'. Resume an interrupted run
    with --resume. Started by torchrun, several processes share the inputs.
    """
    console: Console = ctx.obj
    folder: str = values["folder"]
    job = extract.checked(**values)
    if hub_source(values["input"]) is None and text_sources(values["input"]) is None:
        objects = [spec for spec in values["input"] if names_object(spec)]
        for spec in objects:
            parse_function(spec)
        files = [spec for spec in values["input"] if spec not in objects]
        check_entries(files, skip_bad=values["skip_bad"])
    from hookscope.stores.features.folder import check_folder
    from hookscope.stores.features.location import parse_location

    launched = "TORCHELASTIC_RUN_ID" in os.environ
    if not launched:  # the first of several processes checks it
        check_folder(parse_location(folder), resume=values["resume"], force=values["force"])
    elif os.environ["RANK"] != "0":  # only the first one prints
        console.quiet = True
    options.note_model_source(ctx)
    console.interrupt_message = NOTHING_WRITTEN
    with running(console, f"Running {values['model']} ..."):
        several = launched and int(os.environ["WORLD_SIZE"]) > 1
        with console.bar("rows of the first process" if several else "rows") as advance:

            def progress(state: RunProgress) -> None:
                console.interrupt_message = (
                    f"Interrupted; finished rows are in {folder}. Run the same command with"
                    " --resume to continue."
                )
                advance(state.done, state.total, _pace(state))

            done = job(progress=progress)
        console.interrupt_message = f"Interrupted; {folder} was written."
    if done.group.rank:
        return
    if console.json:
        from hookscope.views.display import make_document

        console.document(make_document("extract", {**done.to_json(), "folder": folder}))
    else:
        _show_table(console, done)
    _say(console, folder, done)


def _say(console: Console, folder: str, done: Any) -> None:
    from hookscope.files.words import bytes_text, plural

    written = sum(shard["bytes"] for shard in done.manifest["shards"])
    shards = plural(len(done.manifest["shards"]), "shard")
    if done.resumed and not done.rows_now:
        console.note(f"nothing to do: all {plural(done.rows, 'row')} exist")
    elif done.resumed:
        console.note(f"resumed: {plural(done.resumed, 'row')} existed already")
    if done.state.skipped:
        console.warning(
            f"{plural(done.state.skipped, 'input')} could not be used: their rows are NaN, marked"
            " in inputs.jsonl."
        )
    if pace := _pace(done.state) if done.group.world == 1 else _pace_of_all(done):
        console.note(pace)
    console.note(f"wrote {folder} ({shards}, {bytes_text(written)})")
    console.note(f"next: {join_words(['hookscope', 'show', folder])}")


def _show_table(console: Console, done: Any) -> None:
    """Print the table of what is in the folder, or of its statistics if it has nothing else."""
    from hookscope.stores.features.folder import STATISTICS

    statistics = os.path.join(str(done.location), STATISTICS)
    if os.path.isfile(statistics):
        from hookscope.stores.capture_file import open_capture

        console.show(open_capture(statistics))
    else:
        from hookscope.views.features import extraction_lines

        console.result(extraction_lines(done.manifest, console.text_options))


def _pace(state: RunProgress) -> str:
    """Return rate, bytes written, and shares of time; empty before the first row."""
    from hookscope.files.words import bytes_text

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
