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
from tests.refusals import refused

LAYER = "transformer.h.1"


@pytest.fixture(scope="module")
def alone(gpt2: str) -> list[TextRun]:
    return run_alone(gpt2, LAYER, TEXTS)


def features_of(
    folder: Path, spec: str, reduce: str, texts: list[str] = TEXTS, layer: str = LAYER, **more: Any
) -> Any:
    """The features of texts, run in batches of eight."""
    lines = write_texts(folder / "t.jsonl", texts)
    more = {"batch": 8} | more
    hookscope.extract(spec, folder / "f", layers=layer, input=lines, reduce=reduce, **more)
    return hookscope.load(folder / "f")


def test_max_stores_where_the_maxima_are(tmp_path: Path, gpt2: str, alone: list[TextRun]) -> None:
    features = features_of(tmp_path, gpt2, "max")
    assert features[LAYER].shape == (len(TEXTS), 24)
    [key] = features.keys  # the index is no layer of its own
    index = features[f"{key}.index"]
    assert index.dtype == np.int32
    for row, one in enumerate(alone):
        assert np.array_equal(index[row], one.values.argmax(0))
        np.testing.assert_allclose(features[LAYER][row], one.values.max(0), rtol=0, atol=2e-6)
        spans = " ".join(f"{start}-{stop}" for start, stop in one.offsets)
        assert features.inputs[row]["spans"] == spans
    assert hookscope.verify(tmp_path / "f").ok


@pytest.mark.parametrize("count", [1, 3, 40])
def test_topk_over_tokens_never_chooses_padding(
    tmp_path: Path, gpt2: str, alone: list[TextRun], count: int
) -> None:
    features = features_of(tmp_path, gpt2, f"topk:{count}:tokens")
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
        spans = " ".join(f"{start}-{stop}" for start, stop in one.offsets)
        assert features.inputs[row]["spans"] == spans


@pytest.mark.parametrize("left", [False, True])
def test_padding_comes_after_nan_and_minus_infinity(left: bool) -> None:
    nan, inf = float("nan"), float("inf")
    real = torch.tensor([nan, -inf, -1.0, -1.0])
    row = torch.cat([torch.full((2,), 9.0), real] if left else [real, torch.full((2,), 9.0)])
    mask = torch.tensor([[False] * 2 + [True] * 4 if left else [True] * 4 + [False] * 2])
    shift, axes = 2 if left else 0, Axes(2, (1,), "tokens")
    for count in range(1, 8):
        word = parse_reduction(f"topk:{count}:tokens")
        reducer = make_reducer(word, "a/output", (4, 3), torch.float32, axes, varies=True)
        found = reducer(row[None, :, None].expand(1, 6, 3), mask)
        wanted = [place + shift for place in (2, 3, 1, 0)][:count]
        wanted += [-1] * (count - len(wanted))
        assert found[".index"][0].tolist() == [wanted] * 3
        assert found[""][0, 0].isnan().tolist() == [place in (-1, shift) for place in wanted]


CODE = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.same = torch.nn.Identity()
    def forward(self, ids):
        return self.same(ids.unsqueeze(-1).float())
def tokenize(texts):
    return torch.tensor([[ord(c) for c in text] for text in texts])
"""


@pytest.mark.parametrize("reduce", ["max", "topk:1:tokens"])
def test_the_first_of_equal_maxima_counts(tmp_path: Path, reduce: str) -> None:
    (tmp_path / "net.py").write_text(CODE)
    texts = ["abcb", "cc", "acbca", "a"]
    features = features_of(tmp_path, f"{tmp_path}/net.py:Net", reduce, texts, "same")
    index = features[f"{features.keys[0]}.index"][:]
    assert index.reshape(-1).tolist() == [2, 0, 1, 0]


def test_an_ambiguous_topk_names_the_one_that_works(tmp_path: Path, gpt2: str) -> None:
    with refused(LayerError, hint="topk:2:tokens"):
        features_of(tmp_path, gpt2, "topk:2")


def test_there_are_no_spans_where_no_token_is_asked_for(tmp_path: Path, gpt2: str) -> None:
    assert all("spans" not in entry for entry in features_of(tmp_path, gpt2, "mean").inputs)


def test_special_tokens_have_their_names_in_place_of_spans(tmp_path: Path) -> None:
    bert, texts = tiny_language.bert(tmp_path / "bert"), ["The capital", "of France is Paris"]
    features = features_of(tmp_path, bert, "max", texts, "bert.encoder.layer.0")
    assert features.inputs[0]["spans"] == "[CLS] 0-3 4-11 [SEP]"


def test_a_cut_text_has_the_spans_of_its_first_tokens(tmp_path: Path, gpt2: str) -> None:
    entries = list(features_of(tmp_path, gpt2, "max", max_tokens=2).inputs)
    tokens = [entry["tokens"] for entry in entries]
    assert [len(entry["spans"].split()) for entry in entries] == tokens
    assert (min(tokens), max(tokens)) == (1, 2)
