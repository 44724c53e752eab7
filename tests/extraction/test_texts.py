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
from tests.conftest import Run

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
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_language.gpt2(tmp_path_factory.mktemp("gpt2"), padding_side="left")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_language.bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_language.t5(tmp_path_factory.mktemp("t5"))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS) + "\n\n")
    return file


def alone(spec: str, layer: str, texts: list[str], **options: Any) -> list[torch.Tensor]:
    """The tokens' vectors of each text, by a hand-written hook, without any padding."""
    loaded = hookscope.load_model(spec)
    module, seen = loaded.module.eval(), []

    def keep(module: Any, args: Any, output: Any) -> None:
        seen.append((output[0] if isinstance(output, tuple) else output)[0].clone())

    handle = module.get_submodule(layer).register_forward_hook(keep)
    assert loaded.own_text is not None
    with torch.no_grad():
        for text in texts:
            value = loaded.own_text.run([text])
            module(**value) if isinstance(value, dict) else module(value)
    handle.remove()
    return seen


def the_rows(folder: Path) -> Any:
    """The rows of the only key of a features folder."""
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
    hookscope.extract(
        spec, tmp_path / "out", layers=layer, input=str(lines), reduce=reduce, batch=8
    )
    rows = the_rows(tmp_path / "out")
    expected = torch.stack([REDUCED[reduce](tokens) for tokens in alone(spec, layer, TEXTS)])
    assert rows.shape == (37, 24)
    # The padding changes the rounding of float32 alone.
    np.testing.assert_allclose(rows, expected, rtol=0, atol=2e-6)


def test_batches_of_one_text_are_bit_identical(tmp_path: Path, gpt2: str, lines: Path) -> None:
    layer = "transformer.h.1"
    options = {"layers": layer, "input": str(lines), "reduce": "last"}
    hookscope.extract(gpt2, tmp_path / "one", batch=1, **options)
    rows = the_rows(tmp_path / "one")
    expected = torch.stack([tokens[-1] for tokens in alone(gpt2, layer, TEXTS)])
    assert torch.equal(torch.from_numpy(rows), expected)


def test_a_model_without_a_mask_gets_texts_of_one_length(tmp_path: Path, lines: Path) -> None:
    (tmp_path / "net.py").write_text(OWN)
    spec = f"{tmp_path}/net.py:Net"
    hookscope.extract(
        spec, tmp_path / "out", layers=["embed", "head"], input=str(lines), reduce="mean", batch=8
    )
    features = hookscope.load(tmp_path / "out")
    for layer in ("embed", "head"):
        seen = alone(spec, layer, TEXTS)
        expected = torch.stack([tokens.double().mean(0).float() for tokens in seen])
        np.testing.assert_allclose(features[layer][:], expected, rtol=0, atol=1e-6)


def test_a_model_that_ignores_the_mask_is_noticed(tmp_path: Path, lines: Path) -> None:
    code = OWN.replace("ids):", "input_ids, attention_mask):").replace("ids))", "input_ids))")
    code = code.replace(
        "return torch.tensor([[ord(c) % 128 for c in text] for text in texts])",
        "ids = torch.tensor([[ord(c) % 128 for c in text] for text in texts])\n"
        "    return {'input_ids': ids, 'attention_mask': torch.ones_like(ids)}",
    )
    (tmp_path / "net.py").write_text(code.split("def example_input")[0])
    spec = f"{tmp_path}/net.py:Net"
    hookscope.extract(
        spec, tmp_path / "out", layers="head", input=str(lines), reduce="last", batch=8
    )
    rows = the_rows(tmp_path / "out")
    expected = torch.stack([tokens[-1] for tokens in alone(spec, "head", TEXTS)])
    np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-6)


def test_an_encoder_and_decoder(tmp_path: Path, t5: str, lines: Path) -> None:
    layer = "encoder.final_layer_norm"
    hookscope.extract(t5, tmp_path / "o", layers=layer, input=str(lines), reduce="mean", batch=8)
    rows = the_rows(tmp_path / "o")
    seen = alone(t5, layer, TEXTS)
    expected = torch.stack([tokens.double().mean(0).float() for tokens in seen])
    np.testing.assert_allclose(rows, expected, rtol=0, atol=5e-6)


