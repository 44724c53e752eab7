"""Positions of the largest values of texts, compared with each text run alone by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hookscope
from hookscope.errors import LayerError
from hookscope.extraction.axes import Axes
from hookscope.extraction.reducer import make_reducer
from hookscope.specs.extract_options import parse_reduction
from tests import tiny_language
from tests.extraction.text_oracle import TEXTS, TextRun, run_alone, write_texts

LAYER = "transformer.h.1"
TOKENS = Axes(2, (1,), "tokens")


@pytest.fixture(scope="module")
def alone(gpt2: str) -> list[TextRun]:
    return run_alone(gpt2, LAYER, TEXTS)


def reducer(spec: str, **options: Any) -> Any:
    return make_reducer(
        parse_reduction(spec), "a/output", (4, 3), torch.float32, TOKENS, varies=True, **options
    )


def test_max_stores_where_the_maxima_are(tmp_path: Path, gpt2: str, alone: list[TextRun]) -> None:
    lines = write_texts(tmp_path / "t.jsonl", TEXTS)
    hookscope.extract(gpt2, tmp_path / "f", layers=LAYER, input=lines, reduce="max", batch=8)
    features = hookscope.load(tmp_path / "f")
    index = features[f"{features.keys[0]}.index"]
    assert index.dtype == np.int32
    for row, one in enumerate(alone):
        assert np.array_equal(index[row], one.values.argmax(0))
        np.testing.assert_allclose(features[LAYER][row], one.values.max(0), rtol=0, atol=2e-6)


def test_the_index_of_a_maximum_is_no_layer_of_its_own(tmp_path: Path, gpt2: str) -> None:
    lines = write_texts(tmp_path / "t.jsonl", TEXTS)
    hookscope.extract(gpt2, tmp_path / "f", layers=LAYER, input=lines, reduce="max")
    features = hookscope.load(tmp_path / "f")
    assert len(features.keys) == 1 and features[LAYER].shape == (len(TEXTS), 24)
    assert hookscope.verify(tmp_path / "f").ok


@pytest.mark.parametrize("count", [1, 3, 40])
def test_topk_over_tokens_never_chooses_padding(
    tmp_path: Path, gpt2: str, alone: list[TextRun], count: int
) -> None:
    lines = write_texts(tmp_path / "t.jsonl", TEXTS)
    spec = f"topk:{count}:tokens"
    hookscope.extract(gpt2, tmp_path / "f", layers=LAYER, input=lines, reduce=spec, batch=8)
    features = hookscope.load(tmp_path / "f")
    key = features.keys[0]
    values, index = features[key][:], features[f"{key}.index"][:]
    assert values.shape == index.shape == (len(TEXTS), 24, count)
    for row, one in enumerate(alone):
        order = np.argsort(-one.values, axis=0, kind="stable")[:count]
        real = len(order)
        assert np.array_equal(index[row, :, :real], order.T)
        wanted = np.take_along_axis(one.values, order, 0).T
        np.testing.assert_allclose(values[row, :, :real], wanted, rtol=0, atol=2e-6)
        # A text with fewer tokens has NaN there, and the index -1.
        assert np.isnan(values[row, :, real:]).all() and (index[row, :, real:] == -1).all()


@pytest.mark.parametrize("left", [False, True])
def test_padding_comes_after_nan_and_minus_infinity(left: bool) -> None:
    nan, inf = float("nan"), float("inf")
    real = torch.tensor([nan, -inf, -1.0, -1.0])
    row = torch.cat([torch.full((2,), 9.0), real] if left else [real, torch.full((2,), 9.0)])
    mask = torch.tensor([[False] * 2 + [True] * 4 if left else [True] * 4 + [False] * 2])
    shift = 2 if left else 0
    for count in range(1, 8):
        found = reducer(f"topk:{count}:tokens")(row[None, :, None].expand(1, 6, 3), mask)
        wanted = [place + shift for place in (2, 3, 1, 0)][:count]
        wanted += [-1] * (count - len(wanted))
        assert found[".index"][0].tolist() == [wanted] * 3
        assert found[""][0, 0].isnan().tolist() == [place in (-1, shift) for place in wanted]


def test_the_first_of_equal_maxima_counts(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.same = nn.Identity()\n"
        "    def forward(self, ids):\n"
        "        return self.same(ids.unsqueeze(-1).float())\n"
        "def tokenize(texts):\n"
        "    return torch.tensor([[ord(c) for c in text] for text in texts])\n"
    )
    lines = write_texts(tmp_path / "t.jsonl", ["abcb", "cc", "acbca", "a"])
    for spec in ("max", "topk:1:tokens"):
        out = tmp_path / spec.partition(":")[0]
        hookscope.extract(f"{tmp_path}/net.py:Net", out, layers="same", input=lines, reduce=spec)
        features = hookscope.load(out)
        index = features[f"{features.keys[0]}.index"][:]
        assert index.reshape(-1).tolist() == [2, 0, 1, 0]


def test_an_ambiguous_topk_names_the_one_that_works(tmp_path: Path, gpt2: str) -> None:
    lines = write_texts(tmp_path / "t.jsonl", TEXTS)
    with pytest.raises(LayerError, match="differ in length") as raised:
        hookscope.extract(gpt2, tmp_path / "f", layers=LAYER, input=lines, reduce="topk:2")
    assert "topk:2:tokens" in str(raised.value.hint)


@pytest.mark.parametrize("reduce", ["max", "topk:1:tokens"])
def test_the_table_of_inputs_has_the_span_of_each_token(
    tmp_path: Path, gpt2: str, alone: list[TextRun], reduce: str
) -> None:
    lines = write_texts(tmp_path / "t.jsonl", TEXTS)
    hookscope.extract(gpt2, tmp_path / "f", layers=LAYER, input=lines, reduce=reduce, batch=8)
    for entry, one in zip(hookscope.load(tmp_path / "f").inputs, alone, strict=True):
        assert entry["spans"] == " ".join(f"{start}-{stop}" for start, stop in one.offsets)


def test_there_are_no_spans_where_no_token_is_asked_for(tmp_path: Path, gpt2: str) -> None:
    lines = write_texts(tmp_path / "t.jsonl", TEXTS)
    hookscope.extract(gpt2, tmp_path / "f", layers=LAYER, input=lines, reduce="mean")
    assert all("spans" not in entry for entry in hookscope.load(tmp_path / "f").inputs)


def test_special_tokens_have_their_names_in_place_of_spans(tmp_path: Path) -> None:
    bert = tiny_language.bert(tmp_path / "bert")
    lines = write_texts(tmp_path / "t.jsonl", ["The capital", "of France is Paris"])
    hookscope.extract(
        bert, tmp_path / "f", layers="bert.encoder.layer.0", input=lines, reduce="max"
    )
    first = hookscope.load(tmp_path / "f").inputs[0]
    assert first["spans"] == "[CLS] 0-3 4-11 [SEP]"


def test_a_cut_text_has_the_spans_of_its_first_tokens(tmp_path: Path, gpt2: str) -> None:
    lines = write_texts(tmp_path / "t.jsonl", TEXTS)
    hookscope.extract(gpt2, tmp_path / "f", layers=LAYER, input=lines, reduce="max", max_tokens=2)
    entries = list(hookscope.load(tmp_path / "f").inputs)
    assert [len(entry["spans"].split()) for entry in entries] == [e["tokens"] for e in entries]
