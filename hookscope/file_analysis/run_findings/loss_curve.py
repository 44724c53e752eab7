"""Findings on curves of the whole run: spikes, a loss that does not fall, the learning rate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hookscope.file_analysis.run_findings.measured_run import MeasuredRun
from hookscope.file_analysis.run_findings.weight_updates import update_ratios
from hookscope.results.health import Finding
from hookscope.specs.checks import LEARNING_RATE, LOSS, SPIKE, WARNING, RunThresholds
from hookscope.stores.runs.series import Series

_ROWS = 8192  # rows of windows that are in memory at once


class Spike(NamedTuple):
    """The first value of a curve that is beyond its limit."""

    position: int
    value: float
    limit: float
    mean: float
    spikes: int


def find_spike(values: NDArray[np.float32], thresholds: RunThresholds) -> Spike | None:
    """Return the first spike of a curve; values that are not finite are left out.

    A value v is a spike if v > m + k s and v - m > r |m|, with the mean m and the standard
    deviation s of the finite ones among the previous ``spike_window`` values, k
    ``spike_deviations`` and r ``spike_rise``. The first ``spike_history`` values are not judged.
    """
    curve = values.astype(np.float64)
    curve[~np.isfinite(curve)] = np.nan
    padded = np.concatenate([np.full(thresholds.spike_window, np.nan), curve])
    windows = sliding_window_view(padded, thresholds.spike_window)[:-1]
    first: tuple[int, float, float, float] | None = None
    count = 0
    for start in range(0, len(curve), _ROWS):
        current = curve[start : start + _ROWS]
        mean, limit, is_spike = judge_spikes(windows[start : start + _ROWS], current, thresholds)
        count += int(is_spike.sum())
        if first is None and is_spike.any():
            n = int(is_spike.argmax())
            first = (start + n, float(current[n]), float(limit[n]), float(mean[n]))
    return None if first is None else Spike(*first, count)


def judge_spikes(
    windows: NDArray[np.float64], values: NDArray[np.float64], thresholds: RunThresholds
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return the mean of the values before each value, its limit, and whether it is a spike."""
    known = np.isfinite(windows)
    counts = known.sum(axis=1)
    divisor = np.maximum(counts, 1)
    mean = np.where(known, windows, 0).sum(axis=1) / divisor
    squares = np.where(known, windows - mean[:, None], 0) ** 2
    limit = mean + thresholds.spike_deviations * np.sqrt(squares.sum(axis=1) / divisor)
    is_spike = (values > limit) & (values - mean > thresholds.spike_rise * np.abs(mean))
    return mean, limit, is_spike & (counts >= thresholds.spike_history)


def spike_findings(measured: MeasuredRun) -> Iterator[Finding]:
    """Yield the first spike of the loss, and of each model's gradient norm."""
    table = measured.run.layers
    curves = [] if measured.loss is None else [("the loss", measured.loss)]
    for model in measured.models:
        series = Series(model, "gradients", "norm")
        if series in table.series:
            name = f"the gradient norm of {model}" if len(measured.models) > 1 else ""
            curves.append((name or "the gradient norm", table.curve(series)))
    for name, curve in curves:
        kept = ~np.isin(curve.steps, measured.skipped_steps)
        spike = find_spike(curve.values[kept], measured.thresholds)
        if spike is None:
            continue
        more = f"; {spike.spikes - 1:,} further spikes" if spike.spikes > 1 else ""
        yield measured.finding(
            SPIKE,
            WARNING,
            f"{name} rises to {spike.value:.4g} from a mean of {spike.mean:.4g}{more}",
            spike.value,
            spike.limit,
            int(curve.steps[kept][spike.position]),
            hint="Look at the batch of this step; clip gradients or lower the learning rate.",
        )


def loss_findings(measured: MeasuredRun) -> Iterator[Finding]:
    """Yield that the loss does not fall: the median of its end against that of its start."""
    loss, thresholds = measured.loss, measured.thresholds
    if loss is None or why_loss_is_not_judged(measured):
        return
    values = loss.values[np.isfinite(loss.values)].astype(np.float64)
    part = max(thresholds.loss_steps, len(values) // 10)
    if len(values) < 2 * part:
        return
    start, end = float(np.median(values[:part])), float(np.median(values[-part:]))
    fall = (start - end) / abs(start) if start else -np.sign(end)
    if fall < thresholds.loss_fall:
        yield measured.finding(
            LOSS,
            WARNING,
            f"the loss does not fall: {start:.4g} in the first {part} steps, {end:.4g} in the last",
            float(fall),
            thresholds.loss_fall,
            int(loss.steps[0]),
            hint="Check that the optimizer has the parameters, the learning rate, and the targets.",
        )


def why_loss_is_not_judged(measured: MeasuredRun) -> str:
    """Return why it cannot be said whether the loss falls; empty if it can."""
    if measured.loss is None:
        return "no loss was found"
    if len(measured.run.info["optimizers"]) > 1:
        return "several optimizers, whose losses may compete"
    least = 2 * measured.thresholds.loss_steps
    return f"fewer than {least} steps" if len(measured.loss.steps) < least else ""


def learning_rate_findings(measured: MeasuredRun) -> Iterator[Finding]:
    """Yield that most weights change too much in a step, after which the loss grows."""
    loss, thresholds = measured.loss, measured.thresholds
    ratios = update_ratios(measured)
    if loss is None or not ratios.series or not np.isfinite(loss.values[:1]).all():
        return
    known = np.isfinite(ratios.values)
    share = (known & (ratios.values > thresholds.rate_update)).sum(axis=1)
    rows = np.flatnonzero(share > known.sum(axis=1) / 2)
    if not len(rows):
        return
    row = int(rows[0])
    step = int(measured.steps[row])
    later = loss.values[loss.steps > step]
    limit = thresholds.loss_rise * abs(float(loss.values[0]))
    if len(later) and not (later <= limit).all():  # NaN is not below either
        median = float(np.median(ratios.values[row][known[row]]))
        highest = float(np.where(np.isfinite(later), later, np.inf).max())
        yield measured.finding(
            LEARNING_RATE,
            WARNING,
            f"the learning rate is too high: updates are large, and the loss grows from"
            f" {loss.values[0]:.4g} to {highest:.4g}",
            median,
            thresholds.rate_update,
            step,
            hint=f"Divide the learning rate by about {median / 1e-3:.2g}: the aim is 1e-3.",
        )
