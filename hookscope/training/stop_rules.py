"""Judges each step for ``--stop-on spike``, ``dead`` and ``vanishing``, with the thresholds of
``check``. Dead units and vanished gradients must be there in 8 sampled steps in turn. Spikes are
those of the loss at each step, and of the gradient norm at the sampled ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping

import numpy as np

from hookscope.file_analysis.run_findings.loss_curve import judge_spikes
from hookscope.specs.run_checks import RunThresholds
from hookscope.specs.watch_options import DEAD, SPIKE, VANISHING
from hookscope.stores.runs.run_info import RunEvent
from hookscope.stores.runs.series import LOSS, SKIPPED, Series

THRESHOLDS = RunThresholds()
GRADIENT_NORM = ("gradients", "norm")  # key and measure


class StopRules:
    """The rules that the user chose."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._kinds = frozenset(kinds)
        self._before: dict[Series, deque[float]] = {}  # the last values of each, for spikes
        self._times: dict[Series, int] = {}  # sampled steps in turn with a fault

    def judge(
        self, step: int, steps: Mapping[Series, float], layers: Mapping[Series, float]
    ) -> RunEvent | None:
        """Return what is wrong with a step, or None."""
        judges_spikes = SPIKE in self._kinds and not steps.get(SKIPPED)
        if judges_spikes and (event := self._spike(step, steps, layers)):
            return event
        for series, value in layers.items() if self._kinds & {DEAD, VANISHING} else ():
            kind, message = self._fault_of(series, value)
            self._times[series] = self._times.get(series, 0) + 1 if kind else 0
            if self._times[series] == THRESHOLDS.unused_window:
                phase = "backward" if series.key.endswith(".grad") else "forward"
                return RunEvent(step, kind, phase, series.model, series.module, 0, message)
        return None

    def _spike(
        self, step: int, steps: Mapping[Series, float], layers: Mapping[Series, float]
    ) -> RunEvent | None:
        """Judge the loss, and the gradient norm of each model."""
        if LOSS in steps and (rise := self._rise(LOSS, steps[LOSS])):
            return RunEvent(step, SPIKE, "forward", "", "", 0, f"a spike of the loss: {rise}")
        for series, value in layers.items():
            if series[1:] == GRADIENT_NORM and (rise := self._rise(series, value)):
                message = f"a spike of the gradient norm: {rise}"
                return RunEvent(step, SPIKE, "backward", series.model, "", 0, message)
        return None

    def _rise(self, series: Series, value: float) -> str:
        """What is said of a number far above the previous ones; empty if it is not."""
        if not math.isfinite(value):
            return ""
        values = self._before.setdefault(series, deque(maxlen=THRESHOLDS.spike_window))
        before = np.array([values], np.float64)
        values.append(value)
        [mean], [limit], [is_spike] = judge_spikes(before, np.array([value]), THRESHOLDS)
        if not is_spike:
            return ""
        limit = max(limit, mean + THRESHOLDS.spike_rise * abs(mean))
        return f"{value:.4g}, after a mean of {mean:.4g} (threshold {limit:.4g})"

    def _fault_of(self, series: Series, value: float) -> tuple[str, str]:
        """Which fault a number shows, and what is said of it; a NaN shows none.

        A bias before a normalization has a gradient near 0, and an unused weight has 0.
        """
        limits = THRESHOLDS
        if DEAD in self._kinds and series.measure == "dead" and value >= limits.dead:
            share, limit = f"{value:.0%}", f"{limits.dead:.0%}"
            return DEAD, f"{share} of units are zero for the whole batch (threshold {limit})"
        is_gradient = series.what == "weight.grad" and series.measure == "norm"
        if VANISHING in self._kinds and is_gradient and 0 < value < limits.floor:
            norm = f"{value:.3g} (threshold {limits.floor:g})"
            return VANISHING, f"the norm of {series.what} is {norm}"
        return "", ""
