"""What depends on the width, on the number of layers or on the values beside it."""

from __future__ import annotations

import re

import pytest
import torch

from hookscope.hooks.capture import Capture
from hookscope.results.health import gradient_marks
from hookscope.results.records import Coverage, ExecutedModule, UnexecutedModule
from hookscope.results.trace import Trace
from hookscope.results.trace_events import TraceEvent
from hookscope.views import display
from hookscope.views.capture import top_lines
from hookscope.views.grads import loss_lines
from hookscope.views.text.shared_parts import cosine_cell, coverage_lines
from hookscope.views.text.text_table import PIPE, TextOptions
from tests.views.text import samples

GRAD = {"what": "output.grad", "kind": "output.grad"}


def texts(result: object, width: int | None) -> list[str]:
    return [line.plain for line in display.text(result, TextOptions(width))]


def test_exact_zero_vanishes_and_nan_is_no_judgement() -> None:
    capture = Capture()
    samples.put(capture, "last", torch.full((3,), float("nan")), **GRAD)
    samples.put(capture, "empty", torch.zeros(0), **GRAD)
    samples.put(capture, "zero", torch.zeros(3), **GRAD)
    samples.put(capture, "half", torch.full((3,), 70_000.0), **GRAD)
    marks = {"zero/output.grad": "vanishing", "half/output.grad": "exploding"}
    assert gradient_marks(capture.records) == marks


def test_sound_gradients_bear_no_mark_and_no_legend() -> None:
    capture = Capture()
    capture.metadata["command"] = "grads"
    for i in range(6):
        samples.put(capture, f"l{i}", samples.ramp(4, 4) * 3.0**-i, **GRAD)
    assert not gradient_marks(capture.records)
    assert "vanishing" not in "".join(texts(capture, 80))


@pytest.mark.parametrize("width", [40, 80, None])
@pytest.mark.parametrize("command", ["capture", "grads"])
def test_two_calls_of_a_layer_can_be_told_apart(command: str, width: int | None) -> None:
    capture = samples.SAMPLES[command]()
    # A further kind of tensor, whose column competes for the room, and a second call of fc.
    samples.put(capture, "head", samples.ramp(1, 4), what="input.0", kind="input")
    samples.put(capture, "fc", samples.ramp(1, 8), call=2, **GRAD)
    lines = texts(capture, width)
    header = next(line.split() for line in lines if line.startswith("layer "))
    assert "call" in header
    name = "layer3.0.relu" if command == "capture" else "fc "
    rows = [line.split() for line in lines if line.startswith(name)]
    assert {row[header.index("call")] for row in rows} == {"1", "2"}


def test_coverage_of_hundreds_of_layers_fits_a_screen() -> None:
    executed = tuple(ExecutedModule(f"layer{i}", "ReLU", 3) for i in range(500))
    idle = tuple(UnexecutedModule(f"gone{i}", "Linear", f"cause {i % 4}") for i in range(500))
    assert len(coverage_lines(Coverage(executed, idle), TextOptions(80))) < 20


def test_what_is_not_known_has_no_lines() -> None:
    assert loss_lines({}, TextOptions(80)) == []
    assert top_lines({}, TextOptions(80)) == top_lines({"top": [[]]}, PIPE) == []
    entry = {"label": "tabby", "index": 281, "probability": 0.25}
    assert len(top_lines({"top": [[entry], [entry]], "inputs": []}, PIPE)) == 3
    assert [line.split()[0] for line in texts(Capture(), None)] == ["layer", "0"]


@pytest.mark.parametrize("width", [40, 50, 60, 80, None])
def test_times_of_a_trace_have_no_exponent(width: int | None) -> None:
    event = TraceEvent("forward", "a", "Linear", 1, 0, ((1, 2),), ((1, 2),), 8, 0.0, 290.4, 99.7)
    text = "\n".join(texts(Trace((event,), Coverage(), {}), width))
    assert "e+" not in text
    assert re.search(r"\b290(\.4(00)?)?\b", text)


def test_a_cosine_below_one_is_not_one() -> None:
    cell = cosine_cell(0.99989)
    assert (cell.text, cell.short, cell.value) == ("0.9999", "0.9999", 0.99989)
