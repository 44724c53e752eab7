"""Write features of a dataset, tensors of a capture or curves of a run to one file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hookscope.cli.commands import Example
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command
from hookscope.cli.output_file import Output, one_of, without_output
from hookscope.cli.param_types import FileName
from hookscope.cli.runner import NOTHING_WRITTEN
from hookscope.errors import RequestError, StoreError, cause
from hookscope.files.atomic_files import replacement_file
from hookscope.files.output_path import (
    RUN_TABLES,
    SUFFIX,
    TABLES,
    check_output,
    is_run_folder,
    known_ending,
    run_table_ending,
    tracker_of,
)
from hookscope.files.progress_types import Progress
from hookscope.specs.command_options import ExportOptions
from hookscope.specs.patterns import as_texts
from hookscope.specs.public import handles, public
from hookscope.specs.subject_kinds import CAPTURES, FEATURES, RUNS, Subject

if TYPE_CHECKING:
    from hookscope.results.exports import Exported, ExportedRun, TrackedRun


@public
def export(
    features: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    options: ExportOptions,
    progress: Progress | None = None,
) -> Exported | ExportedRun | TrackedRun:
    """Write the features of a dataset, tensors of a capture, or the numbers of a run, to one file.

    The file is written completely or not at all. Memory does not grow with the number of rows. Each
    shard is read completely first, and its CRC-32 is verified, whichever layers are selected. int8
    values are multiplied by the scale of their row. Columns of the rows, such as labels, are in all
    formats but ``.npy``; in ``.safetensors``, those of texts are lists in ``metadata["columns"]``.

    Args:
        features: the folder, or its address; the file of a capture; or the folder of a training
            run.
        output: the file. Its extension selects the format: ``.safetensors``, which
            ``hookscope.load`` and ``hookscope show`` also open; ``.npy``, one array of one layer,
            for ``numpy.load(output, mmap_mode="r")``; ``.npz``, one array for each key; or, for a
            folder, ``.parquet``, a table with the columns ``row`` and ``path`` and a fixed-length
            list for each layer. In files of numpy, bfloat16 and the float8 types become float32 and
            complex32 becomes complex64, with the same values. For a training run: ``.csv`` or
            ``.parquet``, with the columns ``table``, ``step``, ``seconds``, ``model``, ``key``,
            ``measure`` and ``value``; a folder, which gets a file of scalars for TensorBoard; or
            ``wandb:PROJECT`` or ``mlflow:EXPERIMENT``, which gets a new run.
        progress: called with the number of rows done and the total, both summed over the layers;
            for a capture, with numbers of tensors.

    Returns:
        The file, its size, and its contents; for a training run, numbers of series and values.

    Raises:
        RequestError: there are no such features, a layer matches nothing, the format does not
            support the selection, or the file would be inside the folder.
        ResultsFileError: a shard is missing or damaged.
        StoreError: the file cannot be written. An existing file is then unchanged.
        EnvironmentFault: pyarrow, which Parquet needs, or the package of a tracker is not
            installed.

    Example:
        >>> import hookscope, numpy, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = hookscope.export("sample_models/features", f"{folder}/a.npy", layers="fc")
        ...     numpy.load(done.path).argmax(axis=1)
        array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    from hookscope.file_analysis.layer_rows import row_counter
    from hookscope.results.exports import Exported
    from hookscope.stores.features.features import Features
    from hookscope.stores.features.features_export import WRITERS

    path = Path(output)
    write = WRITERS[known_ending(path, TABLES)]
    opened_features = Features(features, sums=True)
    if path.parent.resolve() == Path(opened_features.folder).resolve():
        raise RequestError(
            f"The output {path} would be among the files of {opened_features.folder}.",
            "Set --output to a file in another folder.",
        )
    rows_of_keys = tuple(
        opened_features[key] for key in opened_features.choose(as_texts(options.layers))
    )
    advance = row_counter(progress, len(opened_features) * len(rows_of_keys))
    with replacement_file(path, "Choose another location, or fewer layers.") as scratch:
        write(opened_features, rows_of_keys, scratch, advance)
        size = scratch.stat().st_size
    return Exported(path, size, rows_of_keys)


def _find_source(given: Mapping[str, Any]) -> Subject:
    """Return what is exported; an address, or a folder that is not a run, is read as features."""
    source = given["features"]
    if is_run_folder(source):
        return Subject(RUNS, f"{source} is the folder of a training run")
    missing = not os.path.exists(source) and os.fspath(source).endswith(SUFFIX)
    if missing or os.path.isfile(source):
        return Subject(CAPTURES, f"{source} is a capture")
    return Subject(FEATURES, f"{source} is a features folder")


export.find_subject, export.takes_models = _find_source, False


