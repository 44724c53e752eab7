"""Captures, gradients, coverage and top classes in words."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from hookscope.hooks.capture import Capture
from hookscope.results.health import gradient_marks
from hookscope.results.records import Absent, Coverage, ExecutedModule, UnexecutedModule
from hookscope.results.trace import Trace
from hookscope.results.trace_events import TraceEvent
from hookscope.views.capture import capture_lines, capture_table, effect_lines, top_lines
from hookscope.views.grads import grads_lines, loss_lines
from hookscope.views.text.shared_parts import cosine_cell, coverage_lines
from hookscope.views.text.text_table import PIPE, TextOptions
from hookscope.views.trace import trace_lines
from tests.views.text import samples

NAN = float("nan")


def joined(lines: list[object]) -> str:
    return "\n".join(line.plain for line in lines)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"edits": [{"edit": "fc=zero", "changed": []}]}, "run without edits."),
        ({"hooks": [{}]}, "run without hooks."),
        ({"grad_edits": [{}], "hooks": [{}]}, "run without edits and hooks."),
    ],
)
def test_the_effect_names_what_changed_the_run(changes: dict[str, object], text: str) -> None:
    capture = samples.outputs()
    capture.metadata |= changes
    capture.metadata["effect"] = {"output": [{"name": "output", "largest": 1, "relative": 0.5}]}
    assert joined(effect_lines(capture, PIPE)).endswith(text)


def test_every_kind_of_tensor_has_a_row() -> None:
    capture = Capture()
    samples.put(capture, "ints", torch.arange(5))
    samples.put(capture, "bools", torch.tensor([True, False]))
    samples.put(capture, "scalar", torch.tensor(1.5, dtype=torch.bfloat16))
    samples.put(capture, "empty", torch.zeros(0, 3))
    samples.put(capture, "lost", torch.full((4,), NAN, dtype=torch.float16))
    samples.put(capture, "big", torch.tensor([2**62, 1]))
    rows = [line.plain.split() for line in capture_table(capture, PIPE)[1:]]
    assert rows[0][5:10] == ["int64", "2", "1.41421", "0", "4"]
    assert rows[1][4:] == ["2", "bool", "0.5", "0.5", "0", "1", "0.5", "-"]
    assert rows[2][4:7] == ["scalar", "bfloat16", "1.5"]
    assert rows[3][4:] == ["0x3", "float32", "-", "-", "-", "-", "-", "empty"]
    assert rows[4][6:] == ["-", "-", "-", "-", "0", "NaN!", "4", "of", "4"]
    assert rows[5][9] == str(2**62)
    assert "4.612e+18" in joined(capture_table(capture, TextOptions(200)))


def test_capture_of_nothing_says_what_it_has() -> None:
    assert joined(capture_lines(Capture(), TextOptions(80))).startswith("layer")
    assert joined(capture_lines(Capture(), PIPE)).endswith("0 layers matched, 0 ran.")
    assert joined(grads_lines(Capture(), PIPE)).endswith("0 layers matched, 0 ran.")


def test_attention_tells_how_its_weights_were_come_by() -> None:
    capture = Capture()
    assert "Attention" not in joined(capture_lines(capture, PIPE))
    capture.metadata["attention"] = []
    assert "Attention: none found in these layers (docs/ops.md " in joined(
        capture_lines(capture, PIPE)
    )
    capture.absent = (Absent("a", "Module", 1, "attention", "attention", "hidden"),)
    capture.metadata["attention"] = [
        {"key": "b/attention", "from": "a softmax in the model"},
        {"key": "c/attention", "from": "kernel", "difference": 2e-6, "tolerance": 1e-4},
        {"key": "d/attention", "from": "kernel", "difference": 1e-3, "tolerance": 5e-3},
    ]
    assert (
        "Attention: 1 read from the model; 2 recomputed; their outputs differ from the model's by"
        " at most 1.0e-03 of the largest entry (limit 5e-03); 1 not available (the table gives the"
        " reasons)." in joined(capture_lines(capture, PIPE))
    )


def test_exact_zero_vanishes_and_nan_is_no_judgement() -> None:
    capture = Capture()
    grad = {"what": "output.grad", "kind": "output.grad"}
    samples.put(capture, "last", torch.full((3,), NAN), **grad)
    samples.put(capture, "empty", torch.zeros(0), **grad)
    samples.put(capture, "zero", torch.zeros(3), **grad)
    samples.put(capture, "half", torch.full((3,), 70_000.0), **grad)
    assert gradient_marks(capture.records) == {
        "zero/output.grad": "vanishing",
        "half/output.grad": "exploding",
    }
    text = joined(grads_lines(capture, PIPE))
    assert "NaN! 3 of 3" in text


def test_sound_gradients_bear_no_mark_and_no_legend() -> None:
    capture = Capture()
    for i in range(6):
        scale = samples.ramp(4, 4) * 3.0**-i
        samples.put(capture, f"l{i}", scale, what="output.grad", kind="output.grad")
    assert not gradient_marks(capture.records)
    assert "vanishing" not in joined(grads_lines(capture, TextOptions(80)))


def test_coverage_tells_how_often_and_why_not() -> None:
    coverage = Coverage(
        (ExecutedModule("a", "ReLU", 2), ExecutedModule("b", "ReLU", 1)),
        (
            *(UnexecutedModule(f"s{i}", "Linear", "a fused kernel") for i in range(5)),
            UnexecutedModule("list", "ModuleList", "a container"),
        ),
    )
    assert [line.plain for line in coverage_lines(coverage, TextOptions(120))] == [
        "8 layers matched, 2 ran (1 ran more than once: a x2).",
        "Never ran: s0, s1, s2 and 2 more (a fused kernel).",
        "Never ran: list (a container).",
        "--json lists all names.",
    ]
    assert [line.plain for line in coverage_lines(coverage, PIPE)][1:] == [
        "Never ran: s0, s1, s2, s3, s4 (a fused kernel).",
        "Never ran: list (a container).",
    ]


def test_coverage_tells_what_was_not_run_after_the_last_layer() -> None:
    coverage = Coverage((ExecutedModule("a", "ReLU", 1),), (), "a", ("b", "c", "d", "e", "f"))
    assert [line.plain for line in coverage_lines(coverage, TextOptions(120))][1:] == [
        "Not run, because the run ended after a: b, c, d and 2 more.",
        "--json lists all names.",
    ]
    assert [line.plain for line in coverage_lines(replace(coverage, not_run=()), PIPE)][1:] == [
        "Not run, because the run ended after a: what follows."
    ]
    first = replace(coverage, not_run=(), calls_complete=False)
    assert [line.plain for line in coverage_lines(first, PIPE)][1:] == [
        "The run ended after a call of a. Later modules were not run, and later calls of the"
        " selected layers are not recorded."
    ]


@pytest.mark.parametrize("width", [40, 80, None])
def test_two_calls_of_a_layer_can_be_told_apart(width: int | None) -> None:
    capture = samples.outputs()
    # A further kind of tensor, whose column competes for the room.
    samples.put(capture, "head", samples.ramp(1, 4), what="input.0", kind="input")
    lines = [line.plain for line in capture_table(capture, TextOptions(width))]
    assert "call" in lines[0].split()
    rows = [line.split() for line in lines if line.startswith("layer3.0.relu")]
    place = lines[0].split().index("call")
    assert [row[place] for row in rows] == ["1", "2"]


def test_two_calls_can_be_told_apart_among_gradients_too() -> None:
    capture = samples.gradients()
    samples.put(capture, "fc", samples.ramp(1, 8), call=2, what="output.grad", kind="output.grad")
    lines = [line.plain for line in grads_lines(capture, TextOptions(40))]
    assert any({"layer", "call"} <= set(line.split()) for line in lines)


def test_coverage_of_hundreds_of_layers_fits_a_screen() -> None:
    executed = tuple(ExecutedModule(f"layer{i}", "ReLU", 3) for i in range(500))
    not_executed = tuple(
        UnexecutedModule(f"gone{i}", "Linear", f"cause {i % 4}") for i in range(500)
    )
    assert len(coverage_lines(Coverage(executed, not_executed), TextOptions(80))) < 20


def test_loss_line_says_what_was_computed() -> None:
    assert joined(loss_lines(samples.gradients().metadata, PIPE)) == (
        "Loss kl = 6.90775; formula KL(t || softmax(x)); reduction batchmean; "
        "target 3 (tiger shark)"
    )
    bare = {"loss": {"name": "sum", "formula": "sum", "value": "NaN", "target": ""}}
    assert joined(loss_lines(bare, PIPE)) == "Loss sum = NaN; formula sum"
    assert loss_lines({}, TextOptions(80)) == []


def test_top_classes_of_a_batch_name_their_image() -> None:
    entry = {"label": "tabby", "index": 281, "probability": 0.25}
    broken = {"label": "", "index": 7, "probability": "NaN"}
    metadata = {"top": [[entry], [broken]], "inputs": [{"spec": "a.png"}, {"spec": "b.png"}]}
    assert [line.plain.split() for line in top_lines(metadata, PIPE)] == [
        ["top", "1", "class", "probability", "input"],
        ["tabby", "281", "0.25", "a.png"],
        ["class", "7", "7", "NaN!", "b.png"],
    ]
    assert "25.0%" in joined(top_lines(metadata, TextOptions(80)))
    assert joined(top_lines({"top": [[entry], [entry]], "inputs": []}, PIPE)).count("tabby") == 2
    assert top_lines({}, TextOptions(80)) == []
    assert top_lines({"top": [[]]}, TextOptions(80)) == []


def test_verified_is_said_when_it_was() -> None:
    capture = samples.outputs()
    assert "bit-identical" in joined(capture_lines(capture, TextOptions(80)))
    del capture.metadata["verified"]
    assert "bit-identical" not in joined(capture_lines(capture, TextOptions(80)))


@pytest.mark.parametrize("width", [None, 80, 200])
def test_records_of_several_devices_say_where_they_were_computed(width: int | None) -> None:
    capture = Capture()
    for name, device in (("a", "cpu"), ("b", "meta")):
        origin = {"module": name, "type": "Linear", "call": 1, "what": "output", "kind": "output"}
        capture.put(torch.ones(2), **origin)
        capture._records[f"{name}/output"] = replace(
            capture._records[f"{name}/output"], device=device
        )
    for lines in (
        capture_lines(capture, TextOptions(width)),
        grads_lines(capture, TextOptions(width)),
    ):
        assert "on cpu" in joined(lines)
        assert "on meta" in joined(lines)
    assert "on cpu" not in joined(capture_lines(samples.outputs(), TextOptions(width)))


@pytest.mark.parametrize("width", [40, 50, 60, 80, None])
def test_times_of_a_trace_have_no_exponent_and_cosines_below_one_are_not_one(
    width: int | None,
) -> None:
    event = TraceEvent("forward", "a", "Linear", 1, 0, ((1, 2),), ((1, 2),), 8, 0.0, 290.4, 99.7)
    text = joined(trace_lines(Trace((event,), Coverage(), {}), TextOptions(width)))
    assert "e+" not in text
    assert re.search(r"\b290(\.4(00)?)?\b", text)
    cell = cosine_cell(0.99989)
    assert (cell.text, cell.short, cell.value) == ("0.9999", "0.9999", 0.99989)
