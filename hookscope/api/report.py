"""Write captures, training runs or weights as one HTML page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hookscope.api.public import public
from hookscope.api.weight_source import as_weights, check_trust, label_of_weights
from hookscope.errors import CheckFailed, RequestError
from hookscope.file_analysis.run_findings.run_health import check_run
from hookscope.files.output_path import holds_features, runs_in
from hookscope.files.progress import NamedProgress
from hookscope.files.shell_words import cite_command
from hookscope.files.words import visible
from hookscope.results.report import Report
from hookscope.specs.command_options import RunCheckOptions
from hookscope.specs.health_checks import LEVELS, NOTE
from hookscope.specs.patterns import layer_text
from hookscope.specs.weight_options import WeightTrust
from hookscope.stores.capture_file import InMemory, open_source
from hookscope.stores.runs.training_run import TrainingRun, rank_folders
from hookscope.stores.weights.weight_set import WeightSet
from hookscope.views.html.page import write_page
from hookscope.views.html.page_builder import MAX_PAGE_BYTES, build_page, descending_limits
from hookscope.views.html.run_page import write_run_page
from hookscope.views.html.run_page_builder import (
    LETTERS,
    MAX_RUN_PAGE_BYTES,
    build_run_page,
    measured_tensors,
)
from hookscope.views.html.weights_page import write_weights_page
from hookscope.views.html.weights_page_builder import build_weights_page

if TYPE_CHECKING:
    pass


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
        >>> import torch, hookscope
        >>> model = torch.nn.Linear(4, 2)
        >>> with hookscope.record(model) as capture:
        ...     _ = model(torch.ones(1, 4))
        >>> _ = capture.save("linear.safetensors")
        >>> page = hookscope.report("linear.safetensors")
        >>> page.tensors, page.warnings, page.html[:15]
        (1, (), '<!doctype html>')
    """
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
    captures = [open_source(source) for source in sources]
    for choice in descending_limits(captures):
        page = build_page(captures, choice)
        html = write_page(page)
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
        sum(not row.missing for row in page.rows),
        len({row.node for row in page.rows if not row.missing}),
        tuple(f"{s.letter}: {text}".lstrip(": ") for s in page.sides for text in s.warnings),
        page.chosen,
        tuple(f"{figure.title}: {figure.failed}" for figure in figures if figure.failed),
    )


def _report_of_weights(weights: WeightSet, progress: NamedProgress | None) -> Report:
    page, findings = build_weights_page(weights, progress)
    html = write_weights_page(page)
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
    html = write_run_page(page)
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
    if len(html.encode()) >= MAX_RUN_PAGE_BYTES:
        raise CheckFailed(
            f"The report for {label} would exceed {MAX_RUN_PAGE_BYTES // 10**6} MB.", hint
        )
