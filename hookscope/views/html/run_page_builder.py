"""Training runs as a page: the layers, the packed curves, the table of last values."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hookscope.files.words import count_text, visible
from hookscope.results.health import Finding
from hookscope.specs.health_checks import LEVELS
from hookscope.stores.runs.run_info import ModelInfo
from hookscope.stores.runs.series import Series
from hookscope.stores.runs.training_run import RunTable, TrainingRun
from hookscope.views.html.packed_values import (
    StepColumns,
    ValuePacker,
    series_words,
    word_limit,
)
from hookscope.views.html.page_findings import page_findings
from hookscope.views.html.run_charts import (
    CHARTS,
    LAYER_CHARTS,
    WATERFALLS,
    is_drawn,
    series_group,
    series_label,
)
from hookscope.views.html.run_header import layer_links, run_summary
from hookscope.views.html.run_page import (
    PackedAxis,
    PackedRun,
    PackedSeries,
    PageLayer,
    PageModel,
    RunPage,
    RunPageData,
)
from hookscope.views.html.run_table import RUN_COLUMNS, layer_rows

LETTERS = tuple(string.ascii_uppercase)
MAX_RUN_PAGE_BYTES = 30_000_000
MAX_WORDS = 5_000_000  # of the page, for all values: 27 MB in base64

Findings = Sequence[Finding]


@dataclass(frozen=True)
class RunTables:
    """The two tables of a run, and which of their series are drawn."""

    run: TrainingRun

    @cached_property
    def tables(self) -> tuple[RunTable, RunTable]:
        """That of all steps, and that of the sampled ones."""
        return self.run.steps, self.run.layers

    @cached_property
    def drawn(self) -> tuple[tuple[Series, ...], ...]:
        """The series of each table that some chart shows."""
        return tuple(tuple(filter(is_drawn, table.series)) for table in self.tables)


def build_run_page(
    runs: Sequence[TrainingRun],
    findings: Findings = (),
    notes: Sequence[str] = (),
    words: int = MAX_WORDS,
) -> RunPage:
    """Return the page of one run, or of several drawn over each other."""
    letters = LETTERS[: len(runs)] if len(runs) > 1 else ("",)
    sources = [RunTables(run) for run in runs]
    models = page_models(runs, findings)
    packer = ValuePacker()
    packed = []
    sentences = list(map(visible, notes))
    for letter, source in zip(letters, sources, strict=True):
        columns = table_columns(source, words // len(runs))
        name = visible(source.run.folder.resolve().name)
        packed.append(_packed_run(f"{letter} {name}".strip(), source, columns, models, packer))
        sentences += [f"{letter}: {text}".removeprefix(": ") for text in _thinning_notes(columns)]
    summaries = [run_summary(run, letter) for run, letter in zip(runs, letters, strict=True)]
    scripts = dict.fromkeys(visible(run.info["script"]) for run in runs)
    rows = [row for n, source in enumerate(sources) for row in layer_rows(n, source.run, models)]
    optimizers = dict.fromkeys(o["name"] for run in runs for o in run.info["optimizers"])
    data = RunPageData(tuple(packed), models, tuple(optimizers), CHARTS, LAYER_CHARTS, WATERFALLS)
    return RunPage(
        " and ".join(scripts),
        tuple(summaries),
        page_findings(findings, layer_links(models)),
        tuple(sentences),
        RUN_COLUMNS,
        tuple(rows),
        data,
        packer.base64_blocks(),
    )


def page_models(runs: Sequence[TrainingRun], findings: Findings) -> tuple[PageModel, ...]:
    """Return the models of all runs, each with the layers of every run, in execution order."""
    infos: dict[str, ModelInfo] = {}
    layers: dict[str, dict[str, None]] = {}
    types: dict[tuple[str, str], str] = {}
    for run in runs:
        for info in run.info["models"]:
            infos.setdefault(info["name"], info)
            types |= {(info["name"], layer["name"]): layer["type"] for layer in info["layers"]}
        for series in _outputs_first(run.names):
            if series.module or series.key == "gradients":
                of_model = layers.setdefault(series.model, {})
            if series.module:
                of_model[series.module] = None
    levels = {
        name: finding.level
        for level in reversed(LEVELS)
        for finding in findings
        if finding.level == level
        for name in (finding.layer, *finding.others)
    }
    return tuple(
        PageModel(
            model,
            infos[model]["type"] if model in infos else "",
            tuple(
                PageLayer(name, types.get((model, name), ""), levels.get(name, ""))
                for name in names
            ),
        )
        for model, names in layers.items()
    )


def _outputs_first(names: Iterable[Series]) -> list[Series]:
    """The series with those of outputs first: these are in execution order."""
    return sorted(names, key=lambda series: not series_group(series).startswith("output"))


def table_columns(source: RunTables, words: int) -> tuple[StepColumns, ...]:
    """Return the columns of both tables so that all values take at most ``words``, about."""
    varying = [
        sum(len(StepColumns(len(table), 1).thin(series_words(table, one))) > 1 for one in drawn)
        for table, drawn in zip(source.tables, source.drawn, strict=True)
    ]
    limits = word_limit(source.tables, words, varying)
    return tuple(
        StepColumns.for_limit(len(table), limit)
        for table, limit in zip(source.tables, limits, strict=True)
    )


def _packed_run(
    label: str,
    source: RunTables,
    columns: Sequence[StepColumns],
    models: Sequence[PageModel],
    packer: ValuePacker,
) -> PackedRun:
    indexes = {
        (model.name, layer.name): n for model in models for n, layer in enumerate(model.layers)
    }
    axes = tuple(
        _packed_axis(table, of_table, packer)
        for table, of_table in zip(source.tables, columns, strict=True)
    )
    series = tuple(
        PackedSeries(
            one.model,
            indexes.get((one.model, one.module), -1),
            series_label(one),
            series_group(one),
            one.measure,
            n,
            packer.add(columns[n].thin(series_words(table, one))),
        )
        for n, table in enumerate(source.tables)
        for one in _by_group(source.drawn[n])
    )
    return PackedRun(label, axes, series)


def _packed_axis(table: RunTable, columns: StepColumns, packer: ValuePacker) -> PackedAxis:
    steps = table.steps.astype(np.int32)
    starts = packer.add(steps[columns.starts])
    ends = packer.add(steps[columns.ends]) if columns.thinned else starts
    return PackedAxis(starts, ends, columns.thinned)


def _by_group(series: Iterable[Series]) -> list[Series]:
    """In an order in which what is drawn together lies together."""
    return sorted(series, key=lambda one: (series_group(one), one.measure, one.model))


def _thinning_notes(columns: Sequence[StepColumns]) -> Iterable[str]:
    for what, of_table in zip(("steps", "sampled steps"), columns, strict=True):
        if of_table.thinned:
            yield (
                f"The curves of {count_text(of_table.rows)} {what} are thinned: of every"
                f" {count_text(of_table.per_column)} consecutive ones the page has the lowest and"
                " the highest value, and whether one is NaN."
            )


def measured_tensors(run: TrainingRun) -> set[tuple[str, str]]:
    """Return model and key of each tensor that a run measured."""
    return {(series.model, series.key) for series in run.layers.series if series.module}
