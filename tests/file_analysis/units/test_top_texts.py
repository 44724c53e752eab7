"""The token that excites a unit, compared with each text run alone by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hookscope
from hookscope.errors import RequestError
from hookscope.escapes import visible
from hookscope.views.top_inputs import top_text_sheet
from tests import tiny_language
from tests.extraction.text_oracle import TEXTS, TextRun, run_alone, write_texts

LAYERS = {"gpt2": "transformer.h.1", "bert": "bert.encoder.layer.1"}
# Characters that BERT's tokenizer knows, with one token more than [CLS] and [SEP] at least.
WORDS = ["The capital of France", "is Paris", "and Berlin is the capital of Germany."]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_language.gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_language.bert(tmp_path_factory.mktemp("bert"))


def extract(folder: Path, spec: str, texts: list[str], reduce: str | None, **options: Any) -> Path:
    """Features of texts in a file beside them."""
    layer = LAYERS["bert" if "bert" in spec else "gpt2"]
    hookscope.extract(
        spec,
        folder / "f",
        layers=layer,
        input=write_texts(folder / "t.jsonl", texts),
        reduce=reduce,
        **options,
    )
    return folder / "f"


def check_tokens(found: Any, alone: list[TextRun], texts: list[str]) -> None:
    """Compare each ranked text with the token of its largest value."""
    assert len(found.units) == 16
    for unit in found.units:
        peaks = np.array([one.values[:, unit.unit].max() for one in alone])
        for inputs, order in ((unit.most, -peaks), (unit.least, peaks)):
            # Padding changes the rounding, so equal texts up to a token may change places.
            wanted = np.abs(np.sort(order)[:8])
            assert np.abs([one.value for one in inputs]) == pytest.approx(wanted, abs=2e-6)
            for one in inputs:
                by_hand = alone[one.row]
                [position] = one.position
                assert position == by_hand.values[:, unit.unit].argmax()
                start, stop = by_hand.offsets[position]
                assert one.text == texts[one.row]
                assert one.token == (one.text[start:stop] or by_hand.tokens[position])
                assert one.value == pytest.approx(peaks[one.row], abs=2e-6)
                if start < stop:
                    assert one.span == (start, stop)


@pytest.mark.parametrize("reduce", ["max", "topk:1:tokens", "topk:3:tokens"])
@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_the_marked_token_has_the_largest_value_of_the_text_alone(
    request: Any, tmp_path: Path, model: str, reduce: str
) -> None:
    spec = request.getfixturevalue(model)
    folder = extract(tmp_path, spec, TEXTS, reduce, batch=4)
    alone = run_alone(spec, LAYERS[model], TEXTS)
    check_tokens(hookscope.top(folder, layer=LAYERS[model]), alone, TEXTS)


def test_whole_tokens_of_texts_of_one_length_are_marked_too(tmp_path: Path, gpt2: str) -> None:
    texts = [f"The capital of {name}" for name in ("France", "Paris", "Berlin", "Germany", "is")]
    alone = run_alone(gpt2, LAYERS["gpt2"], texts)
    texts = [t for t, one in zip(texts, alone, strict=True) if len(one.tokens) == 4]
    texts += [" ".join(t.split()[::-1]) for t in texts]
    alone = run_alone(gpt2, LAYERS["gpt2"], texts)
    texts = [t for t, one in zip(texts, alone, strict=True) if len(one.tokens) == 4]
    alone = [one for one in alone if len(one.tokens) == 4]
    assert len(texts) > 2
    folder = extract(tmp_path, gpt2, texts, None)
    found = hookscope.top(folder, count=8)
    for unit in found.units:
        for one in unit.most:
            by_hand = alone[one.row]
            assert one.position == (by_hand.values[:, unit.unit].argmax(),)
            assert one.span == by_hand.offsets[one.position[0]]
    assert hookscope.top(folder, by="mean").units[0].most[0].token is None


def test_a_special_token_is_named_and_lies_between_the_others(tmp_path: Path, bert: str) -> None:
    found = hookscope.top(extract(tmp_path, bert, WORDS, "max"), units=range(24))
    special = {
        one.token: (one.span, len(one.text))
        for unit in found.units
        for one in unit.most
        if one.token in ("[CLS]", "[SEP]")
    }
    assert special["[CLS]"][0] == (0, 0)
    assert special["[SEP]"][0] == (special["[SEP]"][1],) * 2


@pytest.mark.parametrize("reduce", ["mean", "first", "last"])
def test_without_positions_there_is_the_text_alone(tmp_path: Path, gpt2: str, reduce: str) -> None:
    found = hookscope.top(extract(tmp_path, gpt2, WORDS, reduce), count=2)
    assert found.by == ""
    for one in found.units[0].most:
        assert one.text == WORDS[one.row]
        assert (one.position, one.token, one.span) == (None, None, None)


def test_a_text_with_nan_is_left_out(tmp_path: Path, repo: Path) -> None:
    (tmp_path / "net.py").write_text(OWN)
    texts = write_texts(tmp_path / "t.jsonl", ["abz", "bnb", "cc"])
    for reduce, rows in (("max", [0, 2]), ("topk:1:tokens", [0, 2, 1])):
        out = tmp_path / reduce.partition(":")[0]
        hookscope.extract(f"{tmp_path}/net.py:Net", out, layers="same", input=texts, reduce=reduce)
        [unit] = hookscope.top(out).units
        # In topk, NaN comes after every other value.
        assert [one.row for one in unit.most] == rows


OWN = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.same = nn.Identity()
    def forward(self, ids):
        values = ids.unsqueeze(-1).float()
        return self.same(values.where(values != ord("n"), torch.nan))
def tokenize(texts):
    return torch.tensor([[ord(c) for c in text] for text in texts])
"""


