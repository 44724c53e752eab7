"""Damaged and crafted files of weights: a sentence and exit status 2, and no code is run."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from onnx import helper

import hookscope
from hookscope.errors import HookscopeError
from hookscope.files.pickle_scan import DamagedPickle
from hookscope.files.plain_pickle import PlainUnpickler
from hookscope.stores.weights import weight_set
from hookscope.stores.weights.open_weights import is_weights, open_weights
from hookscope.stores.weights.weight_tree import WeightTree, hash_weights
from tests.conftest import REPO
from tests.damage import MOST_CALLS, damaged, endure
from tests.damaged.crafted_weights import CRAFTED, HARM, SLOW, Call
from tests.damaged.test_models import rezipped
from tests.sources.onnx.handmade import FLOAT, model, two_layers


class Net:
    """An object that a pickle builds without a call of a function."""

    def __init__(self, width: int) -> None:
        self.width = width


ROUNDS = 120
MEMORY = 200_000  # kilobytes of a process that reads small crafted files; 35,000 without any


def _state() -> dict[str, torch.Tensor]:
    return {
        "conv.weight": torch.randn(4, 3, 3, 3),
        "conv.bias": torch.randn(4),
        "fc.weight": torch.randn(5, 4).t(),
        "steps": torch.tensor(3),
        "half": torch.randn(6).bfloat16(),
    }


def _saved(value: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def _npz(compressed: bool = False) -> bytes:
    buffer = io.BytesIO()
    arrays = {"a": np.arange(12.0).reshape(3, 4), "b": np.arange(5, dtype=">i2")}
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)
    return buffer.getvalue()


def _npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(6.0).reshape(2, 3))
    return buffer.getvalue()


def _gguf(folder: Path) -> bytes:
    path = folder / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "c"])
    writer.add_tensor("plain", np.arange(6, dtype=np.float32).reshape(2, 3))
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("q", gguf.quantize(np.ones((2, 64), np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


WHOLE: dict[str, Callable[[Path], bytes]] = {
    "a.safetensors": lambda _: safetensors.torch.save(
        {name: tensor.contiguous() for name, tensor in _state().items()}
    ),
    "a.pth": lambda _: _saved({"epoch": 3, "state_dict": _state(), "optimizer": {"lr": 0.1}}),
    "old.pth": lambda _: _saved(_state(), _use_new_zipfile_serialization=False),
    "module.pt": lambda _: _saved(torch.nn.Sequential(torch.nn.Linear(3, 2))),
    "a.npz": lambda _: _npz(),
    "packed.npz": lambda _: _npz(compressed=True),
    "a.npy": lambda _: _npy(),
    "a.gguf": _gguf,
}


def _with_functions() -> onnx.ModelProto:
    """A model of functions that call each other, and of an If with subgraphs."""
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("d", 1)]
    relu = [helper.make_node("Relu", ["a"], ["b"])]
    twice = [
        helper.make_node("F", ["a"], ["b"], domain="d"),
        helper.make_node("F", ["b"], ["c"], domain="d"),
    ]
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["h"], ["y"])],
            name,
            [],
            [helper.make_tensor_value_info("y", FLOAT, [2])],
        )
        for name, op in (("then", "Neg"), ("else", "Abs"))
    }
    nodes = [
        helper.make_node("G", ["x"], ["h"], domain="d", name="/body/G"),
        helper.make_node("If", ["yes"], ["y"], name="/body/If", **branches),
    ]
    values = [("x", FLOAT, [2])], [("y", FLOAT, [2])], {"yes": np.array(True)}
    proto = model(nodes, *values, opset_imports=opsets)
    proto.functions.append(helper.make_function("d", "F", ["a"], ["b"], relu, opsets))
    proto.functions.append(helper.make_function("d", "G", ["a"], ["c"], twice, opsets))
    return proto


ONNX: dict[str, Callable[[Path], bytes]] = {
    "two_layers.onnx": lambda _: two_layers().SerializeToString(),
    "functions.onnx": lambda _: _with_functions().SerializeToString(),
}


def read_everything(path: Path) -> None:
    weights = open_weights(path)
    WeightTree.of(weights)
    hash_weights(weights)
    for name in weights:
        weights.tensor(name)


@pytest.mark.parametrize("name", WHOLE)
def test_a_damaged_file_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    whole = WHOLE[name](tmp_path)
    assert endure(path, [whole], lambda: read_everything(path)) == 0
    refused = endure(path, damaged(whole, ROUNDS, 1), lambda: read_everything(path))
    if zipfile.is_zipfile(io.BytesIO(whole)) and not name.endswith(".npz"):
        refused += endure(path, rezipped(whole, ROUNDS, 1), lambda: read_everything(path))
    assert refused


@pytest.mark.exhaustive
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited on Linux")
@pytest.mark.parametrize("name", [*WHOLE, *ONNX])
def test_thousands_of_changed_files_take_little_time_and_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes((ONNX | WHOLE)[name](tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "tests.damaged.mutated_files", str(path), "1500", "1"],
        env=os.environ | {"PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{name}: " in done.stdout


def _outcomes(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What came of each of some crafted files, in a process without torch."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.damaged.crafted_weights", str(folder), *names],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    *lines, last = map(json.loads, done.stdout.splitlines())
    assert not last["torch"]
    assert last["peak"] < MEMORY
    assert not (folder / HARM).exists()
    return {line["name"]: line for line in lines}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came of the crafted files that are soon refused."""
    return _outcomes(tmp_path_factory.mktemp("crafted"), CRAFTED.keys() - SLOW)


