"""Damaged files of models and of weights: a sentence and exit status 2, and never a crash."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import hookscope
from hookscope import load_model as load
from tests.conftest import REPO
from tests.damage import altered, damaged, endure, few_or_many
from tests.sources.torchscript.examples import quietly

DIGITS = f"{REPO}/sample_models/digits.py:DigitsCNN"
X = torch.ones(2, 4)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv1d(1, 2, 3)
        self.names = {"a": 1, "b": 2}

    def forward(self, x: torch.Tensor, twice: bool = False) -> torch.Tensor:
        for _ in range(2 if twice else 1):
            x = torch.relu(self.inner(x)) * self.names["b"]
        return x


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()


def _saved(save: Callable[[Any, io.BytesIO], object], value: Any) -> bytes:
    buffer = io.BytesIO()
    save(value, buffer)
    return buffer.getvalue()


def _state() -> dict[str, torch.Tensor]:
    return load(DIGITS).module.state_dict()


def _old(value: Any, file: io.BytesIO) -> None:
    torch.save(value, file, _use_new_zipfile_serialization=False)


def _in_torchscript(make: Callable[[], Any]) -> bytes:
    with quietly():
        return _saved(torch.jit.save, make())


WEIGHTS: dict[str, Callable[[], bytes]] = {
    "a.safetensors": lambda: safetensors.torch.save(_state()),
    "a.pth": lambda: _saved(torch.save, _state()),
    "old.pth": lambda: _saved(_old, _state()),
}
MODELS: dict[str, Callable[[], bytes]] = {
    "scripted.pt": lambda: _in_torchscript(lambda: torch.jit.script(_net())),
    "traced.pt": lambda: _in_torchscript(lambda: torch.jit.trace(_net(), X)),
    "branching.pt": lambda: _in_torchscript(lambda: torch.jit.script(Branching())),
    "exported.pt2": lambda: _saved(
        lambda program, file: torch.export.save(program, file), torch.export.export(_net(), (X,))
    ),
}


def rezipped(whole: bytes, rounds: int, seed: int) -> Iterator[bytes]:
    """An archive in which one record is damaged and all checksums are right."""
    source = random.Random(seed)
    archive = zipfile.ZipFile(io.BytesIO(whole))
    records = {name: archive.read(name) for name in archive.namelist()}
    members = [name for name in records if name.endswith((".pkl", ".json", ".py"))]
    for n in range(rounds):
        name = source.choice(members)
        if name.endswith(".json") and n % 2:
            other = json.dumps(next(altered(json.loads(records[name]), 1, n))).encode()
        else:
            other = list(damaged(records[name], 1, n))[-1]
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as made:
            for each, data in records.items():
                made.writestr(each, other if each == name else data)
        yield buffer.getvalue()


def endured(path: Path, read: Callable[[], object], rounds: int, seed: int) -> None:
    """The file at ``path`` is sound and is damaged again and again; in the end it is sound."""
    whole = path.read_bytes()
    assert endure(path, [whole], read) == 0
    refused = endure(path, damaged(whole, rounds, seed), read)
    if zipfile.is_zipfile(io.BytesIO(whole)):
        refused += endure(path, rezipped(whole, rounds, seed), read)
    assert refused
    path.write_bytes(whole)


@pytest.mark.parametrize(("rounds", "seed"), few_or_many(40, 300))
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_damaged_file_of_weights_is_refused_in_a_sentence(
    tmp_path: Path, name: str, rounds: int, seed: int
) -> None:
    path = tmp_path / name
    path.write_bytes(WEIGHTS[name]())
    endured(path, lambda: load(DIGITS, weights=path), rounds, seed)


@pytest.mark.parametrize(("rounds", "seed"), few_or_many(20, 150))
@pytest.mark.parametrize("name", MODELS)
def test_a_damaged_file_of_a_model_is_refused_in_a_sentence(
    tmp_path: Path, name: str, rounds: int, seed: int
) -> None:
    path = tmp_path / name
    path.write_bytes(MODELS[name]())
    endured(path, lambda: load(path), rounds, seed)


@pytest.mark.parametrize(("rounds", "seed"), few_or_many(30, 200))
@pytest.mark.parametrize("ending", [".safetensors", ".bin"])
def test_a_damaged_set_of_weights_is_refused_in_a_sentence(
    tmp_path: Path, ending: str, rounds: int, seed: int
) -> None:
    """Weights in two files with an index, each of the three damaged in turn."""
    state = _state()
    names = list(state)
    parts = {f"part-1{ending}": names[:3], f"part-2{ending}": names[3:]}
    for part, held in parts.items():
        write = safetensors.torch.save_file if ending == ".safetensors" else torch.save
        write({name: state[name] for name in held}, tmp_path / part)
    listed = {name: part for part, held in parts.items() for name in held}
    begins = "model" if ending == ".safetensors" else "pytorch_model"
    index = tmp_path / f"{begins}{ending}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": listed}))
    for path in (index, tmp_path / f"part-2{ending}"):
        endured(path, lambda: load(DIGITS, weights=tmp_path), rounds, seed)


@pytest.mark.parametrize(
    ("rounds", "seed"), [(4, 0), pytest.param(60, 1, marks=pytest.mark.exhaustive)]
)
def test_a_damaged_folder_of_transformers_is_refused_in_a_sentence(
    tmp_path: Path, rounds: int, seed: int
) -> None:
    """Each file of a tiny model's folder damaged in turn, with a text that its tokenizer reads."""
    transformers = pytest.importorskip("transformers")
    home = tmp_path / "model"
    config = transformers.BertConfig(
        **{"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"intermediate_size": 8, "max_position_embeddings": 16},
    )
    transformers.BertModel(config).save_pretrained(home)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(vocab_file=str(tmp_path / "vocab.txt")).save_pretrained(home)
    (tmp_path / "text.txt").write_text("a b c")

    def read() -> None:
        hookscope.capture(f"hf:{home}", input=tmp_path / "text.txt")

    for path in sorted(home.iterdir()):
        endured(path, read, rounds, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.pth", "scripted.pt", "exported.pt2"])
def test_the_command_refuses_a_cut_off_file_in_a_sentence(run, tmp_path: Path, name: str) -> None:
    whole = (WEIGHTS | MODELS)[name]()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    words = [DIGITS, "--weights", tmp_path / name] if name in WEIGHTS else [tmp_path / name]
    done = run("capture", *words)
    assert (done.rc, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ") and "Traceback" not in done.stderr
