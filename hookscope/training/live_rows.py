"""Passes the last rows of a run to the live view, a few times a second."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

from hookscope.stores.runs.series import LAYERS, STEPS, Series
from hookscope.views.text.live_run import LiveView, MeasuredRow, make_snapshot

REFRESH_SECONDS = 0.25


class LiveRows:
    """The last rows of both tables."""

    def __init__(self, view: LiveView) -> None:
        self._view = view
        self._rows: dict[str, deque[MeasuredRow]] = {
            STEPS: deque(maxlen=100),
            LAYERS: deque(maxlen=20),
        }
        self._last_update = -REFRESH_SECONDS

    def add_row(
        self, table: str, step: int, seconds: float, values: Mapping[Series, float]
    ) -> None:
        """Add a row, and show it unless the last one was shown a moment ago."""
        self._rows[table].append(MeasuredRow(step, seconds, values))
        now = time.monotonic()
        if now - self._last_update >= REFRESH_SECONDS:
            self._last_update = now
            self._view.update(make_snapshot(list(self._rows[STEPS]), list(self._rows[LAYERS])))

    def close(self) -> None:
        """Remove the view."""
        self._view.close()
