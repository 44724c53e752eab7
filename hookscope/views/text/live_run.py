"""The live view of a training run: the loss and the worst layers, below the script's output.

On a terminal the last lines are set apart: the script scrolls in the lines above them (the control
sequence DECSTBM), so that its output needs no redirection and may end in the middle of a line.
Where standard error is not a terminal, there is a plain line every 30 seconds.
"""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TextIO

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hookscope.escapes import visible
from hookscope.file_analysis.run_summary import thin_out
from hookscope.files.words import count_text, number_text, percent_text
from hookscope.specs.patterns import layer_text
from hookscope.stores.runs.series import LOSS, Series
from hookscope.views.text.small_curves import trend_text

PLAIN_SECONDS = 30.0  # between two lines where there is no terminal
RECENT = 20  # losses and values of a trend
GROUP = 2  # layers of each kind of trouble
LINES = 10  # of the panel at most, its border included
MIN_SCRIPT_LINES = 6  # a terminal with fewer lines above the panel gets plain lines


class MeasuredRow(NamedTuple):
    """One row of a table of a run."""

    step: int
    seconds: float
    values: Mapping[Series, float]


@dataclass(frozen=True)
class WorstLayer:
    """A layer with one measure that stands out."""

    model: str
    layer: str
    what: str
    value: float
    recent: tuple[float, ...]


@dataclass(frozen=True)
class LiveSnapshot:
    """What the live view shows at one moment."""

    step: int
    seconds: float
    steps_per_second: float | None
    loss: float | None
    recent_losses: tuple[float, ...]
    layers: tuple[WorstLayer, ...]
    models: int = 1


def make_snapshot(steps: Sequence[MeasuredRow], layers: Sequence[MeasuredRow]) -> LiveSnapshot:
    """Return a snapshot of the last rows of the tables ``steps`` and ``layers``."""
    losses = [row.values[LOSS] for row in steps if LOSS in row.values]
    rate = None
    if len(steps) > 1 and steps[-1].seconds > steps[0].seconds:
        rate = (steps[-1].step - steps[0].step) / (steps[-1].seconds - steps[0].seconds)
    last = max((row for row in (*steps[-1:], *layers[-1:])), key=lambda row: row.step, default=None)
    return LiveSnapshot(
        step=last.step if last else -1,
        seconds=last.seconds if last else 0.0,
        steps_per_second=rate,
        loss=losses[-1] if losses else None,
        recent_losses=tuple(thin_out(losses, RECENT)),
        layers=_worst_layers(layers),
        models=len({series.model for row in layers for series in row.values}),
    )


def _worst_layers(rows: Sequence[MeasuredRow]) -> tuple[WorstLayer, ...]:
    curves: dict[Series, list[float]] = {}
    for row in rows:
        for series, value in row.values.items():
            if series.module:
                curves.setdefault(series, []).append(value)
    bad, growing, ratios, dead = [], [], [], []
    for series, values in curves.items():
        if series.measure == "nonfinite":
            bad += [series] if values[-1] else []
        elif series.measure == "rms" and values[0] > 0 and math.isfinite(values[-1]):
            growing.append(series)
        elif series.measure == "ratio" and math.isfinite(values[-1]):
            ratios.append(series)
        elif series.measure == "dead" and values[-1] > 0:
            dead.append(series)
    # A layer has one row for each measure: that of its weight, and of its first output.
    ratios.sort(key=lambda series: series.what != "weight.update")
    bad, growing, ratios, dead = map(_one_of_each_layer, (bad, growing, ratios, dead))
    growing.sort(key=lambda series: -curves[series][-1] / curves[series][0])
    ratios.sort(key=lambda series: -curves[series][-1])
    dead.sort(key=lambda series: -curves[series][-1])
    chosen = [(series, "NaN or Inf") for series in bad[:GROUP]]
    chosen += [(series, "rms") for series in growing[:GROUP]]
    ends = dict.fromkeys([*ratios[:1], *ratios[-1:]])
    chosen += [(series, "update ratio") for series in ends]
    chosen += [(series, "dead") for series in dead[:GROUP]]
    return tuple(
        WorstLayer(
            series.model,
            series.module,
            what,
            curves[series][-1],
            tuple(thin_out(curves[series], RECENT)),
        )
        for series, what in chosen
    )


def _one_of_each_layer(series: Sequence[Series]) -> list[Series]:
    """The first series of each layer."""
    first: dict[tuple[str, str], Series] = {}
    for one in series:
        first.setdefault((one.model, one.module), one)
    return list(first.values())