def test_an_own_tokenizer_gives_the_number_of_the_token(tmp_path: Path, run: Any) -> None:
    (tmp_path / "net.py").write_text(OWN)
    texts = write_texts(tmp_path / "t.jsonl", ["abza", "bcb", "cc"])
    hookscope.extract(
        f"{tmp_path}/net.py:Net", tmp_path / "f", layers="same", input=texts, reduce="max"
    )
    found = hookscope.top(tmp_path / "f")
    assert [(one.text, one.position, one.token) for one in found.units[0].most] == [
        ("abza", (2,), None),
        ("bcb", (1,), None),
        ("cc", (0,), None),
    ]
    labels = [label.text for label in top_text_sheet(found, 150, visible).labels]
    assert "position 2  abza" in labels


def test_a_moved_or_changed_text_is_a_sentence_with_its_position(tmp_path: Path, gpt2: str) -> None:
    folder = extract(tmp_path, gpt2, WORDS, "max")
    write_texts(tmp_path / "t.jsonl", [WORDS[0], "is London", WORDS[2]])
    found = hookscope.top(folder, units=[0])
    by_row = {one.row: one for one in found.units[0].most}
    assert (by_row[0].text, by_row[2].text) == (WORDS[0], WORDS[2])
    assert (by_row[1].text, by_row[1].token) == (None, None) and by_row[1].position
    assert f": {tmp_path}/t.jsonl:2." in " ".join(found.notes)
    (tmp_path / "t.jsonl").unlink()
    found = hookscope.top(folder, units=[0])
    assert "3 texts" in found.notes[1]
    assert "Brackets" not in found.notes[0]
    assert found.texts and all(one.text is None for one in found.units[0].most)
    assert top_text_sheet(found, 150, visible).labels


def test_two_columns_of_one_file_are_told_apart(tmp_path: Path, gpt2: str) -> None:
    rows = [{"a": "The capital", "b": "of France"}, {"a": "is Paris", "b": "Berlin and"}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    specs = [f"{tmp_path}/t.jsonl:a", f"{tmp_path}/t.jsonl:b"]
    hookscope.extract(gpt2, tmp_path / "f", layers=LAYERS["gpt2"], input=specs, reduce="max")
    found = hookscope.top(tmp_path / "f", units=[0])
    texts = {one.row: one.text for one in found.units[0].most}
    assert texts == {0: "The capital", 1: "is Paris", 2: "of France", 3: "Berlin and"}


def test_a_direction_marks_no_token_of_maxima(tmp_path: Path, gpt2: str) -> None:
    vector = np.random.default_rng(0).normal(size=24)
    for reduce in ("max", "topk:2:tokens"):
        (tmp_path / reduce[:3]).mkdir()
        folder = extract(tmp_path / reduce[:3], gpt2, TEXTS, reduce)
        found = hookscope.top(folder, layer=LAYERS["gpt2"], direction=vector)
        features = hookscope.load(folder)
        rows = features[features.keys[0]][:].reshape(len(TEXTS), 24, -1)[:, :, 0]
        one = found.units[0].most[0]
        assert one.row == (rows @ vector).argmax() and one.text == TEXTS[one.row]
        assert one.position is None and one.token is None


def test_a_direction_of_whole_tokens_marks_the_token(tmp_path: Path, gpt2: str) -> None:
    texts = ["The", "of", "is"]
    vector = np.random.default_rng(0).normal(size=24)
    found = hookscope.top(extract(tmp_path, gpt2, texts, None), direction=vector)
    assert [one.token for one in found.units[0].most] == [
        texts[one.row] for one in found.units[0].most
    ]


@pytest.mark.parametrize(("options", "named"), [({"by": "mean"}, "mean"), ({"dim": 0}, "dim")])
def test_what_needs_all_tokens_is_refused(
    tmp_path: Path, gpt2: str, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(RequestError, match=named):
        hookscope.top(extract(tmp_path, gpt2, WORDS, "max"), **options)


def test_topk_of_maps_ranks_channels_by_their_largest_value(tmp_path: Path, repo: Path) -> None:
    spec, images = f"{repo}/sample_models/digits.py:trained", f"{repo}/sample_models/digits"
    options = {"layers": "conv2", "input": images, "workers": 0}
    hookscope.extract(spec, tmp_path / "k", reduce="topk:3:space", **options)
    hookscope.extract(spec, tmp_path / "m", **options)
    ranked, whole = (hookscope.top(tmp_path / name, layer="conv2") for name in "km")
    for unit, other in zip(ranked.units, whole.units, strict=True):
        assert [one.row for one in unit.most] == [one.row for one in other.most]
        places = [(row * 8 + column,) for row, column in (one.position for one in other.most)]
        assert [one.position for one in unit.most] == places
