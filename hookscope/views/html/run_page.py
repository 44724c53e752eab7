"""Training runs as a page: the layers, the packed curves, the table of last values."""

from __future__ import annotations

import math
import shlex
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hookscope.escapes import visible
from hookscope.file_analysis.run_summary import RunSummary
from hookscope.files.words import count_text, plural
from hookscope.results.health import Finding
from hookscope.specs.checks import LEVELS
from hookscope.specs.patterns import layer_text
from hookscope.stores.runs.run_info import OptimizerInfo, RunInfo, RunModel, place_of
from hookscope.stores.runs.series import Series
from hookscope.stores.runs.training_run import TrainingRun
from hookscope.views.html.page import Page, PageFinding, PageRow, Summary, page_findings
from hookscope.views.html.run_curves import (
    CHARTS,
    LAYER_CHARTS,
    WATERFALLS,
    PageLayer,
    PageModel,
    RunPageData,
    RunTables,
    ValuePacker,
    _packed_run,
    _thinning_notes,
    series_group,
    table_columns,
)
from hookscope.views.text.shared_parts import ALERT_STYLE, count_cell, number_cell
from hookscope.views.text.table import Cell, Column

# The same numbers as in the table of ``show``.
_MEASURES = {
    "rms": "rms",
    "max": "max",
    "zeros": "zeros",
    "dead": "dead",
    "gradient at output": "grad_norm",
    "weight norm": "weight_norm",
    "weight gradient": "weight_grad_norm",
    "update ratio": "update_ratio",
}
RUN_COLUMNS = (
    Column("#", right=True, about="execution order"),
    Column("layer"),
    Column("type"),
    *(Column(title, right=True) for title in _MEASURES),
    Column("first not finite", right=True, about="first sampled step with NaN or infinity"),
)

_VERDICTS = {
    "running": "Running, or killed: the end was not recorded",
    "finished": "Finished",
    "failed": "Failed",
    "interrupted": "Interrupted",
    "stopped": "Stopped at a bad value",
}
LETTERS = tuple(string.ascii_uppercase)
MAX_RUN_PAGE_BYTES = 30_000_000
MAX_WORDS = 5_000_000  # of the page, for all values: 27 MB in base64
Findings = Sequence[Finding]


@dataclass(frozen=True)
class RunPage(Page):
    """The page of training runs; ``notes`` say what was thinned or left out."""

    template = "run_page.html"
    styles = ("findings.css", "run_page.css")
    scripts = (
        *("glob.js", "filter.js", "table.js", "run_data.js", "run_axes.js", "run_curves.js"),
        *("run_waterfall.js", "run_layers.js", "run_page.js"),
    )

    sides: tuple[Summary, ...]
    findings: tuple[PageFinding, ...]
    notes: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[PageRow, ...]
    data: RunPageData
    blocks: tuple[str, ...]


def layer_rows(number: int, run: TrainingRun, models: Sequence[PageModel]) -> Iterable[PageRow]:
    """Yield a row for each layer that run ``number`` measured, in execution order."""
    by_layer = {(layer.model, layer.layer): layer for layer in RunSummary.of(run).layers}
    for m, model in enumerate(models):
        for n, layer in enumerate(model.layers):
            if summary := by_layer.get((model.name, layer.name)):
                cells = (
                    count_cell(n + 1),
                    Cell(visible(layer_text(layer.name))),
                    Cell(visible(layer.type)),
                    *(_number(getattr(summary, name)) for name in _MEASURES.values()),
                    _step_cell(summary.nonfinite_from),
                )
                place = {"run": number, "model": m, "layer": n}
                yield PageRow(cells, f"#m{m}l{n}", place)


def _number(value: float | None) -> Cell:
    if value is None:
        return Cell()
    return replace(number_cell(value), style="" if math.isfinite(value) else ALERT_STYLE)


def _step_cell(step: int | None) -> Cell:
    return Cell() if step is None else Cell(count_text(step), value=step, style=ALERT_STYLE)


def run_summary(run: TrainingRun, letter: str) -> Summary:
    """Return the summary of a run; ``letter`` is ``A``, ``B`` and so on if there are several."""
    info = run.info
    after = f"after {plural(info['steps'], 'step')} in {duration_text(info['seconds'])}"
    warnings = (f"The record is incomplete: {info['incomplete']}",) if info["incomplete"] else ()
    return Summary(
        letter,
        visible(run.folder.resolve().name),
        visible(shlex.join([info["script"], *info["arguments"]])),
        f"{_VERDICTS[info['status']]} {after}.",
        tuple(map(visible, warnings)),
        tuple((name, visible(text)) for name, text in _facts(info)),
        unwatched=tuple((visible(x["what"]), visible(x["reason"])) for x in info["unwatched"]),
        events=tuple(_events(run)),
    )


def duration_text(seconds: float) -> str:
    """Return a duration with its two largest units.

    >>> duration_text(4.2), duration_text(125), duration_text(7260)
    ('4.2 s', '2 min 5 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _facts(info: RunInfo) -> Iterable[tuple[str, str]]:
    yield "started", info["started"]
    if info["exit_status"] is not None:
        yield "exit status", str(info["exit_status"])
    sampling = "steps 0, 1, 2, 4, 8, 16, 32, and every 50th"
    if every := info["every"]:
        sampling = f"every {count_text(every)} steps" if every > 1 else "every step"
    yield "sampling", sampling
    if rule := info.get("loss"):
        yield "loss of a step", f"{rule} over its backward passes"
    if info["layers"]:
        yield "layers", ", ".join(info["layers"])
    yield from (("model", _model_text(model)) for model in info["models"])
    yield from (("optimizer", _optimizer_text(optimizer)) for optimizer in info["optimizers"])
    if info["world_size"] > 1:
        yield "rank", f"{info['rank']} of {info['world_size']} processes"
    yield "versions", ", ".join(f"{name} {text}" for name, text in info["versions"].items())


def _model_text(model: RunModel) -> str:
    size = f"{plural(model['parameters'], 'parameter')} in {plural(len(model['layers']), 'layer')}"
    sharded = model["layout"] == "sharded"
    layout = ", each rank holds a part of each parameter" if sharded else ""
    return f"{model['name']} ({model['type']}): {size}{layout}"


def _optimizer_text(optimizer: OptimizerInfo) -> str:
    of = f" of {', '.join(optimizer['models'])}" if optimizer["models"] else ""
    groups = plural(optimizer["groups"], "parameter group")
    return f"{optimizer['name']} ({optimizer['type']}): {groups}{of}"


def _events(run: TrainingRun) -> Iterable[str]:
    for event in run.events:
        place = f"step {count_text(event.step)} ({place_of(event, run.info)})"
        file = f" See {event.file}." if event.file else ""
        yield visible(f"Stopped by --stop-on {event.kind} at {place}: {event.message}.{file}")


def layer_links(models: Sequence[PageModel]) -> dict[str, str]:
    """Return the address of each layer on the page; of layers of one name, of the first."""
    return {
        layer.name: f"#m{m}l{n}"
        for m, model in reversed(list(enumerate(models)))
        for n, layer in enumerate(model.layers)
    }


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
    infos: dict[str, RunModel] = {}
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


def measured_tensors(run: TrainingRun) -> set[tuple[str, str]]:
    """Return model and key of each tensor that a run measured."""
    return {(series.model, series.key) for series in run.layers.series if series.module}
