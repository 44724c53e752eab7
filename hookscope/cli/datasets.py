"""``capture`` into a folder: a whole dataset through a model."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hookscope.choices import AUTOCASTS, DECODINGS
from hookscope.cli.command import Command, flag, option, together
from hookscope.cli.options import announce_model
from hookscope.cli.out import Out
from hookscope.cli.running import running
from hookscope.cli.values import Parsed, byte_count
from hookscope.datasets.reductions import STORE_DTYPES, read_storing
from hookscope.errors import RequestError

if TYPE_CHECKING:
    from rich.text import Text

    from hookscope.datasets.state import State

SECTION = "Datasets (--output FOLDER/)"
# What a run over a dataset does not do.
_NOT_HERE = {
    *("ops", "attention", "edits", "compare", "hooks", "hook_args", "hook_kind", "verify"),
    *("strict", "max_bytes", "train", "shape", "generate"),
}

options = together(
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
        type=Parsed("bytes", byte_count),
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
        type=Parsed("bytes", byte_count),
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
NAMES = {
    *("batch", "memory", "workers", "shard_size", "every", "decode", "stop", "skip_bad"),
    *("reduce", "store_dtype", "stats_only", "resume", "channels_last", "autocast"),
}


def split(ctx: click.Context, folder: bool, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that are for this form of the command; refuse those for the other one.

    What a variable or a settings file says of the other form is for other runs, and passed over.
    """
    other = _NOT_HERE if folder else NAMES
    assert isinstance(ctx.command, Command)
    for one in ctx.command.options():
        typed = ctx.get_parameter_source(one.name) is ParameterSource.COMMANDLINE
        if one.name in other and typed:
            raise RequestError(
                f"--{one.key} {'is not for' if folder else 'is for'} a folder of results.",
                "Let --output name a file." if folder else "End --output with a slash: features/",
            )
    return {name: value for name, value in values.items() if name not in other}


def extract(ctx: click.Context, folder: str, force: bool, values: dict[str, Any]) -> None:
    """Run the model over the dataset; print what the folder holds."""
    out: Out = ctx.obj
    if not values["input"]:
        raise RequestError(
            f"{folder} is a folder, for the results of many inputs, and there is no input.",
            "Give --input photos/, or let --output name a file.",
        )
    read_storing(values["reduce"], values["store_dtype"], values["stats_only"])
    from hookscope.datasets.folder import check_folder
    from hookscope.datasets.place import place_of

    launched = "TORCHELASTIC_RUN_ID" in os.environ
    if not launched:  # of several processes the first one looks
        check_folder(place_of(folder), resume=values["resume"], force=force)
    elif os.environ["RANK"] != "0":  # and the first one tells what they do
        out.quiet = True
    announce_model(ctx, values)
    out.last_words = "Interrupted; nothing was written."
    with running(out, f"Running {values['model']} ..."):
        from hookscope.verbs.extract import extract as verb

        several = launched and int(os.environ["WORLD_SIZE"]) > 1
        with out.bar("rows of the first process" if several else "rows") as advance:

            def progress(state: State) -> None:
                kept = f"what is finished is in {folder}; the same command with --resume goes on."
                out.last_words = f"Interrupted; {kept}"
                advance(state.rows, state.total, _pace(state))

            done = verb(**values, folder=folder, force=force, progress=progress)
        out.last_words = f"Interrupted; {folder} was written."
    if done.team.rank:
        return
    if out.json:
        from hookscope.render.json import document

        out.document(document("capture", {**done.manifest, **done.told(), "folder": folder}))
    else:
        out.result(_lines(out, done))
    _say(out, folder, done)


def _say(out: Out, folder: str, done: Any) -> None:
    from hookscope.render.text import plural
    from hookscope.render.text import size as bytes_text

    written = sum(shard["bytes"] for shard in done.manifest["shards"])
    shards = plural(len(done.manifest["shards"]), "shard")
    if done.resumed:
        out.note(f"resumed: {plural(done.resumed, 'row')} had been done already")
    if done.state.skipped:
        out.warning(
            f"{plural(done.state.skipped, 'input')} could not be used: NaN, marked in inputs.jsonl."
        )
    if pace := _pace(done.state) if done.team.world == 1 else _pace_of_all(done):
        out.note(pace)
    out.note(f"wrote {folder} ({shards}, {bytes_text(written)})")
    out.note(f"next: {shlex.join(['hookscope', 'show', folder])}")


def _lines(out: Out, done: Any) -> list[Text]:
    """The table of what is in the folder; of statistics alone that of their file."""
    from hookscope.datasets.folder import STATISTICS

    statistics = os.path.join(str(done.place), STATISTICS)
    if os.path.isfile(statistics):
        from hookscope.reader import open_capture
        from hookscope.render.statistics import statistics_lines

        return statistics_lines(open_capture(statistics), out.width, out.ascii)
    from hookscope.render.extract import extraction_lines

    return extraction_lines(done.manifest, out.width, out.ascii)


def _pace(state: State) -> str:
    """Rate, bytes written, and which part of the run was waited for; empty before the first row."""
    from hookscope.render.text import size as bytes_text

    shares = _shares(state)
    if not state.rows or not shares:
        return ""
    return f"{state.rows / state.seconds:.3g} rows/s, {bytes_text(state.bytes)}, {shares}"


def _pace_of_all(done: Any) -> str:
    """The rate of several processes together, and what the first of them waited for."""
    shares = _shares(done.state)
    if not done.rows_now:
        return ""
    rate = f"{done.rows_now / done.state.seconds:.3g} rows/s in {done.team.world} processes"
    return f"{rate}; the first: {shares}" if shares else rate


def _shares(state: State) -> str:
    times = {"decode": state.times.read, "forward": state.times.forward}
    times["write"] = state.times.write
    whole = sum(times.values())
    return ", ".join(f"{name} {part / whole:.0%}" for name, part in times.items() if whole)