def _check_refusal(outcome: dict[str, Any]) -> None:
    assert outcome.get("exit") == 2, outcome
    assert "\n" not in outcome["error"]
    assert len(outcome["error"]) < 400
    assert outcome["calls"] < MOST_CALLS


@pytest.mark.parametrize("name", [name for name in CRAFTED if name not in SLOW])
def test_a_crafted_file_is_refused_in_a_sentence(outcomes, name: str) -> None:
    _check_refusal(outcomes[name])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(SLOW))
def test_a_crafted_file_that_takes_seconds_is_refused_too(tmp_path: Path, name: str) -> None:
    _check_refusal(_outcomes(tmp_path, [name])[name])


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors.torch.save({"w": torch.zeros(4_000_000)}))
    blocks = open_weights(path).blocks("w")
    next(blocks)
    os.truncate(path, 5_000_000)
    with pytest.raises(HookscopeError, match="became shorter"):
        list(blocks)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("system.pth", "Opening it in PyTorch would call "),
        ("long_bytes.pth", "is a pickle of more than 64 MiB, or with a value"),
        ("value.pkl", "is a pickle of more than 64 MiB, or with a value"),
        ("number.pth", "is a zip archive with a damaged pickle in it"),
        ("tensors.gguf", "tensors; at most 200,000 are listed"),
        ("values.gguf", "metadata; at most 100,000 are read"),
        ("text.pth", "is a text file, not weights"),
    ],
)
def test_the_reason_is_in_plain_words(outcomes, name: str, reason: str) -> None:
    assert reason in outcomes[name]["error"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x80\x02e.", "its instructions do not fit each other"),
        (b"L" + b"9" * 10_000 + b"L\n.", "an integer of thousands of digits"),
        (b"\x80\x02\xff.", "it has an unknown instruction"),
        (b"\x80\x02}", "it ends early"),
    ],
)
def test_damaged_pickles_are_described_without_words_of_python(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedPickle, match=reason):
        PlainUnpickler(io.BytesIO(data)).load()


@pytest.mark.parametrize("name", ["a.safetensors", "a.pth", "a.npz", "a.gguf"])
def test_too_many_tensors_are_refused_in_every_format(tmp_path: Path, monkeypatch, name) -> None:
    path = tmp_path / name
    path.write_bytes(WHOLE[name](tmp_path))
    monkeypatch.setattr(weight_set, "MOST_TENSORS", 1)
    with pytest.raises(HookscopeError, match=r"has \d tensors; at most 1 are listed"):
        open_weights(path)


def test_trust_is_not_offered_for_a_file_that_runs_commands(tmp_path: Path) -> None:
    path = tmp_path / "evil.pth"
    for value in (Call(os.system, "true"), [Call(eval, "1")]):
        path.write_bytes(_saved(value))
        with pytest.raises(HookscopeError, match=r"would call (posix|nt|__builtin__)\.") as caught:
            open_weights(path)
        assert "--trust" not in str(caught.value)
    path.write_bytes(_saved([Call(os.system, "true"), Net(3)]))
    with pytest.raises(HookscopeError, match=r"Net\) and no tensors"):
        open_weights(path)


def test_a_file_with_tensors_says_what_opening_it_would_call(tmp_path: Path) -> None:
    path = tmp_path / "evil.pth"
    torch.save({"w": torch.ones(2), "run": Call(os.system, "true")}, path)
    assert open_weights(path).notes == (
        f"Opening it in PyTorch would call {os.name}.system. Nothing was called here.",
    )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_never_read(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    os.mkfifo(folder / "model.safetensors")
    os.mkfifo(folder / "model.safetensors.index.json")
    with pytest.raises(HookscopeError, match="contains no weights"):
        open_weights(folder)
    assert not is_weights(str(folder))
    for name in ("model.safetensors", "model.safetensors.index.json"):
        with pytest.raises(HookscopeError, match="is a pipe or a device, not a file"):
            open_weights(folder / name)
        with pytest.raises(HookscopeError, match="is a pipe or a device, not a model"):
            hookscope.tree(folder / name)
    (folder / "model.safetensors.index.json").unlink()
    index = {"weight_map": {"w": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(HookscopeError, match="is a pipe"):
        open_weights(folder)
