"""Datasets of texts, compared with each text run alone through a hand-written hook."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hookscope
from hookscope.errors import InputError, LayerError
from tests import tiny_language

WORDS = tiny_language.LINE.split()
# Lengths in an order that is not sorted.
TEXTS = [" ".join((WORDS * 2)[: 1 + (7 * i) % 19]) for i in range(37)]
OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(128, 6)
        self.mix = nn.GRU(6, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 2)

    def forward(self, ids):
        tokens, _ = self.mix(self.embed(ids))
        return self.head(tokens).mean(1)

def tokenize(texts):
    return torch.tensor([[ord(c) % 128 for c in text] for text in texts])

def example_input():
    return torch.zeros(1, 4, dtype=torch.long)
"""


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_language.bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS) + "\n\n")
    return file


def alone(spec: str, layer: str, texts: list[str] = TEXTS) -> list[torch.Tensor]:
    """The tokens' vectors of each text, by a hand-written hook, without any padding."""
    loaded = hookscope.load_model(spec)
    module, seen = loaded.module.eval(), []

    def keep(module: Any, args: Any, output: Any) -> None:
        seen.append((output[0] if isinstance(output, tuple) else output)[0].clone())

    handle = module.get_submodule(layer).register_forward_hook(keep)
    with torch.no_grad():
        for text in texts:
            value = loaded.own_text.run([text])
            module(**value) if isinstance(value, dict) else module(value)
    handle.remove()
    return seen


def rows_of(spec: str, layer: str, texts: Any, folder: Path, **options: Any) -> Any:
    """The rows of a layer for a dataset of texts, run in batches of eight."""
    options = {"batch": 8} | options
    hookscope.extract(spec, folder, layers=layer, input=texts, **options)
    features = hookscope.load(folder)
    [key] = features.keys
    return features[key][:]


REDUCED = {
    "mean": lambda tokens: tokens.double().mean(0).float(),
    "max": lambda tokens: tokens.amax(0),
    "first": lambda tokens: tokens[0],
    "cls": lambda tokens: tokens[0],
    "last": lambda tokens: tokens[-1],
}


@pytest.mark.parametrize("reduce", REDUCED)
@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_a_row_is_that_of_the_text_alone(
    request: Any, tmp_path: Path, lines: Path, model: str, reduce: str
) -> None:
    spec = request.getfixturevalue(model)
    layer = "transformer.h.1" if model == "gpt2" else "bert.encoder.layer.1"
    rows = rows_of(spec, layer, lines, tmp_path / "out", reduce=reduce)
    expected = torch.stack([REDUCED[reduce](tokens) for tokens in alone(spec, layer)])
    assert rows.shape == (37, 24)
    # The padding changes the rounding of float32 alone.
    np.testing.assert_allclose(rows, expected, rtol=0, atol=2e-6)


def test_batches_of_one_text_are_bit_identical(tmp_path: Path, gpt2: str, lines: Path) -> None:
    layer = "transformer.h.1"
    rows = rows_of(gpt2, layer, lines, tmp_path / "one", reduce="last", batch=1)
    expected = torch.stack([tokens[-1] for tokens in alone(gpt2, layer)])
    assert torch.equal(torch.from_numpy(rows), expected)


def test_a_model_without_a_mask_gets_texts_of_one_length(tmp_path: Path, lines: Path) -> None:
    (tmp_path / "net.py").write_text(OWN)
    spec = f"{tmp_path}/net.py:Net"
    for layer in ("embed", "head"):
        rows = rows_of(spec, layer, lines, tmp_path / layer, reduce="mean")
        expected = torch.stack([REDUCED["mean"](tokens) for tokens in alone(spec, layer)])
        np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-6)


def test_a_model_that_ignores_the_mask_is_noticed(tmp_path: Path, lines: Path) -> None:
    code = OWN.replace("ids):", "input_ids, attention_mask):").replace("ids))", "input_ids))")
    code = code.replace(
        "return torch.tensor([[ord(c) % 128 for c in text] for text in texts])",
        "ids = torch.tensor([[ord(c) % 128 for c in text] for text in texts])\n"
        "    return {'input_ids': ids, 'attention_mask': torch.ones_like(ids)}",
    )
    (tmp_path / "net.py").write_text(code.split("def example_input")[0])
    spec = f"{tmp_path}/net.py:Net"
    rows = rows_of(spec, "head", lines, tmp_path / "out", reduce="last")
    expected = torch.stack([tokens[-1] for tokens in alone(spec, "head")])
    np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-6)


