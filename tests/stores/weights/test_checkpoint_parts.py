"""Parts of checkpoints: which is meant, how they are named; pickled models without their code."""

from __future__ import annotations

import argparse
import collections
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import LayerError, RequestError, WeightsFileError
from hookscope.stores.weights.open_weights import open_weights
from hookscope.stores.weights.weight_tree import WeightTree
from tests.refusals import refused
from tests.stores.weights.saved_weights import assert_same


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 3, 5, 5)).sum().backward()
    optimizer.step()
    return model, optimizer


def save(value: object, path: Path, old: bool = False) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=not old)
    return path


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "module", "net"])
@pytest.mark.parametrize("old", [False, True])
def test_the_weights_beside_a_training_state_are_taken_with_a_note(tmp_path, key, old) -> None:
    model, optimizer = trained()
    checkpoint = {
        **{"epoch": 3, key: model.state_dict(), "optimizer": optimizer.state_dict()},
        **{"lr_scheduler": {"base": torch.tensor(1.0)}, "best_acc1": torch.tensor(71.5)},
        "args": argparse.Namespace(lr=0.1, name="run"),
    }
    path = save(checkpoint, tmp_path / "a.pth", old)
    weights = open_weights(path)
    assert weights.part == key
    assert_same(weights, model.state_dict())
    assert f"{path}#optimizer (12 tensors)" in weights.notes[0]
    assert weights.metadata == {"epoch": "3", "args.lr": "0.1", "args.name": "run"}


def test_the_state_of_an_optimizer_is_a_part(tmp_path: Path) -> None:
    model, optimizer = trained()
    state = optimizer.state_dict()["state"]
    named = {f"state.{n}.{key}": state[n][key] for n in state for key in state[n]}
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    path = save(checkpoint, tmp_path / "a.pth")
    assert_same(open_weights(f"{path}#optimizer"), named)
    alone = save(optimizer.state_dict(), tmp_path / "optimizer.pth")
    assert_same(open_weights(alone), named)


def test_several_parts_with_weights_are_listed_and_named(tmp_path: Path) -> None:
    model, other = net().state_dict(), net().state_dict()
    path = save({"model": model, "ema": {"state_dict": other, "decay": 0.9}}, tmp_path / "a.pth")
    with refused(RequestError, r"2 parts .*model \(7 tensors\), ema \(7", hint=f"{path}#model"):
        open_weights(path)
    assert_same(open_weights(f"{path}#ema"), other)
    assert_same(open_weights(f"{path}#ema.state_dict"), other)
    everything = {f"model.{k}": v for k, v in model.items()}
    everything |= {f"ema.state_dict.{k}": v for k, v in other.items()}
    assert_same(open_weights(f"{path}#all"), everything)


def test_a_part_that_is_not_there_gets_a_near_name(tmp_path: Path) -> None:
    path = save({"model": net().state_dict(), "ema": net().state_dict()}, tmp_path / "a.pth")
    with pytest.raises(RequestError, match="no part 'modle'") as caught:
        open_weights(f"{path}#modle")
    assert caught.value.hint == f"Did you mean {path}#model?"
    with refused(RequestError, hint="model (7 tensors), ema (7 tensors)"):
        open_weights(f"{path}#xyzzy")
    single = save(net().state_dict(), tmp_path / "b.pth")
    with pytest.raises(RequestError, match="no part 'ema'"):
        open_weights(f"{single}#ema")


def test_a_path_may_have_the_sign_of_a_part(tmp_path: Path) -> None:
    path = save({"model": net().state_dict()}, tmp_path / "run#3.pth")
    assert len(open_weights(path)) == 7
    assert open_weights(f"{path}#model").part == "model"


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (torch.ones(3), ["tensor"]),
        ([torch.ones(1), torch.ones(2)], ["0", "1"]),
        ({"a": {"b": {"c": torch.ones(1)}}}, ["c"]),
        ({"w": torch.ones(1), "more": {"v": torch.ones(2)}}, ["w", "more.v"]),
        (collections.defaultdict(dict, x=torch.ones(1)), ["x"]),
        (nn.ParameterDict({"p": torch.ones(2)}).state_dict(), ["p"]),
        ({3: torch.ones(1), None: torch.ones(1)}, ["3", "None"]),
    ],
)
def test_tensors_are_found_in_any_container(tmp_path: Path, value, names) -> None:
    assert list(open_weights(save(value, tmp_path / "a.pth"))) == names


