"""What is recorded is what passed at that moment, whatever the model does to it afterwards."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import hookscope
from hookscope.errors import CheckFailed
from hookscope.hooks import recorder as recorder_module
from hookscope.hooks.layers import select
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.tensor_sink import CaptureSink
from tests.hooks.recordings import BOTH, hooks_left, recorded
from tests.oracle.by_hand import same_bits
from tests.zoo import Answer, Fails, Module, Pair, shared


def test_the_idea_in_the_docstring_of_the_recorder_records_the_same() -> None:
    namespace: dict[str, Any] = {}
    exec("\n".join(re.findall(r"^    (.*)$", recorder_module.__doc__ or "", re.M)), namespace)
    net = nn.Sequential(nn.Linear(4, 4), relu := nn.ReLU(inplace=True), nn.Linear(4, 4), relu)
    x = torch.randn(2, 4)
    tensors = namespace["record"](net, ["0", "1", "2"], x)
    capture = recorded(net, x, layers=["0", "1", "2"])
    assert list(tensors) == list(capture) == ["0/output", "1/output", "2/output", "1:2/output"]
    assert all(same_bits(tensors[key], capture[key]) for key in capture)
    assert (tensors["0/output"] < 0).any()
    assert hooks_left(net) == 0
    with pytest.raises(RuntimeError, match="shapes"):
        namespace["record"](net, ["0", "1"], x[:, :3])
    assert hooks_left(net) == 0


def test_input_is_the_value_before_the_module_changes_it_in_place() -> None:
    net = nn.Sequential(nn.ReLU(inplace=True))
    x = torch.tensor([-1.0, 2.0])
    capture = recorded(net, x, what="input")
    assert capture["0/input.0"].tolist() == [-1.0, 2.0]
    assert x.tolist() == [0.0, 2.0]  # the model's own effect on its input is not lost


def test_a_module_that_calls_itself_keeps_inputs_and_outputs_of_one_call_together() -> None:
    def countdown(self: Module, x: Tensor) -> Tensor:
        return x if x.item() <= 0 else self(x - 1) + 10

    net = Module(lambda self, x: self.inner(x), inner=Module(countdown))
    capture = recorded(net, torch.tensor(2.0), layers=["inner"], what=BOTH)
    pairs = {
        label: (capture[f"{label}/input.0"].item(), capture[f"{label}/output"].item())
        for label in ("inner", "inner:2", "inner:3")
    }
    assert pairs == {"inner": (2, 20), "inner:2": (1, 10), "inner:3": (0, 0)}


def test_a_call_that_raised_and_was_caught_does_not_shift_later_ones() -> None:
    def fragile(self: Module, x: Tensor) -> Tensor:
        if x.item() < 0:
            raise ValueError("negative")
        return x

    def forgiving(self: Module, x: Tensor) -> Tensor:
        with contextlib.suppress(ValueError):
            self.part(-x)
        return self.part(x)

    net = Module(forgiving, part=Module(fragile))
    capture = recorded(net, torch.tensor(3.0), layers=["part"], what=BOTH)
    assert capture["part/input.0"].item() == -3
    assert "part/output" not in capture
    assert capture["part:2/output"].item() == capture["part:2/input.0"].item() == 3


def test_a_shared_module_stands_under_its_first_name_and_answers_to_both() -> None:
    for pattern in ("one", "two"):
        capture = recorded(shared(), torch.ones(1, 4), layers=[pattern])
        assert list(capture) == ["one/output", "one:2/output"]
        assert capture.records[0].aliases == ("two",)


def test_nested_outputs_and_keyword_inputs_are_named_by_their_path() -> None:
    def inner(self: Module, x: Tensor, *, mask: Tensor, scale: float) -> Any:
        answer = Answer(x, {"deep": [x + 1, None, "text"]})
        return Pair(x * scale, (mask, {"answer": answer, 3: x - 1}))

    net = Module(lambda self, x: self.inner(x, mask=x > 0, scale=2.0), inner=Module(inner))
    capture = recorded(net, torch.tensor([1.0, -1.0]), layers=["inner"], what=BOTH)
    assert {r.what: capture[r.key].tolist() for r in capture.records} == {
        "input.0": [1, -1],
        "input.mask": [True, False],
        "output.left": [2, -2],
        "output.right.0": [True, False],
        "output.right.1.answer.logits": [1, -1],
        "output.right.1.answer.extra.deep.0": [2, 0],
        "output.right.1.3": [0, -2],
    }


def test_library_containers_are_opened() -> None:
    lstm = nn.LSTM(3, 2, batch_first=True)
    packed = pack_padded_sequence(torch.randn(2, 4, 3), [4, 2], batch_first=True)
    with hookscope.record(lstm, what=["input", "output"]) as capture:
        lstm(packed)
        lstm(torch.randn(1, 4, 3))
    assert "./input.0.data" in capture
    assert "./output.0.batch_sizes" in capture
    assert "./output.1.1" in capture
    assert capture[".:2/output.0"].shape == (1, 4, 2)


def test_in_train_mode_the_output_is_bit_equal_and_modes_and_grads_stay() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    net[0].weight.requires_grad_(False)
    x = torch.randn(2, 3, 8, 8)
    expected = net(x)
    with hookscope.record(net, what=BOTH, grads=True) as capture:
        hooked = net(x)
        hooked.sum().backward()
    assert same_bits(expected, hooked)
    assert net.training and not net[0].weight.requires_grad
    assert not x.requires_grad and x.grad is None
    assert capture.absent[0].reason == "frozen"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_no_hook_is_left_however_the_block_ends(error: type[BaseException]) -> None:
    net = Fails(error("from the model"))
    with pytest.raises(error), hookscope.record(net, grads=True) as capture:
        assert hooks_left(net) > 0
        net(torch.ones(1, 4))
    assert hooks_left(net) == 0
    assert "first/output" in capture


def test_a_users_own_hooks_still_run_and_what_they_return_is_recorded() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].register_forward_hook(lambda module, args, output: output * 0)
    capture = recorded(net, torch.ones(1, 2))
    assert capture["0/output"].abs().sum() == 0
    assert len(net[0]._forward_hooks) == 1


def test_nothing_can_leave_vmap_and_it_is_said() -> None:
    net = nn.Linear(2, 2)
    with hookscope.record(net) as capture:
        torch.vmap(net)(torch.ones(3, 2))
    assert not capture
    assert "torch.func" in capture.absent[0].reason


def test_more_bytes_than_allowed_stop_the_run_at_the_layer() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    recorder = Recorder(net, select(net), ["output"], sink=CaptureSink(20))
    with pytest.raises(CheckFailed, match="Stopped at 1"), recorder:
        net(torch.ones(1, 4))
    assert hooks_left(net) == 0


def test_a_recording_around_compiled_code_says_why_it_is_empty(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net, x = nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2)
    compiled = torch.compile(net, backend="eager")
    step = torch.compile(lambda x: net(x) + 1, backend="eager")
    for call in (compiled, step):
        call(x)  # compiled before any hook is there
        caplog.clear()
        with hookscope.record(net) as capture:
            call(x)
        assert not capture
        assert "Sequential" in caplog.text and "compiled" in caplog.text
        caplog.clear()
        with hookscope.record(net) as capture, torch.compiler.set_stance("force_eager"):
            call(x)
        assert list(capture) == ["0/output", "./output"]
        assert not caplog.text
    capture = recorded(compiled, x)
    assert list(capture) == ["0/output", "./output"]


def test_compiled_modules_run_uncompiled_while_they_are_recorded() -> None:
    inner = nn.Linear(2, 2)
    net = nn.Sequential(torch.compile(inner, backend="eager"))
    in_place = nn.Linear(2, 2)
    in_place.compile(backend="eager")
    x = torch.ones(1, 2)
    net(x), in_place(x)  # compiled before any hook is there
    capture = recorded(net, x, grads=True)
    assert same_bits(capture["0/output"], inner(x))
    assert "0/weight.grad" in capture
    capture = recorded(in_place, x)
    assert list(capture) == ["./output"]
