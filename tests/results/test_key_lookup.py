"""The name of a layer stands for its one tensor, and an error lists the keys."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import MissingKeyError
from tests.zoo import Module


def net() -> nn.Module:
    return Module(
        lambda self, x: self.lstm(self.relu(self.relu(self.conv(x))).flatten(0, 1))[0],
        conv=nn.Conv2d(1, 2, 3),
        relu=nn.ReLU(),
        lstm=nn.LSTM(4, 4),
    )


@pytest.fixture(scope="module")
def shot() -> hookscope.Capture:
    return hookscope.capture(net(), input=torch.ones(1, 1, 6, 6), what=["input", "output"])


def test_a_layer_stands_for_its_output(shot: hookscope.Capture) -> None:
    assert shot["conv"] is shot["conv/output"]
    assert shot["relu:2"] is shot["relu:2/output"]
    assert shot["."] is shot["(model)"] is shot["(model)/output"] is shot["./output"]
    assert shot.get("conv") is shot["conv/output"] and shot.get("nothing") is None


def test_a_layer_without_an_output_stands_for_its_only_tensor() -> None:
    grads = hookscope.grads(net(), input=torch.ones(1, 1, 6, 6), loss="sum", what=["param"])
    assert "conv/weight.grad" in grads and "conv/bias.grad" in grads
    with pytest.raises(MissingKeyError, match="2 tensors"):
        grads["conv"]
    only = hookscope.grads(net(), input=torch.ones(1, 1, 6, 6), loss="sum", what=["output"])
    assert only["conv"] is only["conv/output.grad"]


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("relu", ["'relu'", "'relu/output', 'relu:2/output'"]),
        ("lstm", ["'lstm'", "'lstm/output.0', 'lstm/output.1.0'"]),
        ("covn", ["'covn'", "Did you mean conv", "'conv/input.0'"]),
        ("conv/out", ["'conv/out'", "conv/output"]),
        ("relu:3", ["'relu:3'", "relu:2"]),
        (3, [" 3.", "'conv/input.0'"]),
    ],
)
def test_any_other_name_is_a_key_error_that_lists_keys(shot, name, named) -> None:
    with pytest.raises(KeyError) as caught:
        shot[name]
    assert [part for part in named if part not in str(caught.value)] == []


def test_membership_and_iteration_know_keys_alone(shot: hookscope.Capture) -> None:
    assert "conv/output" in shot and "conv" not in shot and 3 not in shot
    assert "conv" not in list(shot)


def test_many_keys_are_counted_and_an_empty_capture_says_so() -> None:
    many = hookscope.Capture()
    for i in range(23):
        many.put(torch.ones(1), module=f"m{i}", type="X", call=1, what="output", kind="output")
    with pytest.raises(KeyError, match=r"'m19/output' and 3 more\."):
        many["zzz"]
    with pytest.raises(KeyError, match="Nothing"):
        hookscope.Capture()["a"]


def test_arrays_have_the_values_of_the_tensors(shot: hookscope.Capture) -> None:
    array = shot.numpy("conv")
    assert array.dtype == "float32" and torch.equal(torch.from_numpy(array), shot["conv"])
    arrays = shot.to_dict()
    assert list(arrays) == list(shot)
    assert all((arrays[key] == shot[key].detach().numpy()).all() for key in shot)