@handles(export, RUNS)
def export_training_run(
    features: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    options: ExportOptions,
    progress: Progress | None = None,
) -> ExportedRun | TrackedRun:
    """Write the numbers of a training run."""
    from hookscope.stores.runs.rank_runs import open_run
    from hookscope.stores.runs.run_export import export_run
    from hookscope.stores.runs.run_trackers import export_to_tracker

    path = Path(output)
    if address := tracker_of(path):
        return export_to_tracker(open_run(features), address, as_texts(options.layers), progress)
    if ending := run_table_ending(path):
        check_output(path, force=True, suffix=ending)
    if path.suffix.lower() not in RUN_TABLES:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"Cannot create the folder {path}: {cause(error)}.") from error
    return export_run(open_run(features), path, as_texts(options.layers), progress)


@handles(export, CAPTURES)
def export_capture(
    features: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    options: ExportOptions,
    progress: Progress | None = None,
) -> Exported:
    """Write tensors of the file of a capture."""
    from hookscope.results.exports import Exported
    from hookscope.stores.capture_export import choose_slices, write_slices
    from hookscope.stores.capture_file import open_capture

    path = Path(output)
    ending = known_ending(path, TABLES)
    capture = open_capture(features)
    if path.exists() and path.samefile(features):
        raise RequestError(
            f"{path} is the input of this command and would be overwritten.",
            "Set --output to another file.",
        )
    parts = choose_slices(capture, as_texts(options.layers), ending)
    with replacement_file(path, "Choose another location, or fewer layers.") as scratch:
        write_slices(capture, parts, scratch, ending, progress or (lambda done, total: None))
        size = scratch.stat().st_size
    return Exported(path, size, parts)


EXAMPLES = (
    Example(
        "hookscope export sample_models/features/ --layer fc -o fc.npy",
        "The rows of one layer as an array for numpy.load.",
    ),
    Example(
        "hookscope export sample_models/features/",
        "All layers in one safetensors file.",
    ),
    Example(
        "hookscope export sample_models/five.safetensors --layer conv1 -o conv1.npy",
        "One tensor of a capture as an array for numpy.load.",
    ),
    Example(
        "hookscope export sample_models/run -o curves.csv",
        "All numbers of a training run as a table.",
    ),
    Example(
        "hookscope export sample_models/run -o tensorboard/",
        "The same as scalars for TensorBoard. Or wandb:PROJECT, or mlflow:EXPERIMENT.",
    ),
)

features = click.argument(
    "features",
    metavar="FOLDER",
    type=FileName("folder"),
    help="Folder that 'hookscope extract' wrote, or its address.",
)

OUTPUT = Output(
    "File to write: .safetensors, .npy (one array), .npz, or .parquet (folders only)."
    " For a training run: .csv, .parquet, a folder for TensorBoard, wandb:PROJECT or"
    " mlflow:EXPERIMENT."
    " Default: NAME.export.safetensors; for a training run NAME.export.csv.",
    one_of(*TABLES),
    ".{command}.safetensors",
)
OUTPUT_OF_RUN = replace(OUTPUT, ending_of=run_table_ending, default=".{command}.csv")


@command(
    "export",
    click.argument(
        "features",
        metavar="FOLDER|FILE",
        type=FileName("file"),
        help="Folder of 'hookscope extract' or 'hookscope run', or result file of capture, grads"
        " or step.",
    ),
    options_of(ExportOptions),
    OUTPUT.options,
    examples=EXAMPLES,
    main="layer output force",
    topics="keys",
)
def export_command(ctx: click.Context, features: str, **values: Any) -> None:
    """Write features, tensors, or curves of a run, to one file.

    Values are read and written a few megabytes at a time, so memory use does not depend on the
    number of inputs. Torch is not loaded. In .npy and .npz files bfloat16 and float8 become float32
    and complex32 becomes complex64, without loss.
    """
    name = os.path.basename(os.path.abspath(features))
    if os.path.isfile(features):
        name = Path(features).stem
    kind = export.find_subject({"features": features}).kind
    file = (OUTPUT_OF_RUN if kind == RUNS else OUTPUT).resolve(ctx, name)
    assert file is not None
    console: Console = ctx.obj
    tracker = tracker_of(file.path) if kind == RUNS else None
    unfinished = f"Interrupted; the run in {file.path} is not complete."
    console.interrupt_message = unfinished if tracker else NOTHING_WRITTEN
    job = export.checked(features, file.path, **without_output(values))
    with console.bar("Exporting") as advance:
        done = job(progress=advance)
    console.show(done)
    if tracker:
        console.note(f"wrote the run {done.name} to {file.path} ({done.place})")
    else:
        console.note(file._replace(path=done.path).written(done.bytes))
