"""``hookscope diff`` of files of weights, and of a model's own values with a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

import hookscope
from hookscope.errors import RequestError
from hookscope.file_analysis.weight_diff import WeightDiff
from hookscope.stores.weights.open_weights import open_weights
from tests.model_analysis.diff import nets
from tests.zoo import Module

NETS = str(Path(nets.__file__))
SAMPLES = Path(__file__).resolve().parents[3] / "sample_models"
DIGITS = SAMPLES / "digits.safetensors"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Weights, and the same after some steps: a .safetensors file and a .pth of a wrapped model."""
    generator = np.random.default_rng(1)
    shapes = {"conv.weight": (8, 3, 3, 3), "body.0.fc.weight": (20, 30), "body.0.fc.bias": (20,)}
    old = {n: generator.standard_normal(s).astype("f4") for n, s in shapes.items()}
    new = {name: array.copy() for name, array in old.items()}
    new["conv.weight"][0] *= 2
    new["body.0.fc.bias"] += 1
    a, b = tmp_path / "old.safetensors", tmp_path / "new.pth"
    save_file(old, a)
    torch.save({f"module.{name}": torch.from_numpy(array) for name, array in new.items()}, b)
    return a, b


def test_the_document_has_every_tensor_and_the_totals(files) -> None:
    found = hookscope.diff(*files).to_json()
    assert (found["same"], found["counts"]) == (False, {"equal": 1, "close": 0, "differs": 2})
    first, second, third = found["rows"]
    assert (first["name"], first["other"]) == ("body.0.fc.bias", "module.body.0.fc.bias")
    assert (first["changed"], first["share"], third["verdict"]) == (20, 1.0, "equal")
    assert (second["name"], second["share"]) == ("conv.weight", 1 / 8)
    assert found["total"]["numel"] == 216 + 600 + 20
    assert hookscope.diff(files[0], files[0]).same
    assert hookscope.diff(*files, layers=["*.weight", "!conv"]).same
    assert hookscope.diff(*files, atol=100).same


# A model's own values


def test_a_model_is_compared_with_its_file_by_its_values(tmp_path) -> None:
    """The initial values are those of the seed, and an edited one is found."""
    spec, path = f"{NETS}:Net", tmp_path / "w.pth"
    model = hookscope.load_model(spec, seed=5).module
    torch.save(model.state_dict(), path)
    found = hookscope.diff(spec, path, seed=5)
    assert found.same and found.a.kind == "values as built, seed 5"
    assert not hookscope.diff(path, spec).same  # seed 0
    with torch.no_grad():
        name, parameter = next(iter(model.named_parameters()))
        parameter.view(-1)[0] += 1
    torch.save(model.state_dict(), path)
    found = hookscope.diff(spec, path, seed=5)
    assert isinstance(found, WeightDiff)
    assert found.rows[0].name == name and found.rows[0].measures.changed == 1
    assert found.counts["differs"] == 1


def test_pretrained_and_given_values_are_compared() -> None:
    spec = f"{SAMPLES}/digits.py:DigitsCNN"
    assert not hookscope.diff(spec, DIGITS).same
    assert hookscope.diff(spec, DIGITS, weights=DIGITS).same
    assert hookscope.diff(DIGITS, hookscope.load_model(spec, weights=DIGITS).module).same
    for model, kind in ((".py:trained", "built, seed 0"), ("_scripted.pt", "saved")):
        found = hookscope.diff(f"{SAMPLES}/digits{model}", DIGITS)
        assert found.same and found.a.kind == f"values as {kind}"


def test_names_in_the_file_are_renamed_on_whichever_side_it_is(tmp_path) -> None:
    spec = f"{SAMPLES}/digits.py:trained"
    weights = open_weights(DIGITS)
    path = tmp_path / "r.safetensors"
    save_file({f"net.{name}": weights.tensor(name) for name in weights}, path)
    # No name is in both as it is, so they are compared like that, and the names differ.
    for sides in ((spec, path), (path, spec), (path, DIGITS)):
        assert hookscope.diff(*sides, rename={"net": ""}).same
        found = hookscope.diff(*sides)
        assert (found.renamed, found.same) == ("--rename net=", False)
        assert found.counts["equal"] == len(weights) == len(found.rows)
    bare, inside = hookscope.diff(DIGITS, path), hookscope.diff(DIGITS, wrapped())
    assert (bare.renamed, inside.renamed) == ("--rename net=", "--rename =net")
    assert hookscope.diff(DIGITS, wrapped(), rename={"": "net"}).counts == inside.counts


def wrapped() -> nn.Module:
    """The weights in modules inside another one, so that their names have a prefix."""
    net = nn.Module()
    for name in open_weights(DIGITS):
        layer, _, last = name.partition(".")
        if not hasattr(net, layer):
            net.add_module(layer, nn.Module())
        own = torch.from_numpy(open_weights(DIGITS).tensor(name))
        setattr(net.get_submodule(layer), last, nn.Parameter(own))
    return Module(net=net)


class Odd(nn.Module):
    """Every kind of dtype, layout and sharing that a module in memory can have."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.randn(6, 4))
        self.head = self.embed
        self.turned = nn.Parameter(torch.randn(5, 3).t())
        self.brain = nn.Parameter(torch.randn(7).bfloat16())
        self.register_buffer("eighth", torch.randn(9).to(torch.float8_e5m2))
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("wave", torch.randn(4, dtype=torch.complex64).conj())
        self.register_buffer("none", torch.zeros(0))
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}


def test_a_module_in_memory_is_read_whatever_its_tensors_are(tmp_path) -> None:
    model = Odd()
    path = tmp_path / "odd.pth"
    state = {n: v.clone() for n, v in model.state_dict().items() if isinstance(v, torch.Tensor)}
    state["head"] = state["embed"]
    torch.save({n: v.resolve_conj() for n, v in state.items()}, path)
    found = hookscope.diff(model, path)
    assert found.same, [row for row in found.rows if row.verdict != "equal"]
    assert len(found.rows) == 8 and found.tied == ("head",)
    with torch.no_grad():
        model.brain[2] += 1
        model.wave[1] *= 2
    found = hookscope.diff(model, path)
    assert {row.name for row in found.rows if row.verdict == "differs"} == {"brain", "wave"}


def test_a_lazy_module_has_no_values_yet() -> None:
    with pytest.raises(RequestError, match="is lazy"):
        hookscope.diff(nn.Sequential(nn.LazyLinear(3)), DIGITS)


def test_opened_weights_can_be_compared(files) -> None:
    found = hookscope.diff(open_weights(files[0]), files[1])
    assert found.counts["differs"] == 2
    assert "3 tensors" in repr(found) and "2 differ" in repr(found)
    assert "<table" in found._repr_html_() and "body.0.fc.bias" in found._repr_html_()


def test_changed_dtypes_are_a_difference_with_strict(tmp_path) -> None:
    sides = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for path, dtype in zip(sides, ("f4", "f2"), strict=True):
        save_file({"a": np.ones(3, dtype)}, path)
    assert hookscope.diff(*sides).same
    assert not hookscope.diff(*sides, strict=True).same
