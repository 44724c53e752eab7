"""Several inputs: by name, by position, nested in JSON, and from Python code."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hookscope import load_model as load
from hookscope.errors import InputError, ModelError, RequestError
from hookscope.inputs.batch import build_batch
from hookscope.sources.model_loader import wrap
from hookscope.specs.input_spec import parse_inputs
from tests.refusals import refused


class Pair(nn.Module):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return ids


class Open(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> None: ...


ONE, PAIR, OPEN = wrap(nn.Identity()), wrap(Pair()), wrap(Open())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with two arrays."""
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.arange(4))
    np.save("b.npy", np.ones(4))
    return tmp_path


def code(text: str, name: str = "data.py") -> None:
    Path(name).write_text("import torch\nfrom torch.utils.data import *\n" + text)


def test_inputs_by_name_and_by_position_come_in_any_order() -> None:
    batch = build_batch(PAIR, ["mask=b.npy", "ids=a.npy"])
    assert batch.value["ids"].tolist() == [0, 1, 2, 3]
    assert batch.value["mask"].tolist() == [1] * 4
    assert [entry["spec"] for entry in batch.sources] == ["mask=b.npy", "ids=a.npy"]
    args, kwargs = build_batch(PAIR, ["1=b.npy", "0=a.npy"]).value
    assert ([t.tolist() for t in args], kwargs) == ([[0, 1, 2, 3], [1] * 4], {})
    args, kwargs = build_batch(PAIR, ["a.npy", "mask=b.npy"]).value
    assert args[0].tolist() == [0, 1, 2, 3] and kwargs["mask"].tolist() == [1] * 4


IMPOSSIBLE = [
    (["ids=a.npy", "msk=b.npy"], "'msk'"),
    (["ids=a.npy"], "'mask'"),
    (["1=b.npy"], "position 0"),
    (["a.npy", "0=b.npy", "mask=a.npy"], "Argument 0"),
    (["0=a.npy", "1=b.npy", "2=b.npy"], "positional"),
    (["a.npy", "mask=b.npy", "ids=b.npy"], "'ids'"),
]


@pytest.mark.parametrize(("words", "subject"), IMPOSSIBLE)
def test_a_call_that_cannot_be_is_refused(words: list[str], subject: str) -> None:
    with refused(InputError, subject, status=2):
        build_batch(PAIR, words)


def test_a_file_with_an_equals_sign_in_its_name_is_a_file() -> None:
    np.save("lr=1.npy", np.zeros(2))
    assert build_batch(ONE, "lr=1.npy").value.tolist() == [0, 0]
    assert build_batch(ONE, "input=lr=1.npy").value["input"].tolist() == [0, 0]


WITHOUT_MEANING = {
    "ids=": "ids=",
    "text: ": "no text",
    "random:3xx": "'3xx'",
    "random:0x3": "'0x3'",
    "ints:3": "range",
    "ints:3:5-5": "range",
    "rand:3x4": "'rand'",
    "x=missing.npy": "'missing.npy'",
    "missing.npz:a": "'missing.npz'",
    "data.py": "function",
    "nope.py:f": "'nope.py'",
}


@pytest.mark.parametrize("word", WITHOUT_MEANING)
def test_a_word_without_meaning_is_refused(word: str) -> None:
    code("", "data.py")
    with refused(RequestError, message=WITHOUT_MEANING[word]):
        parse_inputs([word])


def test_a_drive_letter_is_no_kind_of_input() -> None:
    with pytest.raises(RequestError) as caught:
        parse_inputs([r"C:\gone.png"])
    assert "random:" not in caught.value.hint


def test_json_holds_arguments_with_tensors_by_file() -> None:
    Path("sub").mkdir()
    np.save("sub/c.npy", np.full(2, 7))
    others = {"scale": 3, "on": True, "none": None}
    document = {"ids": {"file": "c.npy"}, "mask": [{"tensor": [[1.5, 2]]}, others]}
    Path("sub/args.json").write_text(json.dumps(document))
    batch = build_batch(PAIR, "sub/args.json")
    assert batch.value["ids"].tolist() == [7, 7]
    assert batch.value["mask"][0].tolist() == [[1.5, 2]]
    assert batch.value["mask"][1] == others
    assert [entry["part"] for entry in batch.sources] == ["ids", "mask.0"]
    nested = build_batch(PAIR, ["ids=a.npy", "mask=sub/args.json"]).value["mask"]
    assert nested["ids"].tolist() == [7, 7]
    np.save("sub/c.npy", np.full(2, 8))
    again = build_batch(PAIR, "sub/args.json")
    assert again.sources[0]["sha256"] != batch.sources[0]["sha256"]
    assert again.sources[1]["sha256"] == batch.sources[1]["sha256"]


def test_a_list_in_json_holds_arguments_by_position() -> None:
    Path("args.json").write_text('[{"file": "a.npy"}, {"tensor": [1, 2]}]')
    args, _ = build_batch(PAIR, "args.json").value
    assert args[1].dtype is torch.int64
    Path("list.json").write_text("[1, 2]")
    assert build_batch(PAIR, ["a.npy", "mask=list.json"]).value[1]["mask"] == [1, 2]