def test_an_encoder_and_decoder(tmp_path: Path, lines: Path) -> None:
    t5, layer = tiny_language.t5(tmp_path / "t5"), "encoder.final_layer_norm"
    rows = rows_of(t5, layer, lines, tmp_path / "o", reduce="mean")
    expected = torch.stack([REDUCED["mean"](tokens) for tokens in alone(t5, layer)])
    np.testing.assert_allclose(rows, expected, rtol=0, atol=5e-6)


def test_statistics_leave_padding_out(tmp_path: Path, bert: str, lines: Path) -> None:
    layer = "bert.encoder.layer.0"
    hookscope.extract(
        bert, tmp_path / "out", layers=layer, input=str(lines), stats_only=True, batch=8
    )
    shot = hookscope.load(tmp_path / "out" / "statistics.safetensors")
    tokens = torch.cat(alone(bert, layer)).double()
    count = next(shot[key] for key in shot if key.endswith(".count"))
    mean = next(shot[key] for key in shot if key.endswith(".mean"))
    assert count.tolist() == [len(tokens)] * 24
    torch.testing.assert_close(torch.as_tensor(mean), tokens.mean(0), rtol=0, atol=1e-6)


def test_every_form_of_a_table_gives_the_same_rows(tmp_path: Path, gpt2: str, lines: Path) -> None:
    import datasets
    import pyarrow
    from pyarrow import parquet

    rows = [{"label": f"{n % 3}s", "body": text} for n, text in enumerate(TEXTS)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "plain.jsonl").write_text("".join(json.dumps(text) + "\r\n" for text in TEXTS))
    for name, delimiter in {"a.csv": ",", "a.tsv": "\t"}.items():
        with (tmp_path / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, ["label", "body"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=3)
    data = datasets.Dataset.from_list(rows).class_encode_column("label")
    assert data[1]["label"] == 1  # a number, with a name
    data.save_to_disk(tmp_path / "folder")
    (tmp_path / "data.other").write_bytes(lines.read_bytes())
    names = ["a.jsonl", "a.csv", "a.tsv", "a.parquet", "folder"]
    specs = {f"{tmp_path}/{name}:body": f"{tmp_path}/{name}" for name in names}
    specs |= {f"{tmp_path}/plain.jsonl": f"{tmp_path}/plain.jsonl"}
    specs |= {f"lines:{tmp_path}/data.other": f"{tmp_path}/data.other"}
    layer, options = "transformer.h.1", {"reduce": "mean", "batch": 8}
    expected = rows_of(gpt2, layer, lines, tmp_path / "lines", **options)
    for number, (spec, path) in enumerate(specs.items()):
        out = tmp_path / f"out{number}"
        assert np.array_equal(rows_of(gpt2, layer, spec, out, **options), expected), spec
        features = hookscope.load(out)
        assert features.inputs[2]["path"] == f"{path}:3"
        if spec.endswith(":body"):
            assert features.column("label") == [row["label"] for row in rows], spec


def test_several_files_every_and_the_table_of_inputs(tmp_path: Path, gpt2: str) -> None:
    (tmp_path / "a.txt").write_text("The capital\nParis\nof")
    (tmp_path / "b.txt").write_text("Germany\r\nis Berlin\r\n")
    layer = "transformer.h.0"
    rows = rows_of(gpt2, layer, f"{tmp_path}/?.txt", tmp_path / "out", reduce="last", every=2)
    entries = hookscope.load(tmp_path / "out").inputs
    assert [entry["path"][-7:] for entry in entries] == ["a.txt:1", "a.txt:3", "b.txt:2"]
    expected = alone(gpt2, layer, ["The capital", "of", "is Berlin"])
    assert [entry["tokens"] for entry in entries] == [len(tokens) for tokens in expected]
    assert len(rows) == 3


@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_a_resumed_run_writes_the_same_bytes(
    tmp_path: Path, gpt2: str, lines: Path, reduce: str
) -> None:
    options = {"layers": "transformer.h.1", "input": str(lines), "reduce": reduce, "batch": 4}
    for name in ("whole", "resumed"):
        hookscope.extract(gpt2, tmp_path / name, shard_size=1000, **options)
    files = sorted((tmp_path / "whole").glob("rows-*"))
    assert len(files) > 2
    (tmp_path / "resumed" / files[1].name).unlink()
    hookscope.extract(gpt2, tmp_path / "resumed", shard_size=1000, resume=True, **options)
    for file in (tmp_path / "whole").glob("*.*"):
        assert (tmp_path / "resumed" / file.name).read_bytes() == file.read_bytes(), file.name
    features = hookscope.load(tmp_path / "whole")
    assert [entry["row"] for entry in features.inputs] == list(range(37))
    positions = {entry.get("positions") for entry in features.manifest["keys"]}
    assert positions == {"tokens" if reduce == "max" else None}


# The content of a file, and where the mistake is.
MISTAKES = [
    ("a.jsonl", '{"body": "x"}\n', "'text'"),
    ("a.jsonl", '{"text": "x"}\n{"text": \n', "Line 2"),
    ("a.jsonl", '{"text": 3}\n', "line 1 .* number"),
    ("a.jsonl", '{"text": null}\n', "line 1 .* null"),
    ("a.jsonl", "[1]\n", "Line 1 .* list"),
    ("a.txt", "x\n \ny\n", "Line 2"),
    ("a.jsonl", '{"text": "x"}\n\n"y"\n', "Line 2"),
    ("a.csv", 'text,n\nx,1\n"",2\n', "Row 2"),
    ("a.csv", "body,n\nx,1\n", "column 'text'"),
    ("a.csv", "text,n\nx,1\ny\n", "Line 3"),
    ("a.txt", "x\n\udcff\n", "Line 2"),
    ("a.txt", "\n\n", "no texts"),
    ("a.parquet", "no table", "Parquet"),
]


@pytest.mark.parametrize(("file", "content", "place"), MISTAKES)
def test_mistakes_in_a_file_are_named_by_number(
    tmp_path: Path, gpt2: str, file: str, content: str, place: str
) -> None:
    (tmp_path / file).write_text(content, errors="surrogateescape")
    with pytest.raises(InputError, match=place) as raised:
        rows_of(gpt2, "transformer.h.0", tmp_path / file, tmp_path / "out", reduce="last")
    assert file in str(raised.value)


def test_bad_lines_can_be_skipped(tmp_path: Path, gpt2: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "Paris is"}\n{\n{"text": "Berlin"}\n')
    layer, options = "transformer.h.0", {"reduce": "last", "skip_bad": True}
    rows = rows_of(gpt2, layer, tmp_path / "a.jsonl", tmp_path / "o", **options)
    assert np.isnan(rows).any(1).tolist() == [False, True, False]
    expected = alone(gpt2, layer, ["Paris is", "Berlin"])
    np.testing.assert_allclose(rows[[0, 2]], torch.stack([t[-1] for t in expected]), atol=2e-6)
    assert "Line 2" in hookscope.load(tmp_path / "o").inputs[1]["skipped"]


def test_texts_of_different_length_need_a_reduction_over_tokens(
    tmp_path: Path, gpt2: str, lines: Path
) -> None:
    for reduce in (None, "flatten", "mean:all"):
        with pytest.raises(LayerError, match="length"):
            rows_of(gpt2, "transformer.h.0", lines, tmp_path / "o", reduce=reduce)


def test_a_mask_of_a_dataset_is_honoured(tmp_path: Path, bert: str) -> None:
    loaded = hookscope.load_model(bert)
    assert loaded.own_text is not None
    batch = loaded.own_text.run(TEXTS[:6])
    items = [{name: tensor[i] for name, tensor in batch.items()} for i in range(6)]

    layer = "bert.encoder.layer.1"
    rows = rows_of(
        bert,
        layer,
        torch.utils.data.Subset(items, range(6)),
        tmp_path / "o",
        reduce="mean",
        workers=0,
    )
    expected = torch.stack([REDUCED["mean"](tokens) for tokens in alone(bert, layer, TEXTS[:6])])
    np.testing.assert_allclose(rows, expected, rtol=0, atol=2e-6)
