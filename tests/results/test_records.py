"""The description of a recording: keys, records, coverage, and the round trip through JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import ResultsFileError
from hookscope.files import strict_json
from hookscope.hooks.capture import Capture
from hookscope.results.records import (
    Absent,
    Coverage,
    ExecutedModule,
    Record,
    Recording,
    UnexecutedModule,
    key_of,
)
from hookscope.results.stats import Stats


def put(capture: Capture, tensor: torch.Tensor, **more: Any) -> Record:
    place: dict[str, Any] = {"module": "a.b", "type": "Linear", "call": 1, "what": "output"}
    return capture.put(tensor, **place | {"kind": "output"} | more)


@pytest.mark.parametrize(
    ("module", "call", "what", "key"),
    [
        ("fc", 1, "output", "fc/output"),
        ("fc", 2, "output.1", "fc:2/output.1"),
        ("fc", 0, "output", "fc:0/output"),
        (".", 3, "input.mask", ".:3/input.mask"),
        ("fc", 1, "output.\ud800", "fc/output.\\ud800"),
        ("fc", 1, "output.é", "fc/output.é"),
    ],
)
def test_a_key_is_the_module_the_call_and_the_place(module, call, what, key) -> None:
    assert key_of(module, call, what) == key
    key.encode()


def test_a_key_that_is_taken_gets_a_number_behind_it() -> None:
    capture = Capture()
    keys = [put(capture, torch.tensor(float(i)), what="output.1").key for i in range(3)]
    assert keys == ["a.b/output.1", "a.b/output.1~2", "a.b/output.1~3"]
    assert [capture[key].item() for key in keys] == [0, 1, 2]
    assert [record.what for record in capture.records] == ["output.1", "output.1~2", "output.1~3"]


def test_a_record_describes_its_tensor() -> None:
    capture = Capture()
    x = torch.tensor([[3.0, -4.0, 0.0]], dtype=torch.float64)
    record = put(capture, x, call=2, aliases=("c",), weight_norm=2.5)
    assert (record.module, record.type, record.call, record.what, record.kind) == (
        "a.b", "Linear", 2, "output", "output",
    )  # fmt: skip
    assert (record.key, record.shape, record.dtype) == ("a.b:2/output", (1, 3), "float64")
    assert (record.device, record.aliases, record.weight_norm) == ("cpu", ("c",), 2.5)
    assert record.stats == Stats(3, -1 / 3, record.stats.std, -4.0, 3.0, 5.0, 1, 0, 0)
    assert record.ratio == 2.0
    assert capture["a.b:2/output"] is x and capture.records == (record,)
    assert capture.nbytes == 24 and len(capture) == 1
    assert repr(capture) == "<Capture of 1 tensor, 24 bytes>"
    capture.metadata = {"model": {"spec": "resnet18"}}
    assert repr(capture) == "<Capture of 1 tensor of resnet18, 24 bytes>"


def test_what_is_not_held_keeps_the_statistics_of_that_moment() -> None:
    capture = Capture()
    x = torch.tensor([1.0, 2.0])
    held, counted = put(capture, x), put(capture, x, held=False)
    x.zero_()
    assert counted.stats.max == 2.0 and held.stats.max == 0.0
    assert capture.nbytes == 8 and "a.b/output~2" not in capture._tensors
    assert [record.key for record in capture.records] == ["a.b/output", "a.b/output~2"]


@pytest.mark.parametrize(("weight_norm", "ratio"), [(None, None), (0.0, None), (2.0, 2.5)])
def test_a_ratio_needs_a_norm_that_is_not_zero(weight_norm: Any, ratio: Any) -> None:
    record = put(Capture(), torch.tensor([3.0, 4.0]), weight_norm=weight_norm)
    assert record.ratio == ratio
    empty = put(Capture(), torch.tensor([math.nan]), weight_norm=2.0)
    assert empty.ratio is None


def test_captures_are_not_compared_by_their_tensors() -> None:
    a, b = Capture(), Capture()
    put(a, torch.ones(2)), put(b, torch.ones(2))
    assert a == a and a != b and len({a, b}) == 2


def whole() -> Capture:
    capture = Capture()
    put(capture, torch.tensor([1.0, math.inf]), aliases=("z",), weight_norm=0.5)
    put(capture, torch.tensor([1, 2]), what="input.0", kind="input")
    capture.absent = (Absent("c", "ReLU", 1, "output.grad", "output.grad", "integer"),)
    capture.coverage = Coverage(
        (ExecutedModule("a.b", "Linear", 2),), (UnexecutedModule("c", "ReLU", "a branch"),)
    )
    capture.metadata = {"command": "capture", "seed": 3}
    return capture


def dumped(capture: Capture) -> str:
    return strict_json.dumps(capture.to_info())


def read(info: dict[str, Any]) -> Recording:
    again = Recording()
    again.load_info(info, {"a.b/output": [2], "a.b/input.0": (2,)}, "file")
    return again


def test_what_is_told_goes_to_text_and_back() -> None:
    capture = whole()
    info = json.loads(dumped(capture))
    again = read(info)
    assert again.records == capture.records
    assert [r.stats for r in again.records] == [r.stats for r in capture.records]
    assert (again.absent, again.coverage) == (capture.absent, capture.coverage)
    assert again.metadata == capture.metadata
    assert isinstance(again.records[0].shape, tuple) and again.records[0].aliases == ("z",)
    assert list(info) == ["command", "seed", "records", "absent", "executed", "not_executed"]


@pytest.mark.parametrize("known", [True, False])
def test_where_a_run_ended_goes_to_text_and_back(known: bool) -> None:
    capture = whole()
    later = ("d", "e") if known else ()
    capture.coverage = replace(
        capture.coverage, stopped_after="a.b", not_run=later, calls_complete=known
    )
    again = read(json.loads(dumped(capture)))
    assert (again.coverage, again.metadata) == (capture.coverage, capture.metadata)


@pytest.mark.parametrize(
    ("command", "stopped", "complete"),
    [("capture", "a.b", False), ("extract", "a.b", True), ("extract", None, True)],
)
def test_a_file_that_does_not_say_whether_calls_are_missing(
    command: str, stopped: str | None, complete: bool
) -> None:
    """Earlier captures ended after the first calls; features end after the last one."""
    info = json.loads(dumped(whole())) | {"stopped_after": stopped, "command": command}
    coverage = read(info).coverage
    assert (coverage.stopped_after, coverage.calls_complete) == (stopped or "", complete)


SHAPES = {"a.b/output": (2,), "a.b/input.0": (2,)}


GONE = object()
DAMAGES: list[tuple[str, Any, str]] = [
    *((name, GONE, name) for name in ("records", "absent", "executed", "not_executed")),
    *((f"records.0.{name}", GONE, name) for name in ("shape", "stats", "key")),
    ("records.0.module", 3, "a.b/output.module is 3"),
    ("records.1.call", "x", "a.b/input.0.call is 'x'"),
    ("records.0.shape", ["2"], "a.b/output.shape.0 is '2'"),
    ("records.0.shape", [3], "a.b/output"),
    ("records.1.key", "gone/output", "gone/output"),
    ("records.0.stats.more", 1, "more"),
    ("records.0.stats.mean", "m", "'m'"),
    ("records.0.stats.zeros", 1.5, "a.b/output.zeros is 1.5"),
    ("records.0.stats.zeros", -1, "a.b/output"),
    ("absent.0.reason", 4, "c.reason is 4"),
    ("executed.0.calls", "x", "a.b.calls is 'x'"),
    ("not_executed.0.reason", [], "c.reason is []"),
    ("stopped_after", 3, "coverage.stopped_after is 3"),
    ("not_run", ["a", 3], "coverage.not_run.1 is 3"),
    ("calls_complete", "x", "coverage.calls_complete is 'x'"),
    ("records", [3], "damaged"),
    ("executed", 3, "damaged"),
    ("seed", "x", "metadata.seed is 'x'"),
    ("effect", {"drift": [{"key": "gone", "largest": 1.0, "relative": 0.5}]}, "'gone'"),
]


@pytest.mark.parametrize(("place", "value", "named"), DAMAGES)
def test_a_damaged_description_is_refused_and_says_where(place: str, value, named: str) -> None:
    info: Any = json.loads(dumped(whole()))
    *path, last = (int(step) if step.isdigit() else step for step in place.split("."))
    inner = info
    for step in path:
        inner = inner[step]
    inner[last] = value
    if value is GONE:
        del inner[last]
    with pytest.raises(ResultsFileError) as caught:
        Recording().load_info(info, SHAPES, "the/file")
    assert named in str(caught.value) and "the/file" in str(caught.value)


def test_the_file_that_is_damaged_is_named(tmp_path) -> None:
    capture = whole()
    capture.absent = (Absent("c", "ReLU", 1, "output.grad", "output.grad", 3),)
    capture.save(tmp_path / "a")
    with pytest.raises(ResultsFileError, match=f"{tmp_path / 'a'}.*c.reason is 3"):
        hookscope.load(tmp_path / "a")


def test_a_later_field_of_a_record_and_what_an_edit_moved_are_let_be() -> None:
    info = json.loads(dumped(whole()))
    info["records"][0]["later"] = 1
    info["effect"] = {"drift": [{"key": "a.b/output", "largest": 1.0, "relative": 0.5}]}
    again = read(info)
    assert again.records == whole().records
    assert again.metadata["effect"] == info["effect"]


@pytest.mark.parametrize(
    ("shapes", "image"),
    [
        ([[1, 3, 20, 30]], (20, 30)),
        ([[2, 1, 7, 9]], (7, 9)),
        ([[2, 4, 7, 9]], (7, 9)),
        ([[2, 3, 5, 7, 9]], (7, 9)),
        ([[1, 5, 20, 30]], None),
        ([[1, 0, 20, 30]], None),
        ([[3, 20, 30]], None),
        ([[1, 3, 2, 2, 20, 30]], None),
        ([[4], [1, 3, 8, 6], [1, 3, 5, 5]], (8, 6)),
        ([None, [1, 3, 8, 6]], (8, 6)),
        ([], None),
    ],
)
def test_the_image_is_the_first_argument_of_the_shape_of_one(shapes: Any, image: Any) -> None:
    recording = Recording()
    assert recording.image is None and recording.coverage.matched == 0
    recording.metadata = {"arguments": [{"shape": shape} for shape in shapes]}
    assert recording.image == image


def test_a_file_tells_what_the_recording_told(tmp_path) -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    with hookscope.record(net, what="input,output", grads=True) as capture:
        net(torch.ones(1, 3)).sum().backward()
    capture.save(tmp_path / "a")
    again = hookscope.load(tmp_path / "a")
    assert again.to_info() == capture.to_info()
    assert again.output is None and again.nbytes == capture.nbytes
    assert [r.weight_norm for r in again.records] == [r.weight_norm for r in capture.records]
