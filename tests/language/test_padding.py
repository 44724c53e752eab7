"""Padding is left out of statistics, and the values at tokens are those of each text alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hookscope
from hookscope.stores.capture_file import open_capture
from hookscope.tensors.tensor_stats import summarize
from hookscope.views.images.tensor_view import read_tensor_view
from tests.conftest import Run
from tests.language.conftest import PROMPT, SHORT

TEXTS = [PROMPT, SHORT, "text: is the capital of Germany."]
LAYERS = ["model.layers.*", "model.norm", "lm_head"]
NUMBERS = ("mean", "std", "min", "max", "norm")


@pytest.mark.parametrize("name", ["llama", "left_padded"])
def test_statistics_are_those_of_the_texts_alone(name: str, request: pytest.FixtureRequest) -> None:
    spec = request.getfixturevalue(name)
    batch = hookscope.capture(spec, input=TEXTS, layers=LAYERS, what=["input", "output"])
    alone = [hookscope.capture(spec, input=text, layers=LAYERS) for text in TEXTS]
    padding = [set(row) for row in batch.metadata["tokens"][0]["padding"]]
    assert [len(row) for row in padding].count(0) == 1  # the others are padded
    compared = 0
    for record in batch.records:
        if record.kind != "output":
            continue
        parts = []
        for row, one in enumerate(alone):
            real = [n for n in range(record.shape[1]) if n not in padding[row]]
            values = batch[record.key][row, real]
            assert torch.allclose(values, one[record.key][0], atol=1e-5)
            parts.append(one[record.key].flatten())
        expected = summarize(torch.cat(parts))
        assert record.stats.numel == expected.numel
        assert record.stats.zeros == expected.zeros
        for number in NUMBERS:
            assert getattr(record.stats, number) == pytest.approx(
                getattr(expected, number), rel=1e-4, abs=1e-5
            )
        compared += 1
    assert compared > 10


def test_attention_counts_between_tokens_only(llama: str) -> None:
    layer = "model.layers.0.self_attn"
    batch = hookscope.capture(llama, input=TEXTS, layers=layer, attention=True)
    key = f"{layer}/attention"
    alone = [
        hookscope.capture(llama, input=text, layers=layer, attention=True)[key].flatten()
        for text in TEXTS
    ]
    [record] = [record for record in batch.records if record.key == key]
    expected = summarize(torch.cat(alone))
    assert record.stats.numel == expected.numel
    assert record.stats.mean == pytest.approx(expected.mean, abs=1e-6)


def test_gradients_leave_padding_out(llama: str) -> None:
    found = hookscope.grads(llama, input=TEXTS, loss="sum", layers="model.norm", what="output")
    [record] = [record for record in found.records if record.key == "model.norm/output.grad"]
    tokens = found.metadata["tokens"][0]
    count = sum(len(row) for row in tokens["ids"]) - sum(map(len, tokens["padding"]))
    assert record.stats.numel == 24 * count


def test_a_batch_without_padding_is_summarized_whole(llama: str) -> None:
    shot = hookscope.capture(llama, input=TEXTS[0], layers="model.norm")
    assert shot.records[0].stats == summarize(shot["model.norm/output"])


def test_a_note_says_so_in_a_table_a_file_and_a_page(llama: str, run: Run, tmp_path: Path) -> None:
    words = ("--input", TEXTS[0], "--input", TEXTS[1], "--layer", "model.norm")
    done = run("capture", llama, *words, "-o", "a.safetensors", cwd=tmp_path)
    [note] = [line for line in done.stdout.splitlines() if "3 of 10 positions" in line]
    assert note in run("show", "a.safetensors", cwd=tmp_path).stdout.splitlines()
    file = open_capture(tmp_path / "a.safetensors")
    assert note in hookscope.report(tmp_path / "a.safetensors").html
    assert file.records[0].stats.numel == 7 * 24
    view = read_tensor_view(file, "model.norm/output")
    assert (view.padding, sum(bin.count for bin in view.histogram)) == (3, 10 * 24)
    shown = run("show", "a.safetensors", "model.norm", cwd=tmp_path).stdout.splitlines()
    assert "3 positions of padding" in shown[-1]


def test_a_file_keeps_every_value(llama: str, tmp_path: Path) -> None:
    shot = hookscope.capture(llama, input=TEXTS, layers="model.norm")
    shot.save(tmp_path / "a.safetensors")
    loaded = hookscope.load(tmp_path / "a.safetensors")
    assert torch.equal(loaded["model.norm/output"], shot["model.norm/output"])
    assert loaded.records[0].stats == shot.records[0].stats