class Custom(nn.Module):
    """A model whose class cannot be imported where the file is read."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.register_buffer("kept", torch.arange(3.0))
        self.register_buffer("dropped", torch.arange(2.0), persistent=False)
        self.scale = nn.Parameter(torch.ones(()))
        self.body2 = self.body


@pytest.mark.parametrize("old", [False, True])
def test_a_pickled_model_is_read_by_its_names_without_its_code(tmp_path, old, monkeypatch) -> None:
    model = Custom()
    path = save({"model": model, "date": "today"}, tmp_path / "best.pt", old)
    monkeypatch.delattr(f"{__name__}.Custom")
    weights = open_weights(path)
    assert_same(weights, model.state_dict())
    assert list(weights) == list(model.state_dict())
    assert weights.tensors["body2.0.weight"].tied_to == "body.0.weight"
    [note] = weights.notes
    assert f"{__name__}.Custom" in note


def test_what_is_no_plain_tensor_is_named(tmp_path: Path) -> None:
    values = {
        "w": torch.ones(2),
        "sparse": torch.eye(3).to_sparse(),
        "conjugated": torch.ones(2, dtype=torch.complex64).conj(),
        "inner": {"npy": np.array([None])},
    }
    weights = open_weights(save(values, tmp_path / "a.pth"))
    assert list(weights) == ["w"]
    for name in ("'sparse' (a sparse", "'conjugated' (a conjugated", "'inner.npy' (an array"):
        assert name in weights.notes[0]


class Callable_:  # noqa: N801
    """An object with no tensors that plain data could hold."""


def test_objects_without_tensors_are_refused_by_their_classes(tmp_path: Path) -> None:
    path = save({"a": Callable_()}, tmp_path / "a.pt")
    with refused(
        WeightsFileError, r"Python objects \(.*Callable_\) and no tensors", hint="--trust"
    ):
        open_weights(path)


def test_a_checkpoint_without_tensors_says_so(tmp_path: Path) -> None:
    with pytest.raises(WeightsFileError, match="contains no tensors"):
        open_weights(save({"epoch": 3}, tmp_path / "a.pth"))


def test_long_metadata_are_left_out(tmp_path: Path) -> None:
    plain = {"epoch": 3, "digits": 10**9000, "text": "x" * 100_000, "k" * 5000: 1}
    path = save({"state_dict": net().state_dict(), **plain}, tmp_path / "a.pth")
    assert open_weights(path).metadata == {"epoch": "3"}


def test_hints_are_quoted_for_the_shell(tmp_path: Path) -> None:
    parts = {"one": net().state_dict(), "other one": net().state_dict()}
    path = save(parts, tmp_path / "my file.pth")
    with pytest.raises(RequestError) as caught:
        open_weights(path)
    assert caught.value.hint.endswith(f"or all: '{path}#all'")
    with pytest.raises(LayerError) as caught:
        WeightTree.of(open_weights(f"{path}#one")).select(["nothing"], None, False)
    assert caught.value.hint.endswith(f"\"hookscope tree '{path}#one'\" lists them all.")


def test_tensors_whose_dotted_names_coincide_are_all_listed(tmp_path: Path) -> None:
    def saved(name: str, *values: float) -> Path:
        a, b, c = (torch.full((2,), value) for value in values)
        torch.save({"w": {2: a, "2": b}, "w.2": c}, tmp_path / name)
        return tmp_path / name

    first, second = saved("a.pt", 1, 2, 3), saved("b.pt", 7, 2, 3)
    weights = hookscope.load(first)
    assert [float(weights[name][0]) for name in weights.tensors] == [1, 2, 3]
    assert len(set(weights.tensors)) == 3
    assert not hookscope.diff(first, second).same
    assert hookscope.diff(first, first).same


Pair = collections.namedtuple("Pair", "mean std")


def test_tensors_of_a_tuple_with_names_are_listed(tmp_path: Path) -> None:
    pair = Pair(torch.zeros(2), torch.ones(3))
    torch.save({"weight": torch.ones(1), "moments": pair}, tmp_path / "a.pt")
    weights = open_weights(tmp_path / "a.pt")
    assert list(weights) == ["weight", "moments.0", "moments.1"]
    assert weights["moments.1"].tolist() == [1, 1, 1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("archive", [False, True])
def test_quantized_tensors_do_not_hide_the_others(tmp_path: Path, archive: bool) -> None:
    quantized = torch.quantize_per_tensor(torch.ones(4, 2), 0.1, 0, torch.qint8)
    state = {"a": torch.ones(3), "q": quantized, "z": torch.zeros(2)}
    torch.save(state, tmp_path / "a.pt", _use_new_zipfile_serialization=archive)
    weights = open_weights(tmp_path / "a.pt")
    assert {name: weights[name].tolist() for name in weights} == {"a": [1, 1, 1], "z": [0, 0]}
    assert "'q' (a quantized tensor)" in weights.notes[0]
