"""The live view: what it shows, and that the output of the script stays whole above it."""

from __future__ import annotations

import io
import math
import os
from pathlib import Path

import pytest

from hookscope.stores.runs.series import Series
from hookscope.views.text.live_run import LiveView, MeasuredRow, make_snapshot
from tests.processes import in_terminal

pytest.importorskip("fcntl")  # which Windows does not have
pyte = pytest.importorskip("pyte")

LOSS = Series("", "loss", "value")
LINES, COLUMNS = 24, 80

# Prints to both streams, and shows a snapshot after each step; some lines end later.
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from hookscope.stores.runs.series import Series
from hookscope.views.text.live_run import LiveView, MeasuredRow, make_snapshot
view = LiveView(sys.stderr, "train.py")
steps = []
for step in range(40):
    print(f"begin {step}", end="", flush=True)
    steps.append(MeasuredRow(step, step / 10, {Series("", "loss", "value"): 2.0 - step / 40}))
    row = {Series("Net", "fc1/output", "dead"): 0.5, Series("Net", "fc1/output", "nonfinite"): 3}
    view.update(make_snapshot(steps, [MeasuredRow(step, step / 10, row)]))
    print(f" end {step}", flush=True)
    if step % 10 == 0:
        print(f"warning {step}", file=sys.stderr, flush=True)
print("last line", end="", flush=True)
if "close" in sys.argv:
    view.close()
