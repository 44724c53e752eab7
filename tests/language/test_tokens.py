"""A capture of a language model holds the tokens of its input, and views show them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import hookscope
from hookscope.errors import ResultsFileError
from hookscope.results.records import Record
from hookscope.results.tokens import sequence_dims
from hookscope.stores.capture_file import open_capture
from hookscope.views.images.tensor_view import read_tensor_view
from hookscope.views.stored_tensors import show_document
from tests.conftest import Run
from tests.language.conftest import PROMPT, SHORT

WORDS = ["The", " capital", " of", " France", " is"]


def test_the_metadata_has_ids_texts_and_padding_of_each_row(llama: str) -> None:
    shot = hookscope.capture(llama, input=[PROMPT, SHORT], layers="model.norm")
    tokenizer = hookscope.load_model(llama).own_text
    assert tokenizer is not None and tokenizer.vocabulary is not None
    [tokens] = shot.metadata["tokens"]
    short = tokenizer.vocabulary.encode("Paris")
    padding = [1] * (5 - len(short))
    assert tokens["argument"] == "input_ids"
    assert tokens["ids"] == [tokenizer.vocabulary.encode(PROMPT[5:]), short + padding]
    assert tokens["texts"] == [WORDS, ["Pa", "ris", *["<pad>"] * 3]]
    assert tokens["padding"] == [[], [2, 3, 4]]


def test_padding_may_be_before_the_text(left_padded: str) -> None:
    shot = hookscope.capture(left_padded, input=[PROMPT, SHORT], layers="model.norm")
    [tokens] = shot.metadata["tokens"]
    assert tokens["padding"] == [[], [0, 1, 2]]
    assert tokens["texts"][1][3:] == ["Pa", "ris"]


def test_ids_of_a_file_and_of_a_tensor_have_texts(gpt2: str, tmp_path: Path) -> None:
    ids = np.array([[280, 281, 282]])
    np.save(tmp_path / "ids.npy", ids)
    by_file = hookscope.capture(gpt2, input=f"input_ids={tmp_path / 'ids.npy'}", layers="lm_head")
    by_tensor = hookscope.capture(gpt2, input=torch.tensor(ids), layers="lm_head")
    vocabulary = hookscope.load_model(gpt2).own_text.vocabulary  # type: ignore[union-attr]
    for shot in (by_file, by_tensor):
        [tokens] = shot.metadata["tokens"]
        assert tokens["ids"] == ids.tolist()
        assert tokens["texts"] == [list(vocabulary.texts([280, 281, 282]))]
        assert tokens["padding"] == [[]]


def test_a_decoder_has_tokens_of_its_own(t5: str) -> None:
    shot = hookscope.capture(t5, input=PROMPT, layers=["encoder", "decoder.block.0"])
    first, second = shot.metadata["tokens"]
    assert (first["argument"], second["argument"]) == ("input_ids", "decoder_input_ids")
    assert second["texts"] == [["<pad>"]]
    names = {
        record.key: [prompt.argument for prompt in sequence_dims(record, shot.metadata).values()]
        for record in shot.records
    }
    assert names["encoder/output.last_hidden_state"] == ["input_ids"]
    assert names["decoder.block.0/output.0"] == ["decoder_input_ids"]


def test_a_model_without_text_has_no_tokens() -> None:
    shot = hookscope.capture(torch.nn.Linear(4, 2), input=torch.ones(3, 4))
    assert "tokens" not in shot.metadata


def test_a_model_with_a_tokenizer_of_its_file_has_ids(repo: Path) -> None:
    letters = f"{repo}/sample_models/letters.py:Letters"
    shot = hookscope.capture(letters, input="text:hello", layers="scores")
    [tokens] = shot.metadata["tokens"]
    assert (tokens["argument"], tokens["ids"]) == ("ids", [[ord(c) - 32 for c in "hello"]])
    assert "texts" not in tokens


@pytest.mark.parametrize(
    ("kind", "dtype", "shape", "module", "dims"),
    [
        ("output", "float32", (2, 5, 8), "h.0", [1]),
        ("output.grad", "float32", (2, 5, 8), "h.0", [1]),
        ("output", "float32", (2, 8, 5), "h.0", []),  # not the usual dimension
        ("output", "float32", (1, 5, 8), "wpe", []),  # the same for all rows
        ("output", "float32", (2, 5), "pooler", []),  # a vector of five for each row
        ("input", "int64", (2, 5), "wte", [1]),
        ("output", "float32", (2, 5, 4, 8), "h.0.q_norm", [1]),
        ("output", "float32", (2, 4, 5, 8), "h.0.attn", []),  # a cache, heads first
        ("output", "float32", (2, 5, 5, 8), "h.0.attn", []),
        ("attention", "float32", (2, 4, 5, 5), "h.0.attn", [2, 3]),
        ("param.grad", "float32", (2, 5, 8), "h.0", []),
    ],
)
def test_the_sequence_is_the_usual_dimension(
    kind: str, dtype: str, shape: tuple[int, ...], module: str, dims: list[int]
) -> None:
    rows = [[0] * 5] * 2
    metadata = {"tokens": [{"argument": "input_ids", "ids": rows, "padding": [[], []]}]}
    record = Record("k", module, "T", 1, kind, kind, shape, dtype, "cpu")
    assert list(sequence_dims(record, metadata)) == dims


def test_later_calls_of_a_generation_are_not_the_prompt(gpt2: str) -> None:
    shot = hookscope.capture(gpt2, input="text: is", generate=3, layers="lm_head")
    dims = {record.key: sequence_dims(record, shot.metadata) for record in shot.records}
    assert [bool(found) for found in dims.values()] == [True, False, False]


def test_show_and_its_json_have_the_token_of_each_entry(
    gpt2: str, tmp_path: Path, run: Run
) -> None:
    hookscope.capture(gpt2, input=PROMPT, layers="transformer.ln_f").save(
        tmp_path / "a.safetensors"
    )
    words = ("show", "a.safetensors", "transformer.ln_f")
    [tensor] = json.loads(run(*words, "--json", cwd=tmp_path).stdout)["tensors"]
    lines = run(*words, cwd=tmp_path).stdout.splitlines()
    start = next(n for n, line in enumerate(lines) if line.split()[-1:] == ["token"])
    for line, entry in zip(lines[start + 1 :], tensor["largest"], strict=False):
        assert entry["tokens"] == [WORDS[entry["index"][1]]]
        assert line.startswith("[" + ",".join(map(str, entry["index"])) + "]")
        assert line.endswith(entry["tokens"][0])


def test_attention_has_the_tokens_of_query_and_key(gpt2: str, tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    hookscope.capture(gpt2, input=PROMPT, layers="transformer.h.0.attn", attention=True).save(file)
    capture = open_capture(file)
    view = read_tensor_view(capture, "transformer.h.0.attn/attention")
    for entry in view.largest:
        assert entry.tokens == (WORDS[entry.index[2]], WORDS[entry.index[3]])
    assert "tokens" in show_document(capture, str(file), [view])["tensors"][0]["largest"][0]


def test_plots_label_positions_with_tokens(gpt2: str) -> None:
    shot = hookscope.capture(
        gpt2, input=PROMPT, layers=["transformer.ln_f", "transformer.h.0.attn"], attention=True
    )
    heat = hookscope.plot(shot, "transformer.ln_f").figure.axes[0]
    assert [label.get_text() for label in heat.get_yticklabels()] == WORDS
    maps = hookscope.plot(shot, "transformer.h.0.attn/attention").figure.axes[0]
    assert [label.get_text() for label in maps.get_yticklabels()] == WORDS
    assert [label.get_text() for label in maps.get_xticklabels()] == WORDS


def test_a_plot_of_many_positions_keeps_numbers(gpt2: str) -> None:
    ids = torch.randint(2, 300, (1, 64))
    shot = hookscope.capture(gpt2, input=torch.cat([ids], 1), layers="transformer.ln_f")
    long = hookscope.plot(shot, "transformer.ln_f").figure
    assert long.get_figheight() > 6  # one line for each of 64 tokens
    more = hookscope.capture(gpt2, input=PROMPT + " capital" * 26, attention=True)
    panel = hookscope.plot(more, "transformer.h.0.attn/attention").figure.axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["0", "30"]


def test_a_page_and_a_notebook_show_the_tokens(gpt2: str) -> None:
    shot = hookscope.capture(gpt2, input=PROMPT, layers="lm_head")
    line = "The| capital| of| France| is (5 tokens)"
    assert line in hookscope.report(shot).html
    assert line in shot._repr_html_()


@pytest.mark.parametrize(
    "change",
    [
        *({"ids": [[1, 2], [3]]}, {"ids": "no"}, {"texts": [["a"]]}),
        *({"padding": [[9]]}, {"padding": []}),
    ],
)
def test_damaged_tokens_are_an_error(change: dict, tmp_path: Path) -> None:
    shot = hookscope.capture(torch.nn.ReLU(), input=torch.ones(1, 2))
    good = {"argument": "input_ids", "ids": [[1, 2]], "padding": [[]]}
    shot.metadata["tokens"] = [good]
    shot.save(tmp_path / "good.safetensors")
    open_capture(tmp_path / "good.safetensors")
    shot.metadata["tokens"] = [good | change]
    shot.save(tmp_path / "bad.safetensors")
    with pytest.raises(ResultsFileError, match="damaged"):
        open_capture(tmp_path / "bad.safetensors")