NO_ARGUMENTS = [
    ("{", "JSON"),
    ("[" * 5000, "JSON"),
    ("[" * 300 + "]" * 300, "deep"),
    ('{"ids": {"file": "gone.npy"}}', "'gone.npy'"),
    ('{"ids": {"file": 3}}', "3 "),
    ('{"ids": {"file": "*.npy"}}', "several files"),
    ('{"ids": {"file": "args.json"}}', "'args.json'"),
    ('{"ids": {"tensor": [[1], [1, 2]]}}', "tensor"),
    ('{"ids": {"tensor": "x"}}', "tensor"),
    ('{"ids": ' + "9" * 5000 + "}", "JSON"),
    ('{"ids": {"tensor": ' + "9" * 50 + "}}", "tensor"),
]


@pytest.mark.parametrize(("text", "subject"), NO_ARGUMENTS)
def test_json_that_names_no_arguments_is_refused(text: str, subject: str) -> None:
    Path("args.json").write_text(text)
    with refused(InputError, message=subject):
        build_batch(OPEN, "args.json")


OFFERS = [
    ("def batches(): return torch.ones(1, 2)", [[1, 1]]),
    ("def batches():\n    yield torch.ones(1)\n    raise ValueError", [1]),
    ("import numpy\ndef batches(): return numpy.ones(2)", [1, 1]),
    ("batches = torch.ones(1)", [1]),
    ("batches = TensorDataset(torch.ones(3, 2))", [[1, 1]]),
    ("batches = TensorDataset(torch.ones(3, 2), torch.zeros(3))", [[1, 1]]),
    ("batches = DataLoader(torch.ones(4, 1), batch_size=2)", [[1], [1]]),
    ("batches = DataLoader(TensorDataset(torch.ones(4), torch.ones(4)), 3)", [1, 1, 1]),
    ("def batches(): return DataLoader(torch.ones(4), batch_size=2)", [1, 1]),
    (
        "class batches(Dataset):\n    def __len__(self): return 2\n"
        "    def __getitem__(self, n): return torch.ones(2), 1",
        [[1, 1]],
    ),
    ("class batches(IterableDataset):\n    def __iter__(self): yield torch.ones(2)", [[1, 1]]),
]


@pytest.mark.parametrize(("text", "expected"), OFFERS)
def test_python_code_offers_the_first_batch(text: str, expected: list) -> None:
    code(text)
    batch = build_batch(ONE, "data.py:batches")
    assert batch.value.tolist() == expected
    assert batch.sources[0]["spec"] == "data.py:batches"


def test_a_module_that_can_be_imported_offers_batches(folder: Path, monkeypatch) -> None:
    code("def batches(): return torch.ones(2)", "offering_for_tests.py")
    monkeypatch.syspath_prepend(str(folder))
    assert build_batch(ONE, "offering_for_tests:batches").value.tolist() == [1, 1]


def test_a_pair_is_input_and_label_only_where_one_argument_is_needed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    code("batches = DataLoader(TensorDataset(torch.ones(4), torch.zeros(4)), 2)")
    with caplog.at_level(logging.INFO, "hookscope"):
        args, _ = build_batch(PAIR, "data.py:batches").value
        assert [t.tolist() for t in args] == [[1, 1], [0, 0]]
        assert "label" not in caplog.text
        build_batch(ONE, "data.py:batches")
    assert "label" in caplog.text and "batch of 2" in caplog.text


def test_dicts_from_python_code_are_arguments_by_name() -> None:
    code("def batches():\n    yield {'ids': torch.ones(2), 'mask': torch.zeros(2)}")
    assert build_batch(PAIR, "data.py:batches").value["mask"].tolist() == [0, 0]
    with pytest.raises(InputError, match="'ids'"):
        build_batch(ONE, "data.py:batches")


def test_images_of_a_dataset_go_through_the_models_recipe() -> None:
    code(
        "from torchvision.datasets import FakeData\n"
        "photos = FakeData(size=2, image_size=(3, 40, 50), num_classes=4)"
    )
    resnet = load("resnet18", meta=True)
    assert build_batch(resnet, "data.py:photos").value.shape == (1, 3, 224, 224)
    assert build_batch(resnet, "data.py:photos", size=64).value.shape == (1, 3, 64, 64)


def test_shuffling_follows_the_seed_and_leaves_the_global_state_alone() -> None:
    code(
        "import numpy, random\nbatches = DataLoader(torch.arange(90), batch_size=9, shuffle=True)\n"
        "def drawn(): return torch.tensor([random.random(), numpy.random.rand()])"
    )
    state = torch.get_rng_state()
    for word in ("data.py:batches", "data.py:drawn"):
        first = build_batch(ONE, word, seed=3).value
        assert torch.equal(first, build_batch(ONE, word, seed=3).value)
        assert not torch.equal(first, build_batch(ONE, word, seed=4).value)
    assert torch.equal(torch.get_rng_state(), state)


OFFERS_NOTHING = [
    ("other = 1", InputError, "'batches'"),
    ("batches = 1", InputError, "int"),
    ("def batches(n): return n", InputError, "'n'"),
    ("def batches(): raise OSError('gone')", ModelError, "line 3.* OSError"),
    ("def batches():\n    yield from ()", InputError, "empty"),
    ("batches = TensorDataset(torch.ones(0))", InputError, "empty"),
    ("1/0", ModelError, "line 3.* ZeroDivisionError"),
    ("def batches(): return batches", InputError, "function"),
]


@pytest.mark.parametrize(("text", "error", "subject"), OFFERS_NOTHING)
def test_python_code_that_offers_nothing_is_told(
    text: str, error: type[RequestError], subject: str
) -> None:
    code(text)
    with pytest.raises(error, match=subject) as caught:
        build_batch(ONE, "data.py:batches")
    assert caught.value.exit_code == 2