def test_statistics_leave_padding_out(tmp_path: Path, bert: str, lines: Path) -> None:
    layer = "bert.encoder.layer.0"
    hookscope.extract(
        bert, tmp_path / "out", layers=layer, input=str(lines), stats_only=True, batch=8
    )
    shot = hookscope.load(tmp_path / "out" / "statistics.safetensors")
    tokens = torch.cat(alone(bert, layer, TEXTS)).double()
    count = next(shot[key] for key in shot if key.endswith(".count"))
    mean = next(shot[key] for key in shot if key.endswith(".mean"))
    assert count.tolist() == [len(tokens)] * 24
    torch.testing.assert_close(torch.as_tensor(mean), tokens.mean(0), rtol=0, atol=1e-6)


def test_every_form_of_a_table_gives_the_same_rows(tmp_path: Path, gpt2: str, lines: Path) -> None:
    import datasets
    import pyarrow
    from pyarrow import parquet

    rows = [{"n": n, "body": text} for n, text in enumerate(TEXTS)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "plain.jsonl").write_text("".join(json.dumps(text) + "\r\n" for text in TEXTS))
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["n", "body"])
        writer.writeheader()
        writer.writerows(rows)
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    datasets.Dataset.from_list([{"text": text} for text in TEXTS]).save_to_disk(tmp_path / "folder")
    (tmp_path / "data.other").write_bytes(lines.read_bytes())
    specs = ["a.jsonl:body", "plain.jsonl", "a.csv:body", "a.parquet:body", "folder"]
    specs = [str(tmp_path / spec) for spec in specs] + [f"lines:{tmp_path}/data.other"]
    options = {"layers": "transformer.h.1", "reduce": "mean", "batch": 8}
    hookscope.extract(gpt2, tmp_path / "lines", input=str(lines), **options)
    expected = the_rows(tmp_path / "lines")
    for number, spec in enumerate(specs):
        out = tmp_path / f"out{number}"
        hookscope.extract(gpt2, out, input=spec, **options)
        features = hookscope.load(out)
        found = features[features.keys[0]][:]
        assert np.array_equal(found, expected), spec
        assert features.inputs[2]["path"] == f"{spec.split(':')[-2 if ':body' in spec else -1]}:3"


def test_several_files_every_and_the_table_of_inputs(tmp_path: Path, gpt2: str) -> None:
    (tmp_path / "a.txt").write_text("The capital\nParis\nof")
    (tmp_path / "b.txt").write_text("Germany\r\nis Berlin\r\n")
    done = hookscope.extract(
        gpt2,
        tmp_path / "out",
        layers="transformer.h.0",
        input=f"{tmp_path}/?.txt",
        reduce="last",
        every=2,
    )
    entries = hookscope.load(tmp_path / "out").inputs
    assert [entry["path"][-7:] for entry in entries] == ["a.txt:1", "a.txt:3", "b.txt:2"]
    expected = alone(gpt2, "transformer.h.0", ["The capital", "of", "is Berlin"])
    assert [entry["tokens"] for entry in entries] == [len(tokens) for tokens in expected]
    assert done.rows == 3


def test_a_resumed_run_writes_the_same_bytes(tmp_path: Path, gpt2: str, lines: Path) -> None:
    options = {"layers": "transformer.h.1", "input": str(lines), "reduce": "mean", "batch": 4}
    for name in ("whole", "resumed"):
        hookscope.extract(gpt2, tmp_path / name, shard_size=1000, **options)
    files = sorted((tmp_path / "whole").glob("rows-*"))
    assert len(files) > 2
    (tmp_path / "resumed" / files[1].name).unlink()
    hookscope.extract(gpt2, tmp_path / "resumed", shard_size=1000, resume=True, **options)
    for file in (tmp_path / "whole").glob("*.*"):
        assert (tmp_path / "resumed" / file.name).read_bytes() == file.read_bytes(), file.name
    numbers = [entry["row"] for entry in hookscope.load(tmp_path / "whole").inputs]
    assert numbers == list(range(37))


def test_long_texts_are_cut_on_request(tmp_path: Path, bert: str, lines: Path) -> None:
    hookscope.extract(
        bert, tmp_path / "out", layers="bert.encoder.layer.0", input=str(lines), reduce="last",
        max_tokens=5,
    )  # fmt: skip
    tokens = [entry["tokens"] for entry in hookscope.load(tmp_path / "out").inputs]
    assert max(tokens) == 5 and min(tokens) < 5


