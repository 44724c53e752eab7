"""Checks a run folder: all findings of all ranks, as the result of ``check``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hookscope.file_analysis.run_findings import layer_activations, loss_curve, weight_updates
from hookscope.file_analysis.run_findings.first_nonfinite import nonfinite_findings
from hookscope.file_analysis.run_findings.layer_activations import uses_float16
from hookscope.file_analysis.run_findings.loss_curve import why_loss_is_not_judged
from hookscope.file_analysis.run_findings.measured_run import MeasuredRun
from hookscope.files.output_path import rank_folders
from hookscope.results.health import Finding, Health
from hookscope.specs import checks
from hookscope.specs.command_options import RunCheckOptions
from hookscope.specs.watch_options import INF, NAN
from hookscope.stores.runs.series import PARAMETER
from hookscope.stores.runs.training_run import TrainingRun


def check_run(path: str | os.PathLike[str], options: RunCheckOptions) -> Health:
    """Return what went wrong in a training run."""
    names, thresholds = options.names, options.thresholds
    runs = [TrainingRun(folder) for folder in rank_folders(path) or [Path(path)]]
    ranks = [run.info["rank"] for run in runs] if len(runs) > 1 else []
    found: list[tuple[int | None, Finding]] = []
    unmade: dict[str, str] = {}
    for n, run in enumerate(runs):
        measured = MeasuredRun(run, thresholds)
        unmade |= _unmade_checks(measured, names)
        for name in names:
            for finding in FINDERS[name](measured):
                found.append((ranks[n] if ranks else None, finding))
    findings = _merge_ranks(found)
    order = list(checks.RUN_CHECKS)
    findings.sort(key=lambda one: (checks.LEVELS.index(one.level), order.index(one.check)))
    return Health(
        tuple(findings),
        tuple(name for name in names if name not in unmade),
        unmade,
        thresholds.to_json(),
        {"run": _describe(path, runs, ranks), "versions": runs[0].info["versions"]},
    )


def check_runs(folders: Sequence[Path], options: RunCheckOptions) -> Health:
    """Return what went wrong in several runs; a check was made if one of them allowed it."""
    of_each = [(folder, check_run(folder, options)) for folder in folders]
    findings = [
        replace(finding, run=folder.name)
        for folder, health in of_each
        for finding in health.findings
    ]
    findings.sort(key=lambda one: checks.LEVELS.index(one.level))
    made = [name for name in options.names if any(name in health.checks for _, health in of_each)]
    unmade = {name: reason for _, health in of_each for name, reason in health.unmade.items()}
    first = of_each[0][1]
    return Health(
        tuple(findings),
        tuple(made),
        {name: reason for name, reason in unmade.items() if name not in made},
        first.thresholds,
        {
            "run": {"folder": os.fspath(folders[0].parent)},
            "runs": [health.metadata["run"] for _, health in of_each],
            "versions": first.metadata["versions"],
        },
    )


def _merge_ranks(found: Iterable[tuple[int | None, Finding]]) -> list[Finding]:
    """One finding for all ranks that have it at the same step and layer."""
    merged: dict[tuple[object, ...], Finding] = {}
    for rank, finding in found:
        if rank is None:
            key: tuple[object, ...] = (len(merged),)
        else:
            key = (finding.check, finding.level, finding.model, finding.layer, finding.step)
            key += () if finding.layer else (finding.message.split(" rises ")[0],)
        if key in merged and rank is not None:
            earlier = merged[key]
            merged[key] = replace(earlier, ranks=tuple(sorted({*earlier.ranks, rank})))
        else:
            merged[key] = replace(finding, ranks=() if rank is None else (rank,))
    return list(merged.values())


def _describe(
    path: str | os.PathLike[str], runs: Sequence[TrainingRun], ranks: Sequence[int]
) -> dict[str, Any]:
    info = runs[0].info
    return {
        "folder": os.fspath(path),
        "script": info["script"],
        "status": info["status"],
        "steps": info["steps"],
        "sampled_steps": len(runs[0].layers),
        "ranks": list(ranks),
        "models": [model["name"] for model in info["models"]],
        "unwatched": info["unwatched"],
    }


def skipped_findings(measured: MeasuredRun) -> Iterator[Finding]:
    """Yield that the scaler skipped a large share of the steps after the first ones."""
    curve, thresholds = measured.of_step("loss_scale", "skipped"), measured.thresholds
    if curve is None:
        return
    later = curve.steps >= thresholds.skipped_start
    if later.sum() < thresholds.skipped_start:
        return
    share = float(curve.values[later].mean())
    if share > thresholds.skipped:
        first = int(curve.steps[later][np.argmax(curve.values[later] == 1)])
        yield measured.finding(
            checks.SKIPPED,
            checks.WARNING,
            f"the gradient scaler skipped {int(curve.values[later].sum()):,} of"
            f" {int(later.sum()):,} steps after the first {thresholds.skipped_start}",
            share,
            thresholds.skipped,
            first,
            hint="Gradients overflow at any scale: look for large outputs, or use bfloat16.",
        )


def incomplete_findings(measured: MeasuredRun) -> Iterator[Finding]:
    """Yield that a part of the record is missing."""
    if reason := measured.run.info["incomplete"]:
        text = f"the record has gaps: {reason.rstrip('.')}"
        hint = "Steps that are missing were not checked."
        yield measured.finding(checks.INCOMPLETE, checks.WARNING, text, 1, None, None, hint=hint)


def unfinished_findings(measured: MeasuredRun) -> Iterator[Finding]:
    """Yield that the script did not end normally."""
    info = measured.run.info
    status, steps = info["status"], info["steps"]
    if status == "finished":
        return
    if status == "stopped" and (stop := measured.stop):
        # A NaN or an infinity is a finding of its own.
        what = "" if stop.kind in (NAN, INF) else f": {stop.message}"
        text = f"--stop-on {stop.kind} ended the script{what}"
        yield measured.finding(
            checks.UNFINISHED, checks.WARNING, text, steps, None, stop.step, series=[stop]
        )
        return
    text = {
        "failed": f"the script failed with exit status {info['exit_status']}",
        "interrupted": "the script was interrupted",
        "stopped": "--stop-on ended the script",
        "running": "the run has no end: the script still runs, or it was killed",
    }[status]
    level = {"failed": checks.ERROR, "running": checks.NOTE}.get(status, checks.WARNING)
    last = steps - 1 if steps else None
    count = f"{steps:,} step{'s' * (steps != 1)}"
    yield measured.finding(checks.UNFINISHED, level, f"{text} after {count}", steps, None, last)


def _unmade_checks(measured: MeasuredRun, names: Iterable[str]) -> dict[str, str]:
    """The checks that a run has no measurements for, and why."""
    reasons: dict[str, str] = {}
    if not len(measured.steps):
        of_layers = (
            checks.UPDATES,
            checks.DEAD,
            checks.VANISHING,
            checks.GROWTH,
            checks.OVERFLOW,
            checks.UNUSED,
            checks.FROZEN,
            checks.ADAM,
        )
        reasons |= dict.fromkeys((*of_layers, checks.LEARNING_RATE), "no layer was measured")
    elif not uses_float16(measured):
        reasons[checks.OVERFLOW] = "no gradient scaler"
    if len(measured.steps) and not measured.layers(PARAMETER, "adam_rms").series:
        reasons[checks.ADAM] = "no optimizer like Adam"
    if measured.loss is None:
        reasons[checks.LEARNING_RATE] = "no loss was found"
    if reason := why_loss_is_not_judged(measured):
        reasons[checks.LOSS] = reason
    if measured.of_step("loss_scale", "skipped") is None:
        reasons[checks.SKIPPED] = "no gradient scaler"
    return {name: reasons[name] for name in names if name in reasons}


# The function that makes each check of ``RUN_CHECKS``.
FINDERS: dict[str, Callable[[MeasuredRun], Iterator[Finding]]] = {
    checks.NONFINITE: nonfinite_findings,
    checks.SPIKE: loss_curve.spike_findings,
    checks.LOSS: loss_curve.loss_findings,
    checks.LEARNING_RATE: loss_curve.learning_rate_findings,
    checks.UPDATES: weight_updates.updates_findings,
    checks.DEAD: layer_activations.dead_findings,
    checks.VANISHING: weight_updates.vanishing_findings,
    checks.GROWTH: layer_activations.growth_findings,
    checks.OVERFLOW: layer_activations.overflow_findings,
    checks.UNUSED: weight_updates.unused_findings,
    checks.FROZEN: weight_updates.frozen_findings,
    checks.SKIPPED: skipped_findings,
    checks.ADAM: weight_updates.adam_findings,
    checks.INCOMPLETE: incomplete_findings,
    checks.UNFINISHED: unfinished_findings,
}
