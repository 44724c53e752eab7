"""Findings on outputs: dead units, growth over the depth, float16's largest number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hookscope.file_analysis.run_findings.measured_run import Measured, MeasuredRun
from hookscope.files.words import percent_text
from hookscope.results.health import Finding
from hookscope.specs.checks import DEAD, GROWTH, OVERFLOW, WARNING
from hookscope.specs.module_names import ancestors
from hookscope.specs.patterns import ROOT
from hookscope.stores.runs.series import OUTPUT

FLOAT16_MAX = 65504.0
_MIN_SAMPLES = 16  # with fewer values per unit, many units are zero by chance
_MIN_LAYERS = 3  # of one type, for a trend over the depth


def dead_findings(measured: MeasuredRun) -> Iterator[Finding]:
    """Yield layers whose share of dead units is at or over the threshold from some step to the end.

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
        f"{'all' if share == 1 else f'{percent_text(share)} of'} its units are zero for the whole"
        " batch, and stay so",
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
    normalization. Layers with a normalization between them are judged apart, since what the later
    one gets is as large as at the start.
    """
    outputs = measured.layers(OUTPUT, "rms")
    if not len(outputs.values):
        return
    first = outputs.values[0].astype(np.float64)
    for kind, columns in _chains(measured, outputs):
        columns = [n for n in columns if np.isfinite(first[n]) and first[n] > 0]
        third = len(columns) // 3
        if len(columns) < _MIN_LAYERS:
            continue
        start, end = np.median(first[columns[:third]]), np.median(first[columns[-third:]])
        if end > measured.thresholds.growth * start:
            yield measured.finding(
                GROWTH,
                WARNING,
                f"outputs grow over the {len(columns)} layers of type {kind}, from an RMS of"
                f" {start:.3g} to {end:.3g}",
                float(end / start),
                measured.thresholds.growth,
                int(measured.steps[0]),
                series=[outputs.series[columns[-1]]],
                hint="Check the initialization, and normalize or scale the residual branches.",
            )


def _chains(measured: MeasuredRun, outputs: Measured) -> Iterator[tuple[str, list[int]]]:
    """Yield the layers of one type without a normalization between them, as columns."""
    types = {
        (model["name"], layer["name"]): layer["type"]
        for model in measured.run.info["models"]
        for layer in model["layers"]
    }
    containers = {
        (model, above)
        for model, name in types
        if name != ROOT
        for above in (ROOT, *ancestors(name))
    }
    chains: dict[tuple[str, str, int], list[int]] = {}
    norms: Counter[str] = Counter()
    for n, one in enumerate(outputs.series):
        place = one.model, one.module
        if not (kind := types.get(place)):
            continue
        chain = 0 if place in containers else norms[one.model]
        chains.setdefault((one.model, kind, chain), []).append(n)
        if place not in containers:
            norms[one.model] += "norm" in kind.lower()
    for (_, kind, _), columns in chains.items():
        yield kind, columns


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
