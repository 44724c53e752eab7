"""Plot a capture, training runs or a file of weights, without torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import click

from hookscope.cli import options, picture_options
from hookscope.cli.commands import Example
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command
from hookscope.cli.output_file import PICTURE, one_of, without_output
from hookscope.cli.run_context import show_logs
from hookscope.cli.runner import NOTHING_WRITTEN, checked_job, job_step, show_picture
from hookscope.commands.subject import as_weights, check_trust, find_subject
from hookscope.errors import RequestError
from hookscope.files.output_path import ANALYSES, PAGE, runs_in
from hookscope.files.progress_types import NamedProgress
from hookscope.specs.choices import SCATTER
from hookscope.specs.features_options import ScatterOptions
from hookscope.specs.plot_options import PlotKeys, PlotOptions
from hookscope.specs.public import Only, handles, public
from hookscope.specs.subject_kinds import CAPTURES, FEATURES, RUNS, WEIGHTS
from hookscope.specs.weight_options import WeightTrust
from hookscope.views.images import require_matplotlib
from hookscope.views.images.figures.drawing import Drawing

if TYPE_CHECKING:
    from hookscope.results.feature_scatter import FeatureScatter
    from hookscope.stores.capture_file import CaptureFile, InMemory
    from hookscope.stores.weights.weight_set import WeightSet

log = logging.getLogger("hookscope")


@public
def plot(
    file: str | os.PathLike[str] | WeightSet | InMemory,
    keys: str | Iterable[str] = (),
    *,
    more: PlotKeys,
    options: PlotOptions,
    scatter: ScatterOptions,
    pickled: WeightTrust,
    progress: NamedProgress | None = None,
) -> Drawing | FeatureScatter:
    """Plot a capture, training runs, the rows of features, or the tensors of a file of weights.

    Of the folder of a training run, loss, gradient norm and learning rate are drawn over the steps,
    or the curves of ``keys``. Of a folder of runs, those of all runs. Only ``dark`` applies.

    For weights, one tensor is drawn as kernels (three dimensions or more), as a matrix or as a
    curve, and several as histograms; without keys, mean and spread of each are drawn. A matrix with
    a side over 1,024 is reduced: each pixel is the entry of largest magnitude.

    A result of ``cam`` is drawn as the maps over their images, unless ``keys`` or ``kind`` are
    given. No other option applies to that picture.

    Of a features folder, the rows of one layer are points, by PCA, UMAP or t-SNE. The result has
    the points, their nearest rows and outliers; its ``save`` also writes a page, CSV and JSON. Of
    more than 5,000 rows, that many are drawn.

    Args:
        file: the file of a capture, a capture in memory, the folder of a training run or of
            several, or weights: a file, a folder or an index.
        keys: tensors, layers or globs of either, optionally followed by a slice; none means what
            the file was recorded for (see docs/pictures.md).
        trust: of a pickled model, build it, which runs code, and plot its weights.
        progress: of weights: called with the megabytes that were read, the total, and the name of
            the tensor; of features with the rows that were read, the total, and ``rows``.

    Returns:
        The picture; ``save(path)`` writes it, and ``figure`` is the matplotlib figure. Of features,
        a ``FeatureScatter``, which has these too.

    Raises:
        ResultsFileError, WeightsFileError: the file cannot be read.
        RequestError: a key matches nothing, an option is wrong, or the kind does not fit the keys.
        EnvironmentFault: matplotlib is not installed.

    Example:
        >>> import hookscope
        >>> picture = hookscope.plot("sample_models/five.safetensors", "conv1", count=4)
        >>> picture.kind, picture.shows
        ('maps', ('conv1/output (1x16x8x8): channels 0-3 of 16',))
    """
    if pickled.trust:
        check_trust(file)
    source = cast("str | os.PathLike[str] | InMemory", file)
    return plot_capture(source, keys, more=more, options=options)


plot.find_subject, plot.takes_models = find_subject, False


@handles(plot, CAPTURES)
def plot_capture(
    file: str | os.PathLike[str] | InMemory,
    keys: str | Iterable[str] = (),
    *,
    more: PlotKeys,
    options: PlotOptions,
) -> Drawing:
    """Plot tensors of a capture."""
    from hookscope.stores.capture_file import open_source
    from hookscope.views.images.figures.capture_figure import draw_capture
    from hookscope.views.images.plot_choice import choose_plot

    capture, patterns = open_source(file), more.after(keys)
    if "cam" in capture.metadata and not patterns and options.kind is None:
        return _plot_cam(capture)
    choice = choose_plot(capture, patterns, options)
    if choice.why:
        log.info("kind: %s (%s)", choice.kind, choice.why)
    if choice.left_out:
        log.info("left out: %s", choice.left_out)
    require_matplotlib()
    return draw_capture(capture, choice, options)


@handles(plot, RUNS, kind="A training run is drawn as curves.")
def plot_runs(
    file: str | os.PathLike[str],
    keys: str | Iterable[str] = (),
    *,
    more: PlotKeys,
    options: Annotated[PlotOptions, Only("dark")],
) -> Drawing:
    """Plot curves of a training run, or of every run in a folder."""
    from hookscope.stores.runs.rank_runs import open_run
    from hookscope.views.images.run_panels import draw_run_panels, run_panels

    folders = runs_in(file) or [Path(file)]
    runs = [open_run(folder) for folder in folders]
    panels = run_panels(runs, more.after(keys))
    require_matplotlib()
    title = " ".join([runs[0].info["script"], *runs[0].info["arguments"]])
    if len(runs) > 1:
        scripts = dict.fromkeys(run.info["script"] for run in runs)
        title = f"{len(runs)} runs of {', '.join(scripts)}"
    names = ", ".join(folder.resolve().name for folder in folders)
    return draw_run_panels(panels, title, names, options.dark)


@handles(plot, FEATURES)
def plot_features(
    file: str | os.PathLike[str],
    keys: str | Iterable[str] = (),
    *,
    more: PlotKeys,
    options: Annotated[PlotOptions, Only("kind", "seed", "dark")],
    scatter: ScatterOptions,
    progress: NamedProgress | None = None,
) -> FeatureScatter:
    """Plot the rows of a features folder."""
    from hookscope.file_analysis.scatter_run import scatter_rows
    from hookscope.stores.features.features import Features

    if options.kind not in (None, SCATTER):
        raise RequestError(
            f"--kind {options.kind} draws recorded tensors, and {os.fspath(file)} is a features"
            " folder.",
            f"Take --kind {SCATTER}, or leave it out.",
        )

    def advance(done: int, total: int) -> None:
        if progress is not None:
            progress(done, total, "rows")

    result = scatter_rows(Features(file), more.after(keys), scatter, options.seed, advance)
    return replace(result, dark=options.dark)


@handles(plot, WEIGHTS)
def plot_weights(
    file: str | os.PathLike[str] | WeightSet,
    keys: str | Iterable[str] = (),
    *,
    more: PlotKeys,
    options: PlotOptions,
    pickled: WeightTrust,
    progress: NamedProgress | None = None,
) -> Drawing:
    """Plot tensors of weights."""
    from hookscope.file_analysis.weight_reader import WeightReader
    from hookscope.views.images.plot_choice import HIST, choose_weight_plot
    from hookscope.views.images.weight_values import draw_weights

    reader = WeightReader(cast("WeightSet", as_weights(file, pickled.trust)))
    choice = choose_weight_plot(reader, more.after(keys), options.kind)
    if progress is not None:
        size = sum(reader.weights.tensors[part.record.key].nbytes for part in choice.parts)
        passes = 2 if choice.kind == HIST else 1  # statistics, and the counts of the histogram
        reader.show_progress(passes * size, progress)
    if choice.why:
        log.info("kind: %s (%s)", choice.kind, choice.why)
    return draw_weights(reader, choice, options)


def _plot_cam(capture: CaptureFile) -> Drawing:
    from hookscope.views.images.cam_picture import heading, sheet_of
    from hookscope.views.images.cam_sheet import OverlayStyle, draw_cam

    log.info("kind: cam (no KEY is given, and the file is a result of cam)")
    require_matplotlib()
    return draw_cam(sheet_of(capture, OverlayStyle()), heading(capture.metadata["cam"]))


OUTPUT = replace(
    PICTURE,
    help="Picture to write: .png, .jpg, .svg or .pdf. Of features also .html, .csv or .json."
    " Default: NAME.plot.png.",
)
SCATTER_OUTPUT = replace(OUTPUT, ending_of=one_of(*ANALYSES, PAGE))

EXAMPLES = (
    Example(
        "hookscope plot sample_models/five.safetensors",
        "Mean and spread of the values of each layer.",
    ),
    Example(
        "hookscope plot sample_models/five.safetensors conv1",
        "The feature maps of one layer.",
    ),
    Example(
        "hookscope plot sample_models/digits.safetensors fc.weight",
        "The matrix of a linear layer in a file of weights.",
    ),
    Example("hookscope plot sample_models/run loss", "The loss of a training run."),
    Example(
        'hookscope plot sample_models/five.safetensors "conv*" --kind hist -o hist.pdf',
        "Histograms of several layers.",
    ),
    Example(
        "hookscope plot sample_models/five.safetensors relu2 --by strength --count 9"
        " --scale each --dark -o relu2.svg",
        "The nine strongest maps, each with its own scale, on a dark background.",
    ),
    Example(
        "hookscope plot sample_models/features/ --layer fc -o points.html",
        "The rows of a features folder as points (PCA), with outliers and nearest rows.",
    ),
)


@command(
    "plot",
    picture_options.tensors,
    options_of(PlotKeys),
    options_of(PlotOptions, "kind", "channels", "by", "count", "seed", "dim"),
    picture_options.appearance,
    options_of(ScatterOptions),
    options.trust_weights,
    OUTPUT.options,
    examples=EXAMPLES,
    main="kind channels by count color-by output",
    also="layer method",
    topics="keys",
)
def plot_command(ctx: click.Context, **values: Any) -> None:
    """Plot the contents of a result file or weights.

    Without a KEY, plots what the file was recorded for: the map of cam, attention weights, else
    statistics of values or gradients layer by layer. With one layer, plots its feature maps, tokens
    or attention; with several, their histograms. --kind selects another plot.
    Torch is not loaded.

    For a training run, or a folder of runs such as runs/, plots loss, gradient norm and learning
    rate over the steps, or the curves of each KEY; only --dark applies.

    For weights, plots one tensor as kernels, a matrix or a curve, several as histograms, and
    without a KEY mean and spread of all; --kind is then hist or flow.

    For a features folder, plots the rows of the layer KEY as points, and prints those that are
    farthest from others. -o page.html shows names, images and nearest rows.
    """
    console: Console = ctx.obj
    from hookscope.stores.weights.open_weights import default_stem

    job = checked_job(ctx, plot, without_output(values))
    output, folders = (OUTPUT, ()) if job.kind != FEATURES else (SCATTER_OUTPUT, (values["file"],))
    file = output.resolve(ctx, default_stem(values["file"]), folders=folders)
    assert file is not None
    console.interrupt_message = NOTHING_WRITTEN
    show_logs(console)
    with job_step(console, job, "Drawing ...") as progress:
        drawing = job(**progress)
        if job.kind == FEATURES:
            size = drawing.save(file.path, file.dpi)
    if job.kind != FEATURES:
        show_picture(console, drawing, file, "plot")
        return
    console.show(drawing, str(file.path))
    console.note(file.written(size))
