"""What is recorded is what hooks by hand see, bit for bit, and what autograd computes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hookscope
from hookscope.specs.commands import COMMANDS
from hookscope.stores.fingerprint_file import open_fingerprint
from tests.oracle import by_hand
from tests.oracle.by_hand import same_bits
from tests.properties.conftest import Workplace
from tests.properties.minimal_requests import REQUESTS, SOURCES
from tests.properties.test_requests import name_of


def model_and_input(source: str) -> tuple[nn.Module, Tensor]:
    """The model of a source as the command loads it, and what its request calls it with."""
    torch.manual_seed(0)
    model = hookscope.load_model(SOURCES[source].spec).module
    return model, torch.from_numpy(np.load(SOURCES[source].input.split()[1]))


def summed(output: object) -> Tensor:
    """The loss ``sum``: of all outputs, the mean over the batch."""
    return sum(tensor.sum() for _, tensor in by_hand.flat(output))  # type: ignore[return-value]


def outputs_by_hand(source: str) -> dict[str, Tensor]:
    return by_hand.outputs(*model_and_input(source))


def gradients_by_hand(source: str) -> dict[str, Tensor]:
    """Gradients of the sum at every output, and of the parameters."""
    model, x = model_and_input(source)
    named = dict(model.named_parameters())
    grads = torch.autograd.grad(summed(model(x)), list(named.values()), allow_unused=True)
    found = {}
    for name, grad in zip(named, grads, strict=True):
        module, _, parameter = name.rpartition(".")
        if grad is not None:
            found[f"{module or '.'}/{parameter}.grad"] = grad
    with by_hand.slipped_in(model, inputs=False) as kept:
        loss = summed(model(x))
        slipped = torch.autograd.grad(loss, list(kept.values()), allow_unused=True)
    return found | {f"{key}.grad": g for key, g in zip(kept, slipped, strict=True) if g is not None}


def updates_by_hand(source: str) -> dict[str, Tensor]:
    """Gradients and updates of parameters by one step of a new optimizer."""
    model, x = model_and_input(source)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    summed(model(x)).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    found = {}
    for name, value in model.named_parameters():
        module, _, parameter = name.rpartition(".")
        if value.grad is not None:
            found[f"{module or '.'}/{parameter}.grad"] = value.grad
            found[f"{module or '.'}/{parameter}.update"] = value.detach() - before[name]
    return found


BY_HAND = {"capture": outputs_by_hand, "grads": gradients_by_hand, "step": updates_by_hand}
RECORDED = {pair: words for pair, words in REQUESTS.items() if pair[0] in BY_HAND}


@pytest.mark.parametrize("pair", RECORDED, ids=name_of)
def test_the_file_has_what_hooks_by_hand_see(workplace: Workplace, pair: tuple[str, str]) -> None:
    answer = workplace.shell(pair[0], RECORDED[pair])
    assert answer.status == 0, answer.err
    file = Path("out.safetensors")
    file.write_bytes(answer.files[file.name])
    recorded = dict(hookscope.load(file))
    expected = BY_HAND[pair[0]](pair[1])
    recorded = {key: value for key, value in recorded.items() if "/input" not in key}
    fields = {key for key in recorded if re.search(r"/output\.[a-z_]+\.grad$", key)}
    assert recorded.keys() - fields == expected.keys()  # nothing is slipped into a dataclass
    assert not [key for key in expected if not same_bits(recorded[key], expected[key])]


@pytest.mark.parametrize("source", ["python", "scripted", "exported", "onnx"])
def test_a_fingerprint_describes_what_hooks_by_hand_see(workplace: Workplace, source: str) -> None:
    answer = workplace.shell("fingerprint", REQUESTS["fingerprint", source])
    file = Path("out.fp")
    file.write_bytes(answer.files[file.name])
    expected = outputs_by_hand(source)
    entries = {entry.key: entry for entry in open_fingerprint(file).entries}
    assert set(expected) <= set(entries)
    for key, tensor in expected.items():
        entry, values = entries[key], tensor.double()
        for name in ("min", "max", "mean", "norm"):  # written with six digits
            expected_value = getattr(values, name)().item()
            assert getattr(entry, name) == pytest.approx(expected_value, rel=1e-5, abs=1e-9), key


@pytest.mark.parametrize("source", ["python", "scripted", "onnx"])
def test_rows_of_features_are_what_hooks_by_hand_see(workplace: Workplace, source: str) -> None:
    model, _ = model_and_input(source)
    x = torch.rand(4, 1, 8, 8)
    data = TensorDataset(x)
    hookscope.extract(model, "out", input=data, batch=4, workers=0, every=1, what="output")
    rows = hookscope.load("out")
    expected = {k: v for k, v in by_hand.outputs(model, x).items() if k.split("/")[0] != "."}
    assert set(rows.keys) >= set(expected)
    for key, tensor in expected.items():
        assert np.array_equal(np.asarray(rows[key][:]), tensor.numpy()), key
    shutil.rmtree("out")


def test_a_live_recording_is_what_hooks_by_hand_see(workplace: Workplace) -> None:
    model, x = model_and_input("python")
    with hookscope.record(model) as recorded, torch.no_grad():
        model(x)
    expected = by_hand.outputs(model, x)
    assert list(recorded) == list(expected)
    assert not [key for key in expected if not same_bits(recorded[key], expected[key])]


def test_every_command_that_records_is_compared() -> None:
    assert {*BY_HAND, "fingerprint", "extract"} == set(COMMANDS["Record"])
