"""Findings on parameters: updates, gradients that vanish or are missing, frozen layers, Adam."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookscope.file_analysis.run_findings.measured_run import Measured, MeasuredRun
from hookscope.results.health import Finding
from hookscope.specs.checks import ADAM, FROZEN, NOTE, UNUSED, UPDATES, VANISHING, WARNING
from hookscope.stores.runs.series import PARAMETER, PARAMETER_GRAD, UPDATE, Series

MIN_ROWS = 3  # a layer that starts with zeros has no gradient in the first steps
PARAMETER_FACTOR = 100  # the ratio for gradients at outputs over it, as in check on a model


def update_ratios(measured: MeasuredRun) -> Measured:
    """Return the update ratios of weights, NaN for skipped steps.

    Biases are left out: they start at 0.
    """
    ratios = measured.layers(UPDATE, "ratio")
    columns = [n for n, one in enumerate(ratios.series) if "bias" not in one.what]
    values = np.where(measured.skipped_rows[:, None], np.nan, ratios.values)[:, columns]
    series = tuple(ratios.series[n] for n in columns)
    return Measured(series, values.astype(np.float32), ratios.present[:, columns])


def updates_findings(measured: MeasuredRun) -> Iterator[Finding]:
    """Yield weights whose median update over the run is too large or too small for them."""
    ratios, thresholds = update_ratios(measured), measured.thresholds
    unused = {(found.series.model, found.series.key) for found in _without_gradient(measured)}
    medians: dict[int, float] = {}
    for n, one in enumerate(ratios.series):
        values = ratios.values[:, n][np.isfinite(ratios.values[:, n])]
        gradient = one.key.removesuffix(".update") + ".grad"
        if len(values) >= MIN_ROWS and (one.model, gradient) not in unused:
            medians[n] = float(np.median(values))
    high = [n for n in medians if medians[n] > thresholds.update_high]
    low = [n for n in medians if medians[n] < thresholds.update_low]
    for columns, limit in ((high, thresholds.update_high), (low, thresholds.update_low)):
        if columns:
            is_high = columns is high
            worst = sorted(columns, key=medians.__getitem__, reverse=is_high)
            curve = ratios.values[:, worst[0]]
            rows = np.flatnonzero(curve > limit if is_high else curve < limit)
            median, weight = medians[worst[0]], ratios.series[worst[0]].what[: -len(".update")]
            word, advice = ("large", "lower") if is_high else ("small", "raise")
            yield measured.finding(
                UPDATES,
                NOTE,  # healthy runs with Adam and narrow layers have such updates too
                f"its updates are {word} for its {weight}: a median ratio of {median:.3g}",
                median,
                limit,
                int(measured.steps[rows[0]]),
                series=[ratios.series[n] for n in worst],
                hint=f"The aim is about 1e-3 of the weight: {advice} the learning rate if the loss"
                " does not fall as it should.",
            )


def unused_findings(measured: MeasuredRun) -> Iterator[Finding]:
    """Yield layers with parameters whose gradient is zero or missing in most of the last steps."""
    missing = _without_gradient(measured)
    for first, count, window in sorted({found[1:] for found in missing}):
        series = [found.series for found in missing if found[1:] == (first, count, window)]
        names = ", ".join(
            dict.fromkeys(
                one.what.removesuffix(".grad")
                for one in series
                if (one.model, one.module) == (series[0].model, series[0].module)
            )
        )
        yield measured.finding(
            UNUSED,
            WARNING,
            f"its {names} get{'' if ',' in names else 's'} no gradient in"
            f" {count} of the last {window} sampled steps",
            count,
            float(np.ceil(measured.thresholds.unused * window)),
            int(measured.steps[first]),
            series=series,
            hint="Look for detach(), no_grad(), dead units after it, or an output that the loss"
            " does not use; set requires_grad=False if that is intended.",
        )


class _Missing(NamedTuple):
    """A parameter without a gradient at the end of a run."""

    series: Series
    row: int
    missing: int
    window: int


def _without_gradient(measured: MeasuredRun) -> list[_Missing]:
    norms, thresholds = measured.layers(PARAMETER_GRAD, "norm"), measured.thresholds
    judged: dict[str, NDArray[np.bool_]] = {}
    for model in measured.models:
        own = measured.layers(PARAMETER_GRAD, "norm", model)
        trained = (own.present & (own.values != 0)).any(axis=1)
        # Steps of another model, or with a loss of 0, say nothing of single layers.
        judged[model] = (trained if trained.any() else ~trained) & ~measured.skipped_rows
    found = []
    for n, one in enumerate(norms.series):
        rows = np.flatnonzero(norms.present[:, n] & judged[one.model])
        is_zero = norms.values[rows, n] == 0
        window = is_zero[-thresholds.unused_window :]
        if len(window) < MIN_ROWS or window.mean() < thresholds.unused:
            continue
        from_here = is_zero[::-1].cumsum()[::-1] / np.arange(len(rows), 0, -1)
        start = int(np.argmax(is_zero & (from_here >= thresholds.unused)))
        found.append(_Missing(one, int(rows[start]), int(window.sum()), len(window)))
    return found


def vanishing_findings(measured: MeasuredRun) -> Iterator[Finding]:
    """Yield layers whose gradients are too small beside those of the layer with the largest.

    The gradient of a layer is that of its parameter with the largest: a bias before a normalization
    has none by construction. A layer is judged at the steps where it has a gradient, and reported
    if it vanishes in as large a share of them as ``unused`` says.
    """
    thresholds = measured.thresholds
    for model in measured.models:
        modules, norms = _module_norms(measured, model)
        if not modules:
            continue
        with np.errstate(invalid="ignore", divide="ignore"):
            largest = np.nanmax(np.nan_to_num(norms, nan=0.0), axis=1)
            ratios = norms / largest[:, None]
        limit = thresholds.vanishing / PARAMETER_FACTOR
        is_small = (ratios < limit) | (norms < thresholds.floor)
        # Where all gradients are below the floor, the loss is at its minimum.
        vanished = (norms > 0) & is_small & (largest >= thresholds.floor)[:, None]
        judged = (norms > 0).sum(axis=0)
        columns = np.flatnonzero(
            (judged >= MIN_ROWS) & (vanished.sum(axis=0) >= thresholds.unused * judged)
        )
        if not len(columns):
            continue
        first = int(columns[vanished[:, columns].argmax(axis=0).argmin()])
        row = int(vanished[:, first].argmax())
        ordered = [modules[first], *(modules[n] for n in columns if n != first)]
        by_ratio = ratios[row, first] < limit
        value = float(ratios[row, first] if by_ratio else norms[row, first])
        yield measured.finding(
            VANISHING,
            WARNING,
            f"its gradient norm is {norms[row, first]:.3g}, and the largest of a layer is"
            f" {largest[row]:.3g}",
            value,
            limit if by_ratio else thresholds.floor,
            int(measured.steps[row]),
            series=ordered,
            hint="Check the initialization, normalization and saturated activations after it.",
        )


def _module_norms(measured: MeasuredRun, model: str) -> tuple[list[Series], NDArray[np.float64]]:
    """The largest gradient norm of the parameters of each module; NaN where it was not finite."""
    norms = measured.layers(PARAMETER_GRAD, "norm", model)
    columns: dict[str, list[int]] = {}
    for n, one in enumerate(norms.series):
        columns.setdefault(one.module, []).append(n)
    values = np.where(np.isfinite(norms.values), norms.values, np.nan).astype(np.float64)
    values[measured.skipped_rows] = np.nan
    largest = np.full((len(values), len(columns)), np.nan)
    for n, own in enumerate(columns.values()):
        largest[:, n] = np.fmax.reduce(values[:, own], axis=1)
    return [norms.series[own[0]] for own in columns.values()], largest


def frozen_findings(measured: MeasuredRun) -> Iterator[Finding]:
    """Yield layers without any trained parameter in a model that trains others."""
    for model in measured.models:
        trained = {one.module for one in measured.layers(PARAMETER_GRAD, "norm", model).series}
        weights = measured.layers(PARAMETER, "norm", model).series
        frozen = [one for one in weights if one.module not in trained]
        if trained and frozen:
            row = int(measured.run.layers.present(frozen[:1])[:, 0].argmax())
            count = sum(one.module == frozen[0].module for one in frozen)
            yield measured.finding(
                FROZEN,
                NOTE,
                f"its parameters ({count}) are frozen, while other layers are trained",
                count,
                None,
                int(measured.steps[row]),
                series=frozen,
                hint="Call requires_grad_(True) if it should learn.",
            )


def adam_findings(measured: MeasuredRun) -> Iterator[Finding]:
    """Yield parameters for which Adam's second moment is too small for several sampled steps."""
    values = measured.layers(PARAMETER, "adam_rms")
    thresholds = measured.thresholds
    beyond = values.present & (values.values > thresholds.adam_rms)
    width = min(thresholds.unused_window, len(beyond))
    if width < MIN_ROWS or not values.series:
        return
    counts = np.lib.stride_tricks.sliding_window_view(beyond, width, axis=0).sum(axis=2)
    sustained = counts >= thresholds.unused * width
    columns = np.flatnonzero(sustained.any(axis=0))
    if not len(columns):
        return
    starts = [int(sustained[:, n].argmax()) for n in columns]
    rows = [
        start + int(beyond[start:, n].argmax()) for start, n in zip(starts, columns, strict=True)
    ]
    order = np.argsort(rows, kind="stable")
    row, column = rows[order[0]], columns[order[0]]
    yield measured.finding(
        ADAM,
        WARNING,
        f"the gradient of its {values.series[column].what} outgrows Adam's second moment",
        float(values.values[row, column]),
        thresholds.adam_rms,
        int(measured.steps[row]),
        series=[values.series[columns[n]] for n in order],
        hint="Lower beta2 or the learning rate, clip the update, or warm up longer.",
    )