class LiveView:
    """Shows snapshots on standard error. It never raises: a fault ends the view only."""

    def __init__(
        self, stream: TextIO, script: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.ended = False
        self._stream = stream
        self._script = script
        self._clock = clock
        self._process = os.getpid()
        self._last_line = clock()
        self._size: os.terminal_size | None = None  # of the terminal, while lines are set apart
        self._ascii = not _draws_boxes(stream)

    def update(self, snapshot: LiveSnapshot) -> None:
        """Show a snapshot in place of the one before."""
        self._attempt(lambda: self._show(snapshot))

    def close(self) -> None:
        """Remove the panel, and give the lines back to the script."""
        self._attempt(self._release)
        self.ended = True

    def _attempt(self, action: Callable[[], None]) -> None:
        if self.ended or os.getpid() != self._process:  # a forked process shares the terminal
            return
        try:
            action()
        except Exception:  # the training matters more than its view
            self.ended = True

    def _show(self, snapshot: LiveSnapshot) -> None:
        size = self._terminal_size()
        if size is None:
            self._show_line(snapshot)
            return
        if size != self._size:
            self._release()
            self._reserve(size)
        lines = self._panel(snapshot, size.columns)
        top = size.lines - LINES
        parts = [f"\x1b[{top + n};1H\x1b[2K{line}" for n, line in enumerate(lines, start=1)]
        # DECSC and DECRC: the script's cursor stays where it is.
        self._write("\x1b7" + "".join(parts) + "\x1b8")

    def _terminal_size(self) -> os.terminal_size | None:
        """The size of the terminal; None if there is none, or it has too few lines."""
        if not self._stream.isatty() or os.environ.get("TERM", "") in ("", "dumb"):
            return None
        size = os.get_terminal_size(self._stream.fileno())
        return size if size.lines >= LINES + MIN_SCRIPT_LINES and size.columns >= 20 else None

    def _reserve(self, size: os.terminal_size) -> None:
        """Set the last lines apart, after text that is there has moved up."""
        top = size.lines - LINES
        # IND, unlike a line end, keeps the column: a line of the script may be unfinished.
        self._write("\x1bD" * LINES + f"\x1b[{LINES}A\x1b7\x1b[1;{top}r\x1b8")
        self._size = size

    def _release(self) -> None:
        if self._size is None:
            return
        top = self._size.lines - LINES
        self._size = None
        # Setting the region moves the cursor, so it is saved before.
        self._write(f"\x1b7\x1b[r\x1b[{top + 1};1H\x1b[J\x1b8")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _show_line(self, snapshot: LiveSnapshot) -> None:
        self._release()
        now = self._clock()
        if now - self._last_line < PLAIN_SECONDS:
            return
        self._last_line = now
        worst = "".join(f"; {_layer_text(layer, snapshot)}" for layer in snapshot.layers[:GROUP])
        self._write(f"hookscope: {_head_text(snapshot)}{worst}\n")

    def _panel(self, snapshot: LiveSnapshot, width: int) -> list[str]:
        """Return the lines of the panel, escapes included; as many as are set apart."""
        table = Table.grid(padding=(0, 2))
        for _ in range(2):
            table.add_column(no_wrap=True)
        losses = trend_text(snapshot.recent_losses, self._ascii)
        table.add_row(Text(_head_text(snapshot), "bold"), Text(losses))
        room = LINES - 3
        for layer in snapshot.layers[:room]:
            bad = layer.what == "NaN or Inf"
            trend = "" if bad else trend_text(layer.recent, self._ascii)
            table.add_row(
                Text(_layer_text(layer, snapshot), "bold red" if bad else ""), Text(trend)
            )
        output = io.StringIO()
        console = Console(
            file=output,
            force_terminal=True,
            width=width,
            height=LINES,
            color_system=None if os.environ.get("NO_COLOR") else "standard",
            safe_box=True,
            legacy_windows=False,
            highlight=False,
        )
        title = Text(visible(f"hookscope: {self._script}"))
        edge = box.ASCII if self._ascii else box.ROUNDED
        console.print(Panel(table, edge, title=title, title_align="left", height=LINES), end="")
        lines = output.getvalue().split("\n")[:LINES]
        return [_encodable(line) if self._ascii else line for line in lines]


def _head_text(snapshot: LiveSnapshot) -> str:
    parts = [f"step {count_text(snapshot.step)}", f"{snapshot.seconds:,.0f} s"]
    if snapshot.steps_per_second is not None:
        parts.append(f"{number_text(snapshot.steps_per_second, 3)} steps/s")
    if snapshot.loss is not None:
        parts.append(f"loss {number_text(snapshot.loss)}")
    return ", ".join(parts)


def _layer_text(layer: WorstLayer, snapshot: LiveSnapshot) -> str:
    name = layer_text(layer.layer)
    if snapshot.models > 1:
        name = f"{layer.model} {name}"
    if layer.what == "NaN or Inf":
        value = f"{count_text(int(layer.value))} entries"
    else:
        value = percent_text(layer.value) if layer.what == "dead" else number_text(layer.value)
    return visible(f"{name}: {layer.what} {value}")


def _encodable(line: str) -> str:
    return line.encode("ascii", "backslashreplace").decode()


def _draws_boxes(stream: TextIO) -> bool:
    try:
        "│▁".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
