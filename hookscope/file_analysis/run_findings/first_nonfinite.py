"""Where a run first had a value that is not finite: the step, the phase and the layer.

Within a step, the order is that of time: weights as they were before it, outputs in execution
order, the loss, gradients from the last layer to the first, updates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookscope.file_analysis.run_findings.measured_run import Measured, MeasuredRun
from hookscope.results.health import Finding
from hookscope.specs.checks import ERROR, NONFINITE, NOTE, WARNING
from hookscope.specs.watch_options import INF, NAN
from hookscope.stores.runs.series import (
    OUTPUT,
    OUTPUT_GRAD,
    PARAMETER,
    PARAMETER_GRAD,
    UPDATE,
    Series,
    kind_of,
)

_STOP_HINT = "Run it again with 'hookscope run --stop-on nan'"
_HINTS = {
    PARAMETER: f"{_STOP_HINT}, or with --every 1, to find the step that did it.",
    OUTPUT: "The outputs before it are finite: look for a log, root, division, exp or an overflow"
    " in this layer, and at its batch.",
    OUTPUT_GRAD: "It comes from the backward of what uses this output: look for a root, norm or"
    " division at 0 there.",
    PARAMETER_GRAD: "The backward of this layer produced it: look for a root, norm or division at"
    " 0 in it.",
    UPDATE: "The optimizer divided by 0 or overflowed: check eps and the learning rate.",
}
_UNSAMPLED_HINT = f"{_STOP_HINT}, or with --every 1, to find the layer."
_LOSS_HINT = "Look for a log, root, division or an overflow in the loss function, and at its batch."


class _Origin(NamedTuple):
    """The first value that is not finite at a sampled step: its row and series."""

    row: int
    series: Series
    value: float


def nonfinite_findings(measured: MeasuredRun) -> Iterator[Finding]:
    """Yield the first value that is not finite, and outputs whose infinities stay in them."""
    outputs = measured.layers(OUTPUT, "nonfinite")
    bad = outputs.present & (outputs.values != 0)
    contained = _contained_columns(measured, bad)
    if contained.any():
        yield _contained_finding(measured, outputs, bad & contained)
    loss_step, loss_value = _first_bad_loss(measured)
    origin = _first_origin(measured, outputs, bad & ~contained)
    step = None if origin is None else int(measured.steps[origin.row])
    stop = measured.stop
    if (
        stop
        and stop.kind in (NAN, INF)
        and all(stop.step <= other for other in (step, loss_step) if other is not None)
    ):
        file = f"See {measured.run.folder / stop.file}." if stop.file else ""
        value = np.nan if stop.kind == NAN else np.inf
        yield measured.finding(
            *(NONFINITE, ERROR, stop.message, value, 0, stop.step),
            series=[stop],
            hint=file,
        )
    elif origin and step is not None and _precedes(step, origin, loss_step):
        yield _origin_finding(measured, origin)
    elif loss_step is not None:
        is_sampled = loss_step in measured.steps
        name = "NaN" if np.isnan(loss_value) else "infinite"
        layers = (
            "though every measured output is finite"
            if is_sampled
            else "at a step without measured layers"
        )
        yield measured.finding(
            *(NONFINITE, ERROR, f"the loss is {name}, {layers}", loss_value, 0, loss_step),
            hint=_LOSS_HINT if is_sampled else _UNSAMPLED_HINT,
        )


def _precedes(step: int, origin: _Origin, loss_step: int | None) -> bool:
    """Whether an origin is earlier than the loss: at the same step, in the forward pass."""
    if loss_step is None or step < loss_step:
        return True
    return step == loss_step and kind_of(origin.series) in (PARAMETER, OUTPUT)


def _first_bad_loss(measured: MeasuredRun) -> tuple[int | None, float]:
    """The step of the first loss that is not finite. Infinity is normal where a scaler skips."""
    if measured.loss is None:
        return None, 0.0
    steps, values = measured.loss.steps, measured.loss.values
    bad = np.isnan(values) | (np.isinf(values) & ~np.isin(steps, measured.skipped_steps))
    if not bad.any():
        return None, 0.0
    first = int(bad.argmax())
    return int(steps[first]), float(values[first])


def _first_origin(
    measured: MeasuredRun, outputs: Measured, bad_outputs: NDArray[np.bool_]
) -> _Origin | None:
    origins = []
    for kind, measure in ((PARAMETER, "norm"), (UPDATE, "norm")):
        norms = measured.layers(kind, measure)
        origins.append(_earliest(norms, norms.present & ~np.isfinite(norms.values)))
    before, update = origins
    gradients = [measured.layers(kind, "nonfinite") for kind in (PARAMETER_GRAD, OUTPUT_GRAD)]
    backward = _latest_gradient(measured, gradients)
    forward = _earliest(outputs, bad_outputs)
    # The first of equal rows is kept, so this is the order within a step.
    found = [origin for origin in (before, forward, backward, update) if origin]
    return min(found, key=lambda origin: origin.row, default=None)


def _earliest(curves: Measured, bad: NDArray[np.bool_]) -> _Origin | None:
    """The first bad column of the first row that has one."""
    rows = bad.any(axis=1)
    if not rows.any():
        return None
    row = int(rows.argmax())
    column = int(bad[row].argmax())
    return _Origin(row, curves.series[column], float(curves.values[row, column]))


def _latest_gradient(measured: MeasuredRun, gradients: list[Measured]) -> _Origin | None:
    """The gradient with which the backward pass of the first bad row began to be not finite.

    That is the last in execution order. In one layer, the gradient at its output comes before those
    of its parameters.
    """
    kept = ~measured.skipped_rows[:, None]
    bad = [curves.present & (curves.values != 0) & kept for curves in gradients]
    rows = np.any([one.any(axis=1) for one in bad], axis=0)
    if not rows.any():
        return None
    row = int(rows.argmax())
    candidates = [
        _Origin(row, curves.series[column], float(curves.values[row, column]))
        for curves, where in zip(gradients, bad, strict=True)
        for column in np.flatnonzero(where[row])
    ]
    return max(
        candidates,
        key=lambda one: (measured.order.place(one.series), kind_of(one.series) == OUTPUT_GRAD),
    )


def _origin_finding(measured: MeasuredRun, origin: _Origin) -> Finding:
    kind, what = kind_of(origin.series), origin.series.what
    name = what.removesuffix(".grad").removesuffix(".update")
    entries = f"{origin.value:,.0f} entr{'y' if origin.value == 1 else 'ies'}"
    text = {
        PARAMETER: f"the norm of its {name} is not finite before this step",
        OUTPUT: f"{entries} of its {name} {'is' if origin.value == 1 else 'are'} not finite",
        OUTPUT_GRAD: f"the gradient at its {name} is not finite: {entries}",
        PARAMETER_GRAD: f"the gradient of its {name} is not finite: {entries}",
        UPDATE: f"the norm of the update of its {name} is not finite, though its gradient is",
    }[kind]
    step = int(measured.steps[origin.row])
    last = int(measured.steps[origin.row - 1]) if origin.row else None
    if last is not None and last < step - 1:
        text += f" (finite at step {last}, the last sampled one before it)"
    counted = kind in (OUTPUT, OUTPUT_GRAD, PARAMETER_GRAD)
    value = int(origin.value) if counted else origin.value
    return measured.finding(
        *(NONFINITE, ERROR, f"the first value that is not finite: {text}", value, 0, step),
        series=[origin.series],
        hint=_HINTS[kind],
    )


def _contained_columns(measured: MeasuredRun, bad: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Shape (C,): outputs that are bad only where the loss is finite, as those of a mask are."""
    if measured.loss is None:
        return np.zeros(bad.shape[1], np.bool_)
    finite = measured.loss.steps[np.isfinite(measured.loss.values)]
    reaches_loss = (bad & ~np.isin(measured.steps, finite)[:, None]).any(axis=0)
    contained: NDArray[np.bool_] = np.logical_and(bad.any(axis=0), ~reaches_loss)
    return contained


def _contained_finding(measured: MeasuredRun, outputs: Measured, bad: NDArray[np.bool_]) -> Finding:
    columns = np.flatnonzero(bad.any(axis=0))
    rows = bad.argmax(axis=0)[columns]
    row = int(rows.min())
    column = columns[int(rows.argmin())]
    always = bool((bad[:, columns] == outputs.present[:, columns]).all())
    ordered = [outputs.series[column], *(outputs.series[n] for n in columns if n != column)]
    return measured.finding(
        NONFINITE,
        NOTE if always else WARNING,
        "its output is not finite, but the loss is",
        int(outputs.values[row, column]),
        0,
        int(measured.steps[row]),
        series=ordered,
        hint="" if always else "Check whether this is a mask; otherwise look for an overflow.",
    )
