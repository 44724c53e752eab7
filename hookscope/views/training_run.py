"""A run of a script as text: what is known of it, its layers, and single curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from hookscope.file_analysis.run_summary import KeyCurves, LayerSummary, RunSummary
from hookscope.files.words import count_text, number_text, plural
from hookscope.results.exports import ExportedRun, TrackedRun
from hookscope.specs.patterns import layer_text
from hookscope.stores.runs.run_info import LossRule, RunInfo, place_of
from hookscope.stores.runs.series import MEASURES
from hookscope.stores.runs.training_run import TrainingRun
from hookscope.views.display import View, json_document, make_document
from hookscope.views.text.shared_parts import (
    ALERT_STYLE,
    NOTICE_STYLE,
    group_names,
    join_names,
    number_cell,
    share_cell,
)
from hookscope.views.text.small_curves import plot_lines, trend_text
from hookscope.views.text.table import Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence

DEFAULT_SCHEDULE = "steps 0, 1, 2, 4, 8, 16, 32, then every 50th"
LOSS_RULES: dict[LossRule, str] = {
    "": "",
    "mean": " The loss of a step is the mean over its backward passes.",
    "sum": " The loss of a step is the sum over its backward passes, whose losses the script"
    " divides.",
}
LEGEND = {  # by the end of a column's title
    "ratio": "update ratio: norm of the update over the norm of the weight.",
    "trend": "trend: rms over the measured steps.",
}
NUMBERS = ("rms", "max", "zeros", "dead", "grad norm", "weight norm", "weight grad", "update ratio")
SHORT = {
    "grad norm": "grad",
    "weight norm": "weight",
    "weight grad": "w. grad",
    "update ratio": "ratio",
}
COLUMNS = (
    Column("layer"),
    Column("model", optional=True),
    Column("type"),
    *(Column(title, SHORT.get(title), right=True) for title in NUMBERS),
)
TREND = Column("trend")
SQUEEZE = (
    *shorten("rms", "max", *SHORT),
    *drop("type", "max", "weight norm", "zeros", "grad norm", "dead"),
    *drop("trend", "note", "weight grad", "rms"),
)
MAX_STEPS = 20  # of a curve, on a terminal


def run_lines(summary: RunSummary, options: TextOptions) -> list[Text]:
    """Return a run: a table of its layers, what is known of it as a whole, and its events."""
    return join_blocks(
        _head_lines(summary, options),
        _layer_lines(summary, options),
        _event_lines(summary.run, options),
        _gap_lines(summary, options),
        options=options,
    )


def _head_lines(summary: RunSummary, options: TextOptions) -> list[Text]:
    run, info = summary.run, summary.run.info
    command = " ".join([info["script"], *info["arguments"]])
    lines = sentence(f"{command}: {_status(info)}.", options, "bold")
    pace = ""
    if info["steps"] and info["seconds"]:
        pace = f", {number_text(info['steps'] / info['seconds'], 3)} a second"
    every = info["every"]
    schedule = "every step" if every == 1 else f"every {every} steps"
    if every is None:
        schedule = DEFAULT_SCHEDULE
    lines += sentence(
        f"{plural(info['steps'], 'step')} in {number_text(info['seconds'], 3)} s{pace};"
        f" layers measured in {count_text(len(run.layers))} ({schedule}).",
        options,
    )
    if summary.loss is not None and len(summary.loss.steps):
        steps, values = summary.loss.steps, summary.loss.values
        losses = [
            f"{number_text(float(values[at]))} at step {count_text(int(steps[at]))}"
            for at in ((0, -1) if len(steps) > 1 else (0,))
        ]
        text = f"Loss {', '.join(losses)}.{LOSS_RULES[info.get('loss', '')]}"
        lines += sentence(text, options)
    if summary.skipped is not None:
        skipped = plural(summary.skipped, "step")
        lines += sentence(f"The gradient scaler skipped {skipped}.", options)
    for model in info["models"]:
        sizes = plural(model["parameters"], "parameter"), plural(len(model["layers"]), "layer")
        layout = ", sharded over the ranks" if model["layout"] == "sharded" else ""
        text = f"Model {model['name']} ({model['type']}): {', '.join(sizes)}{layout}."
        lines += sentence(text, options)
    for optimizer in info["optimizers"]:
        groups = plural(optimizer["groups"], "group")
        models = join_names(optimizer["models"], options) or "no model that was found"
        text = f"Optimizer {optimizer['name']} ({optimizer['type']}): {groups}, for {models}."
        lines += sentence(text, options)
    if info["layers"]:
        lines += sentence(f"Only layers that match {', '.join(info['layers'])}.", options)
    if info["world_size"] > 1:
        lines += sentence(f"{plural(info['world_size'], 'rank')}.", options)
    return lines


def _status(info: RunInfo) -> str:
    if info["status"] == "running":
        return "running, or killed"
    code = info["exit_status"]
    return info["status"] if code is None else f"{info['status']}, exit status {code}"


def _layer_lines(summary: RunSummary, options: TextOptions) -> list[Text]:
    """The table of the layers, and what the columns that fit mean."""
    if not summary.layers:
        return []
    table = layers_table(summary.layers, options)
    words = table[0].plain.split() if table else []  # as CSV they are written elsewhere
    last = count_text(int(summary.run.layers.steps[-1]))
    legend = [f"Values of step {last}.", *(LEGEND[word] for word in words if word in LEGEND)]
    return [*table, *sentence(" ".join(legend), options, "dim")]


def layers_table(layers: tuple[LayerSummary, ...], options: TextOptions) -> list[Text]:
    """Return a row for each layer; on a terminal with its trend."""
    columns = COLUMNS if options.width is None else (*COLUMNS, TREND)
    rows = [_layer_row(layer, options.ascii) for layer in layers]
    rows = [Row(row.cells[: len(columns)], row.note) for row in rows]
    return result_table(Table(columns, tuple(rows), SQUEEZE), options)


def _layer_row(layer: LayerSummary, ascii: bool) -> Row:
    shares = (layer.zeros, layer.dead)
    cells = (
        Cell(layer_text(layer.layer)),
        Cell(layer.model),
        Cell(layer.type, style="cyan"),
        *map(_number, (layer.rms, layer.max)),
        *(Cell() if share is None else share_cell(share) for share in shares),
        *map(_number, (layer.grad_norm, layer.weight_norm)),
        *map(_number, (layer.weight_grad_norm, layer.update_ratio)),
        Cell(trend_text(layer.trend, ascii)),
    )
    first = layer.nonfinite_from
    note = "" if first is None else f"NaN or Inf from step {count_text(first)}"
    return Row(cells, Cell(note, style=ALERT_STYLE))


def _number(value: float | None) -> Cell:
    return Cell() if value is None else number_cell(value)


def _event_lines(run: TrainingRun, options: TextOptions) -> list[Text]:
    lines: list[Text] = []
    for event in run.events:
        file = f" See {run.folder / event.file}." if event.file else ""
        place = f"step {count_text(event.step)} ({place_of(event, run.info)})"
        text = f"Stopped by --stop-on {event.kind} at {place}: {event.message}.{file}"
        lines += sentence(text, options, ALERT_STYLE)
    return lines


def _gap_lines(summary: RunSummary, options: TextOptions) -> list[Text]:
    """What is not in the record, and why."""
    info = summary.run.info
    lines: list[Text] = []
    for rank, steps in summary.run.ended_early:
        text = f"Rank {rank} ended after {plural(steps, 'step')}, earlier than others."
        lines += sentence(text, options, NOTICE_STYLE)
    if info["incomplete"]:
        lines += sentence(f"The record is incomplete: {info['incomplete']}", options, ALERT_STYLE)
    reasons = group_names((entry["reason"], entry["what"]) for entry in info["unwatched"])
    for reason, whats in reasons.items():
        text = f"Not watched: {join_names(whats, options)} ({reason})."
        lines += sentence(text, options, NOTICE_STYLE)
    return lines


def curve_lines(view: KeyCurves, options: TextOptions) -> list[Text]:
    """Return the values of a key step by step; on a terminal with a plot of each measure."""
    of_model = f" of {view.model}" if view.model else ""
    return join_blocks(
        sentence(f"{view.key}{of_model}", options, "bold"),
        *_plots(view, options),
        _values_table(view, options),
        options=options,
    )


def _plots(view: KeyCurves, options: TextOptions) -> list[list[Text]]:
    if options.width is None or options.is_page:
        return []
    plots = []
    for curve in view.curves:
        if len(curve.steps) > 1:
            name = curve.series.measure
            title = sentence(f"{name}: {MEASURES.get(name, name)}", options, "dim")
            steps, values = curve.steps.tolist(), curve.values.tolist()
            drawn = plot_lines(steps, values, options.width, options.ascii)
            plots.append([*title, *map(Text, drawn)])
    return plots


def _values_table(view: KeyCurves, options: TextOptions) -> list[Text]:
    by_step: dict[int, dict[str, float]] = {}
    for curve in view.curves:
        pairs = zip(curve.steps.tolist(), curve.values.tolist(), strict=True)
        for step, value in pairs:
            by_step.setdefault(step, {})[curve.series.measure] = value
    steps = sorted(by_step)
    cut = options.width is not None and not options.sort and not options.top
    left_out = max(len(steps) - MAX_STEPS, 0) if cut else 0
    measures = [curve.series.measure for curve in view.curves]
    rows = [
        Row.of(Cell(str(step), value=step), *(_number(by_step[step].get(x)) for x in measures))
        for step in steps[left_out:]
    ]
    columns = (Column("step", right=True), *(Column(name, right=True) for name in measures))
    lines = result_table(Table(columns, tuple(rows), note=""), options)
    if left_out:
        text = f"The last {MAX_STEPS} of {count_text(len(steps))} steps; a pipe gets all of them."
        lines += sentence(text, options, "dim")
    return lines


def exported_run_lines(result: ExportedRun | TrackedRun, options: TextOptions) -> list[Text]:
    """Return how much of a run was exported."""
    return sentence(f"{plural(result.values, 'value')} of {result.series} series.", options)


def run_document(summary: RunSummary, curves: Sequence[KeyCurves] = ()) -> dict[str, Any]:
    """Return a run: what describes a file of tensors as null, then ``run`` or some ``curves``."""
    single = {"file": str(summary.run.folder), "recording": None, "tensors": None}
    run = None if curves else summary.to_json()
    return make_document(
        "show", {**single, "run": run, "curves": [each.to_json() for each in curves] or None}
    )


VIEW: View[TrainingRun] = View(
    lambda run, options: run_lines(RunSummary.of(run), options),
    lambda run, file: run_document(RunSummary.of(run)),
)
SUMMARY: View[RunSummary] = View(run_lines, lambda summary, file: run_document(summary))
CURVES: View[KeyCurves] = View(curve_lines)
EXPORTED: View[ExportedRun] = View(exported_run_lines, json_document("export"))
TRACKED: View[TrackedRun] = View(exported_run_lines, json_document("export"))
