"""``--hook`` and ``trace`` on the command line: what is written, said and returned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from hookscope.results.records import Coverage
from hookscope.results.trace import Trace
from hookscope.results.trace_events import TraceEvent
from hookscope.views.text.text_table import TextOptions
from hookscope.views.trace import trace_lines
from tests.conftest import REPO

SAMPLES = REPO / "sample_models"
DIGITS = f"{SAMPLES}/digits.py:trained"
HOOKS = f"{SAMPLES}/own_hook.py"


def keys(file: Path) -> set[str]:
    with safe_open(file, framework="pt") as opened:
        return set(opened.keys())


@pytest.mark.slow
def test_what_a_hook_emits_is_in_the_file_and_the_table(run, tmp_path: Path) -> None:
    done = run("capture", DIGITS, "--layer", "relu1", "--hook", f"{HOOKS}:sparsity", "-o", "x")
    assert done.rc == 0, done.stderr
    assert "(forward) ran 1 time at 1 of 1 layer\n" in done.stderr
    assert " zeros.by_channel " in done.stdout
    assert keys(tmp_path / "work" / "x") == {
        "relu1/zeros",
        "relu1/zeros.by_channel",
        "relu1/output",
    }


@pytest.mark.slow
@pytest.mark.parametrize("json_too", [False, True])
def test_a_hook_that_fails_keeps_what_was_recorded_and_exits_1(run, tmp_path, json_too) -> None:
    hook = f"fc={HOOKS}:nothing_below"
    flags = ["--json"] if json_too else []
    done = run("capture", DIGITS, "--layer", "conv*", "--hook", hook, "-o", "x", *flags)
    assert done.rc == 1
    assert "Warning: x " in done.stderr
    error = next(line for line in done.stderr.splitlines() if line.startswith("Error: "))
    assert "own_hook.py:nothing_below failed in line " in error
    assert "at layer fc (Linear): ValueError: -21.412 is negative." in error
    assert keys(tmp_path / "work" / "x") == {"conv1/output", "conv2/output"}
    assert "conv2" in done.stdout and "conv2/output" not in done.stderr
    if json_too:
        assert json.loads(done.stdout)["failed"] == error.removeprefix("Error: ")


@pytest.mark.slow
def test_trace_prints_indented_lines_and_writes_a_file_of_its_own(run, tmp_path: Path) -> None:
    word = f"{SAMPLES}/digits_scripted.pt"
    done = run("trace", word, "--chrome", "t.json")
    assert done.rc == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[2:9]] == [
        *("(model)", "conv1", "relu1", "conv2", "relu2", "pool", "fc"),
    ]
    assert [len(line) - len(line.lstrip()) for line in lines[2:9]] == [0, *[2] * 6]
    assert [line.split()[0] for line in lines[9:16]] == [
        *("(model)", "fc", "pool", "relu2", "conv2", "relu1", "conv1"),
    ]
    assert json.loads((tmp_path / "work" / "t.json").read_text())["traceEvents"]
    again = run("trace", word, "--chrome", "t.json", "--json")
    assert "replacing" in again.stderr
    document = json.loads(again.stdout)
    assert (document["schema"], document["command"]) == (1, "trace")
    assert [event["module"] for event in document["events"]][1] == "conv1"
    (tmp_path / "work" / "t.json").write_text('{"mine": 1}')
    refused = run("trace", word, "--chrome", "t.json")
    assert refused.rc == 2 and "--chrome" in refused.stderr


@pytest.mark.parametrize("width", [20, 40, 80, 200, None])
def test_a_trace_fits_every_terminal(width: int | None) -> None:
    shape = ((1, 16, 8, 8),)
    events = tuple(
        TraceEvent(
            way, "layer1.0.conv1"[: 6 + 4 * n], "Conv2d", 1, n, shape, shape, 4096, 1, 2, 0.5
        )
        for way in ("forward", "backward")
        for n in range(3)
    )
    lines = [line.plain for line in trace_lines(Trace(events, Coverage(), {}), TextOptions(width))]
    assert width is None or max(map(len, lines)) <= width
    assert sum("layer1" in line for line in lines) == 6
    if width is None:
        assert lines[1].startswith("layer1  ") and lines[2].startswith("  layer1.0.c")


@pytest.mark.slow
def test_a_hook_without_an_effect_is_said_to_have_changed_nothing(run) -> None:
    shared = ("capture", DIGITS, "--compare", "--no-output", "--hook")
    assert "The hooks changed nothing" in run(*shared, f"relu1={HOOKS}:sparsity").stdout
    assert "changed nothing" not in run(*shared, f"relu1={HOOKS}:mute").stdout