MISTAKES = {
    "no_column": ("a.jsonl", '{"body": "x"}\n', "No line of 'a.jsonl' has a field 'text'."),
    "json": ("a.jsonl", '{"text": "x"}\n{"text": \n', "Line 2 of 'a.jsonl' is not valid JSON"),
    "number": ("a.jsonl", '{"text": 3}\n', "The field 'text' in line 1 of 'a.jsonl' is a number"),
    "null": ("a.jsonl", '{"text": null}\n', "The field 'text' in line 1 of 'a.jsonl' is null"),
    "list": ("a.jsonl", "[1]\n", "Line 1 of 'a.jsonl' is a list, not an object"),
    "empty": ("a.txt", "x\n \ny\n", "Line 2 of 'a.txt' is empty."),
    "empty_json": ("a.jsonl", '{"text": "x"}\n\n"y"\n', "Line 2 of 'a.jsonl' is empty."),
    "empty_field": ("a.csv", 'text,n\nx,1\n"",2\n', "Row 2 of 'a.csv' is empty."),
    "csv_column": ("a.csv", "body,n\nx,1\n", "'a.csv' has no column 'text'."),
    "csv_ragged": ("a.csv", "text,n\nx,1\ny\n", "Line 3 of 'a.csv' has 1 fields, but the header"),
    "bytes": ("a.txt", "x\n\udcff\n", "Line 2 of 'a.txt' is not UTF-8 text"),
    "nothing": ("a.txt", "\n\n", "'a.txt' contains no texts."),
    "parquet": ("a.parquet", "no table", "'a.parquet' cannot be read as Parquet"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_a_file_are_named_by_number(
    tmp_path: Path, gpt2: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file, content, message = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    Path(file).write_text(content, errors="surrogateescape")
    with pytest.raises(InputError) as raised:
        hookscope.extract(gpt2, "out", layers="transformer.h.0", input=file, reduce="last")
    assert message in str(raised.value)


def test_bad_lines_can_be_skipped(tmp_path: Path, gpt2: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "Paris is"}\n{\n{"text": "Berlin"}\n')
    hookscope.extract(
        gpt2, tmp_path / "o", layers="transformer.h.0", input=f"{tmp_path}/a.jsonl", reduce="last",
        skip_bad=True,
    )  # fmt: skip
    rows = the_rows(tmp_path / "o")
    assert np.isnan(rows).any(1).tolist() == [False, True, False]
    expected = alone(gpt2, "transformer.h.0", ["Paris is", "Berlin"])
    np.testing.assert_allclose(rows[[0, 2]], torch.stack([t[-1] for t in expected]), atol=2e-6)
    assert "Line 2" in hookscope.load(tmp_path / "o").inputs[1]["skipped"]


def test_texts_of_different_length_need_a_reduction_over_tokens(
    tmp_path: Path, gpt2: str, lines: Path
) -> None:
    for reduce, layer in ((None, "h.0"), ("flatten", "h.0"), ("mean:all", "h.0")):
        with pytest.raises(LayerError, match="differ in length"):
            hookscope.extract(
                gpt2, tmp_path / "o", layers=f"transformer.{layer}", input=str(lines), reduce=reduce
            )


def test_the_command_reads_a_column(run: Run, tmp_path: Path, gpt2: str) -> None:
    rows = "".join(json.dumps({"body": text}) + "\n" for text in TEXTS)
    (tmp_path / "reviews.jsonl").write_text(rows)
    args = ("extract", gpt2, "--layer", "transformer.h.0", "--reduce", "mean", "--input")
    result = run(*args, "reviews.jsonl:body", cwd=tmp_path)
    assert result.rc == 0, result.stderr
    assert "37" in result.stdout
    wrong = run(*args, "reviews.jsonl", "--force", cwd=tmp_path)
    assert wrong.rc == 2
    assert "has a field 'text'" in wrong.stderr
    missing = run(*args, "review.jsonl:body", "--force", cwd=tmp_path)
    assert "reviews.jsonl" in missing.stderr and missing.rc == 2


def test_a_mask_of_a_dataset_is_honoured(tmp_path: Path, bert: str) -> None:
    loaded = hookscope.load_model(bert)
    assert loaded.own_text is not None
    batch = loaded.own_text.run(TEXTS[:6])
    items = [{name: tensor[i] for name, tensor in batch.items()} for i in range(6)]

    class Items(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            return items[index]

    layer = "bert.encoder.layer.1"
    hookscope.extract(bert, tmp_path / "o", layers=layer, input=Items(), reduce="mean", workers=0)
    seen = alone(bert, layer, TEXTS[:6])
    expected = torch.stack([tokens.double().mean(0).float() for tokens in seen])
    np.testing.assert_allclose(the_rows(tmp_path / "o"), expected, rtol=0, atol=2e-6)


def test_capture_names_the_command_that_reads_tables(run: Run) -> None:
    wrong = run("capture", "resnet18", "--input", "reviews.jsonl:body")
    assert wrong.rc == 2
    assert "hookscope extract" in wrong.stderr
