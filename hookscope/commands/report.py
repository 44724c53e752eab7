"""Write captures, training runs or weights as one HTML page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from hookscope.cli import options
from hookscope.cli.commands import Example
from hookscope.cli.console import Console
from hookscope.cli.global_options import command
from hookscope.cli.output_file import Output, only
from hookscope.cli.param_types import FileName
from hookscope.cli.run_context import reading
from hookscope.cli.runner import NOTHING_WRITTEN
from hookscope.errors import CheckFailed, RequestError
from hookscope.escapes import visible
from hookscope.files.output_path import PAGE, holds_features, runs_in
from hookscope.files.progress_types import NamedProgress
from hookscope.files.shell_words import cite_command
from hookscope.specs.checks import LEVELS, NOTE
from hookscope.specs.command_options import RunCheckOptions
from hookscope.specs.patterns import layer_text
from hookscope.specs.public import public
from hookscope.specs.weight_options import WeightTrust
from hookscope.stores.weights.open_weights import default_stem

if TYPE_CHECKING:
    from hookscope.results.report import Report
    from hookscope.stores.capture_file import InMemory
    from hookscope.stores.weights.weight_set import WeightSet


@public
def report(
    file: str | os.PathLike[str] | WeightSet | InMemory,
    *others: str | os.PathLike[str] | WeightSet | InMemory,
    pickled: WeightTrust,
    progress: NamedProgress | None = None,
) -> Report:
    """Return a capture, a training run or weights as one self-contained HTML page, without torch.

    The page of captures stays under 20 MB: it shows less of many or large tensors, and says so.
    The page of runs stays under 30 MB: curves of many values are thinned, and it says so. The page
    of weights has statistics and a histogram of up to 5,000 tensors, and the findings of ``check``.

    Args:
        file: a file that ``capture``, ``grads``, ``step`` or ``Capture.save`` wrote, or a capture
            in memory; the folder that ``hookscope run`` wrote, or a folder of such folders; or
            weights: a file, a folder or an index.
        others: a second one to show beside it: values of the same key next to each other, with
            their differences; or other runs, whose curves are drawn over those of the first, up to
            26 in all. Not for weights, which ``diff`` compares.
        trust: of a pickled model, build it, which runs code, and show its weights.
        progress: of weights: called with the megabytes that were read, the total, and the name of
            the tensor.

    Raises:
        ResultsFileError: a file is missing or damaged, or hookscope did not write it.
        WeightsFileError: a file of weights is missing or damaged.
        RequestError: one is the folder of a run and another is not, there are too many, one of
            two has weights, or ``trust`` is given for results.
        CheckFailed: the metadata alone is too large for a page.

    Example:
        >>> import tempfile, torch, hookscope
        >>> model = torch.nn.Linear(4, 2)
        >>> with hookscope.record(model) as capture:
        ...     _ = model(torch.ones(1, 4))
        >>> path = tempfile.mkdtemp() + "/linear.safetensors"
        >>> _ = capture.save(path)
        >>> page = hookscope.report(path)
        >>> page.tensors, page.warnings, page.html[:15]
        (1, (), '<!doctype html>')
    """
    from hookscope.commands.subject import as_weights, check_trust, label_of_weights
    from hookscope.views.html.run_page import LETTERS

    sources = [file, *others]
    labels = [label for source in sources if (label := label_of_weights(source))]
    if labels and len(sources) > 1:
        raise RequestError(
            f"{labels[0]} has weights, and a page of weights shows one set.",
            "Compare two sets with 'hookscope diff A B'.",
        )
    if pickled.trust:
        check_trust(file)
    if (weights := as_weights(file, pickled.trust)) is not None:
        return _report_of_weights(weights, progress)
    folders = [
        source
        for source in sources
        if isinstance(source, str | os.PathLike)
        and os.path.isdir(source)
        and not holds_features(source)
    ]
    if not folders:
        if len(sources) > 2:
            raise RequestError(
                f"A page shows two result files beside each other, not {len(sources)}.",
                "Name two of them, or run folders.",
            )
        return _report_of_captures(cast("list[str | os.PathLike[str] | InMemory]", sources))
    if len(folders) < len(sources):
        raise RequestError(
            f"{folders[0]} is a folder, and another argument is not.",
            "Name run folders, or two result files.",
        )
    runs = [run for folder in folders for run in runs_in(folder) or [Path(folder)]]
    if len(runs) > len(LETTERS):
        raise RequestError(
            f"A page shows up to {len(LETTERS)} runs, and these are {len(runs)}.",
            "Name some of them.",
        )
    return _report_of_runs(runs)


def _report_of_captures(sources: Sequence[str | os.PathLike[str] | InMemory]) -> Report:
    from hookscope.results.report import Report
    from hookscope.stores.capture_file import open_source
    from hookscope.views.html.capture_page import MAX_PAGE_BYTES, build_page, descending_limits

    captures = [open_source(source) for source in sources]
    for choice in descending_limits(captures):
        page = build_page(captures, choice)
        html = page.html()
        if len(html.encode()) < MAX_PAGE_BYTES:
            break
    else:
        raise CheckFailed(
            f"The report for {captures[0].path} would exceed {MAX_PAGE_BYTES // 10**6} MB.",
            "Record fewer layers.",
        )
    figures = [
        f for node in page.tree for e in node.entries for panel in e.panels for f in panel.figures
    ]
    figures += [figure for side in page.sides for figure in side.figures]
    return Report(
        html,
        sum(not row.kind for row in page.rows),
        len({row.link for row in page.rows if not row.kind}),
        tuple(f"{s.letter}: {text}".lstrip(": ") for s in page.sides for text in s.warnings),
        page.chosen,
        tuple(f"{figure.title}: {figure.failed}" for figure in figures if figure.failed),
    )


def _report_of_weights(weights: WeightSet, progress: NamedProgress | None) -> Report:
    from hookscope.results.report import Report
    from hookscope.views.html.weights_page import build_weights_page

    page, findings = build_weights_page(weights, progress)
    html = page.html()
    hint = "Its names are very long: show its tensors with 'hookscope show'."
    _check_size(html, weights.label, hint)
    return Report(
        html,
        len(weights.tensors),
        len({name.rpartition(".")[0] for name in weights.tensors}),
        tuple(f"{visible(f.layer)}: {f.message}" for f in findings if f.level != NOTE),
        page.sentences,
        (),
    )


def _report_of_runs(folders: Sequence[str | os.PathLike[str]]) -> Report:
    """Return the page of run folders; of several ranks it shows the first."""
    from hookscope.file_analysis.run_findings.run_health import check_run
    from hookscope.files.output_path import rank_folders
    from hookscope.results.report import Report
    from hookscope.stores.runs.training_run import TrainingRun
    from hookscope.views.html.run_page import (
        LETTERS,
        build_run_page,
        measured_tensors,
    )

    notes, runs = [], []
    for folder in folders:
        ranks = rank_folders(folder)
        runs.append(TrainingRun(ranks[0] if ranks else folder))
        if len(ranks) > 1:
            notes.append(
                f"{folder} has the runs of {len(ranks)} ranks; the page shows {ranks[0].name}."
                f" {cite_command('hookscope', 'report', str(ranks[1]))} shows another one."
            )
    letters = LETTERS if len(runs) > 1 else ("",)
    findings = sorted(
        (
            replace(finding, run=letter)
            for letter, run in zip(letters, runs, strict=False)
            for finding in check_run(run.folder, RunCheckOptions()).findings
        ),
        key=lambda finding: LEVELS.index(finding.level),
    )
    page = build_run_page(runs, findings, notes)
    html = page.html()
    _check_size(html, folders[0], "Watch fewer layers.")
    return Report(
        html,
        len({tensor for run in runs for tensor in measured_tensors(run)}),
        sum(len(model.layers) for model in page.data.models),
        tuple(
            ": ".join(filter(None, (f.run, layer_text(f.layer) if f.layer else "", f.message)))
            for f in findings
        ),
        (
            *(f"{s.letter}, {s.name}: {s.verdict}" if s.letter else s.verdict for s in page.sides),
            *page.notes,
        ),
        (),
    )


def _check_size(html: str, label: object, hint: str) -> None:
    """Raise CheckFailed if a page is larger than a page of a run may be."""
    from hookscope.views.html.run_page import MAX_RUN_PAGE_BYTES

    if len(html.encode()) >= MAX_RUN_PAGE_BYTES:
        raise CheckFailed(
            f"The report for {label} would exceed {MAX_RUN_PAGE_BYTES // 10**6} MB.", hint
        )


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

OUTPUT = Output("Page to write. Default: the name of FILE with .html.", only(PAGE), PAGE)


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
    OUTPUT.options,
    options.trust_weights,
    examples=EXAMPLES,
    main="output force",
)
def report_command(
    ctx: click.Context,
    file: str,
    others: tuple[str, ...],
    trust: bool,
    **_: Any,
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
    # A dot in the name of a folder begins no suffix.
    page = OUTPUT.resolve(ctx, default_stem(file), (file, *others))
    assert page is not None
    path = page.path
    console.interrupt_message = NOTHING_WRITTEN
    job = report.checked(file, *others, trust=trust)
    reading_file = reading(console, f"Reading {file} ...", trust)
    with reading_file, console.bar("Reading") as advance:
        result = job(progress=advance)
        size = result.save(path)
        console.interrupt_message = f"Interrupted; {path} was written."
    if console.json:
        from hookscope.views.display import make_document

        description = {name: value for name, value in vars(result).items() if name != "html"}
        console.document(make_document("report", {"file": str(path), "bytes": size, **description}))
    else:
        from hookscope.views import display

        console.result(display.text(result, console.text_options))
    for failed in result.failed:
        console.warning(f"not plotted: {failed}")
    console.note(page.written(size))
    # A file URL, which terminals show as a link and browsers open.
    console.note(f"next: open {path.absolute().as_uri()} in a browser")
