"""Findings on outputs: dead units, growth over the depth, float16's largest number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hookscope.results.health import Finding
from hookscope.results.runs.findings.measured_run import MeasuredRun
from hookscope.results.runs.series import Series
from hookscope.results.runs.series_kinds import OUTPUT
from hookscope.specs.health_checks import DEAD, WARNING
from hookscope.specs.run_checks import GROWTH, OVERFLOW

FLOAT16_MAX = 65504.0
_MIN_SAMPLES = 16  # with fewer values per unit, many units are zero by chance
_MIN_LAYERS = 3  # of one type, for a trend over the depth


def dead_findings(measured: MeasuredRun) -> Iterator[Finding]:
    """Yield layers whose share of dead units is over the threshold from some step to the end.

    With batches of fewer than 16 samples, only a layer whose units are all dead is reported.
    """
    shares = measured.layers(OUTPUT, "dead")
    if not shares.series:
        return
    limits = _dead_limits(measured)
    below = shares.present & ~(shares.values >= limits[:, None])
    rows = np.arange(len(shares.values))[:, None]
    after = np.where(below, rows + 1, 0).max(axis=0)  # the row after the last one below
    columns = [n for n, row in enumerate(after) if shares.present[row:, n].any()]
    columns = [n for n in columns if shares.values[_last(shares.present, n), n] > 0]
    if not columns:
        return
    first = {n: int(after[n] + shares.present[after[n] :, n].argmax()) for n in columns}
    columns.sort(key=first.__getitem__)
    column, row = columns[0], first[columns[0]]
    share = float(shares.values[row, column])
    yield measured.finding(
        DEAD,
        WARNING,
        f"{'all' if share == 1 else f'{share:.0%} of'} its units are zero for the whole batch,"
        " and stay so",
        share,
        float(limits[row]),
        int(measured.steps[row]),
        series=[shares.series[n] for n in columns],
        hint="Lower the learning rate, check the bias before it, or use LeakyReLU or GELU.",
    )


def _last(present: NDArray[np.bool_], column: int) -> int:
    return int(np.flatnonzero(present[:, column])[-1])


def _dead_limits(measured: MeasuredRun) -> NDArray[np.float64]:
    """Shape (R,): the share of dead units at which a layer counts, by the size of the batch."""
    limits = np.full(len(measured.steps), measured.thresholds.dead)
    if batch := measured.of_step("batch", "samples"):
        limits[np.isin(measured.steps, batch.steps[batch.values < _MIN_SAMPLES])] = 1.0
    return limits


def growth_findings(measured: MeasuredRun) -> Iterator[Finding]:
    """Yield the types of layers whose outputs grow over the depth at the first sampled step.

    The RMS of the last third of the layers of one type is compared with that of the first third:
    layers of different types differ in size by construction, such as an embedding and a
    normalization.
    """
    outputs = measured.layers(OUTPUT, "rms")
    if not len(outputs.values):
        return
    types = {
        (model["name"], layer["name"]): layer["type"]
        for model in measured.run.info["models"]
        for layer in model["layers"]
    }
    groups: dict[tuple[str, str], list[int]] = {}
    for n, one in enumerate(outputs.series):
        kind = types.get((one.model, one.module))
        if kind and np.isfinite(outputs.values[0, n]) and outputs.values[0, n] > 0:
            groups.setdefault((one.model, kind), []).append(n)
    for (_, kind), columns in groups.items():
        third = len(columns) // 3
        if len(columns) < _MIN_LAYERS:
            continue
        values = outputs.values[0, columns].astype(np.float64)
        start, end = np.median(values[:third]), np.median(values[-third:])
        if end > measured.thresholds.growth * start:
            deep: list[Series] = [outputs.series[n] for n in columns]
            yield measured.finding(
                GROWTH,
                WARNING,
                f"outputs grow over the {len(columns)} layers of type {kind}, from an RMS of"
                f" {start:.3g} to {end:.3g}",
                float(end / start),
                measured.thresholds.growth,
                int(measured.steps[0]),
                series=deep[-1:],
                hint="Check the initialization, and normalize or scale the residual branches.",
            )


def overflow_findings(measured: MeasuredRun) -> Iterator[Finding]:
    """Yield outputs near the largest number of float16, in a run with a gradient scaler."""
    if not uses_float16(measured):
        return
    outputs = measured.layers(OUTPUT, "max")
    limit = measured.thresholds.overflow * FLOAT16_MAX
    beyond = np.isfinite(outputs.values) & (outputs.values > limit)
    columns = np.flatnonzero(beyond.any(axis=0))
    if not len(columns):
        return
    rows = beyond.argmax(axis=0)[columns]
    row, column = int(rows.min()), int(columns[rows.argmin()])
    rest = [outputs.series[n] for n in columns if n != column]
    value = float(outputs.values[row, column])
    yield measured.finding(
        OVERFLOW,
        WARNING,
        f"its output reaches {value:,.0f}; the largest number of float16 is {FLOAT16_MAX:,.0f}",
        value,
        limit,
        int(measured.steps[row]),
        series=[outputs.series[column], *rest],
        hint="Use bfloat16, or scale this layer's output down.",
    )


def uses_float16(measured: MeasuredRun) -> bool:
    """Whether the run had a gradient scaler, which float16 needs and other dtypes do not."""
    return measured.of_step("loss_scale", "value") is not None