"""


def row(step: int, **values: float) -> MeasuredRow:
    """A row of ``layers``; ``fc1_rms=2.0`` is the rms of the output of fc1."""
    whats = {"ratio": "weight.update"}
    series = {}
    for name, value in values.items():
        layer, measure = name.split("_")
        series[Series("Net", f"{layer}/{whats.get(measure, 'output')}", measure)] = value
    return MeasuredRow(step, step / 10, series)


def on_a_terminal(repo: Path, *words: str, stdout: Path | None = None, **env: str) -> object:
    """Run the script in a terminal and return its screen, with what has scrolled out of it."""
    environment = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **env}
    screen = pyte.HistoryScreen(COLUMNS, LINES, history=1000)
    line = ("-c", SCRIPT, repo, *words)
    shown = in_terminal(*line, env=environment, size=(LINES, COLUMNS), stdout=stdout)
    pyte.ByteStream(screen).feed(shown)
    return screen


def text_of(screen) -> list[str]:
    """All lines, from the first that scrolled out of the terminal to the last."""
    earlier = [
        "".join(line[column].data for column in range(COLUMNS)).rstrip()
        for line in screen.history.top
    ]
    return [*earlier, *(line.rstrip() for line in screen.display)]


def script_lines() -> list[str]:
    lines = []
    for step in range(40):
        lines.append(f"begin {step} end {step}")
        lines += [f"warning {step}"] * (step % 10 == 0)
    return [*lines, "last line"]


def test_the_panel_is_below_and_the_output_of_the_script_is_whole(repo: Path) -> None:
    screen = on_a_terminal(repo)
    lines = text_of(screen)
    assert lines[:-10] == script_lines()
    panel = lines[-10:]
    assert panel[0].startswith("╭─ hookscope: train.py") and panel[-1].startswith("╰")
    assert "step 39, 4 s, 10.0 steps/s, loss 1.025" in panel[1] and "▁" in panel[1]
    assert "fc1: NaN or Inf 3 entries" in panel[2] and "fc1: dead 50.0%" in panel[3]
    assert (screen.cursor.y, screen.cursor.x) == (LINES - 11, len("last line"))


def test_closing_gives_the_lines_back(repo: Path) -> None:
    screen = on_a_terminal(repo, "close")
    lines = text_of(screen)
    assert lines[: len(script_lines())] == script_lines()
    assert set(lines[len(script_lines()) :]) <= {""}
    assert screen.cursor.x == len("last line")
    assert screen.margins is None or screen.margins.bottom == LINES - 1


def test_standard_output_in_a_file_has_only_what_the_script_prints(
    repo: Path, tmp_path: Path
) -> None:
    file = tmp_path / "out.txt"
    screen = on_a_terminal(repo, "close", stdout=file)
    printed = [line for line in script_lines() if not line.startswith("warning")]
    assert file.read_text().split("\n") == printed
    assert [line for line in text_of(screen) if line] == [f"warning {n}" for n in (0, 10, 20, 30)]


def test_an_ascii_terminal_gets_an_ascii_panel(repo: Path) -> None:
    lines = text_of(on_a_terminal(repo, PYTHONIOENCODING="ascii"))
    assert "".join(lines).isascii() and any("hookscope: train.py" in line for line in lines[-10:])


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"TERM": ""}], ids=str)
def test_a_terminal_that_cannot_be_controlled_gets_no_panel(repo: Path, env) -> None:
    assert [line for line in text_of(on_a_terminal(repo, **env)) if line] == script_lines()


def test_a_pipe_gets_a_line_every_30_seconds() -> None:
    seconds = 0.0
    stream = io.StringIO()
    view = LiveView(stream, "train.py", clock=lambda: seconds)
    for step in range(100):
        seconds = float(step)
        view.update(make_snapshot([MeasuredRow(step, seconds, {LOSS: 0.5})], [row(0, fc_dead=0.5)]))
    view.close()
    assert stream.getvalue().splitlines() == [
        f"hookscope: step {n}, {n} s, loss 0.5000; fc: dead 50.0%" for n in (30, 60, 90)
    ]


def test_a_fault_ends_the_view_and_nothing_else() -> None:
    stream = io.StringIO()
    stream.close()
    seconds = iter([0.0, 100.0, 200.0])
    view = LiveView(stream, "train.py", clock=lambda: next(seconds))
    view.update(make_snapshot([], []))
    assert view.ended
    view.update(make_snapshot([], []))
    view.close()


def test_a_forked_process_shows_nothing() -> None:
    read, write = os.pipe()
    with open(write, "w") as stream:
        seconds = iter([0.0, 100.0])
        view = LiveView(stream, "train.py", clock=lambda: next(seconds))
        child = os.fork()
        if not child:
            try:
                view.update(make_snapshot([], []))
                view.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    assert os.read(read, 100) == b""
    os.close(read)


def test_a_snapshot_has_the_worst_layers() -> None:
    first = row(0, a_rms=1.0, b_rms=1.0, c_rms=2.0, a_ratio=1e-3, b_ratio=1e-2, c_ratio=1e-5)
    last = row(
        4,
        **{"a_rms": 3.0, "b_rms": 1.0, "c_rms": 4.0, "a_ratio": 1e-3, "b_ratio": 1e-1},
        **{"c_ratio": 1e-6, "a_dead": 0.0, "b_dead": 0.25, "b_nonfinite": 7.0, "c_nonfinite": 0.0},
    )
    losses = [MeasuredRow(n, n / 10, {LOSS: 2.0 / (n + 1)}) for n in range(5)]
    snapshot = make_snapshot(losses, [first, last])
    assert (snapshot.step, snapshot.loss, snapshot.steps_per_second) == (4, 0.4, 10.0)
    assert snapshot.recent_losses == tuple(2.0 / (n + 1) for n in range(5))
    found = [(layer.layer, layer.what, layer.value) for layer in snapshot.layers]
    assert found == [
        *(("b", "NaN or Inf", 7.0), ("a", "rms", 3.0), ("c", "rms", 4.0)),
        *(("b", "update ratio", 0.1), ("c", "update ratio", 1e-6), ("b", "dead", 0.25)),
    ]
    assert snapshot.layers[1].recent == (1.0, 3.0)


def test_values_that_are_not_finite_make_no_growth() -> None:
    rows = [row(0, a_rms=1.0, b_rms=0.0), row(1, a_rms=math.nan, b_rms=1.0, a_ratio=math.inf)]
    assert make_snapshot([], rows).layers == ()


def test_a_snapshot_of_nothing_is_empty() -> None:
    snapshot = make_snapshot([], [])
    assert (snapshot.step, snapshot.loss, snapshot.layers) == (-1, None, ())


def test_each_layer_has_one_row_for_a_measure_with_the_ratio_of_its_weight() -> None:
    values = {
        Series("Net", "fc/bias.update", "ratio"): 0.5,
        Series("Net", "fc/weight.update", "ratio"): 0.25,
        Series("Net", "norm/bias.update", "ratio"): 0.125,
        Series("Net", "lstm/output.0", "rms"): 2.0,
        Series("Net", "lstm/output.1.0", "rms"): 3.0,
    }
    [*rows] = make_snapshot([], [MeasuredRow(0, 0.0, values)]).layers
    assert [(row.layer, row.what, row.value) for row in rows] == [
        ("lstm", "rms", 2.0),
        ("fc", "update ratio", 0.25),
        ("norm", "update ratio", 0.125),
    ]


def test_layers_of_several_models_have_their_names() -> None:
    seconds = iter([0.0, 100.0])
    stream = io.StringIO()
    view = LiveView(stream, "train.py", clock=lambda: next(seconds))
    values = {Series(model, "main/output", "dead"): 0.5 for model in ("net_d", "net_g")}
    view.update(make_snapshot([], [MeasuredRow(0, 0.0, values)]))
    assert "net_d main: dead 50.0%; net_g main: dead 50.0%" in stream.getvalue()
