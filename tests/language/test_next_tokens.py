"""Next tokens are the softmax after the last real position; generated text is shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import hookscope
from hookscope import load_model as load
from hookscope.errors import HookscopeError, RequestError
from tests.language.conftest import PROMPT, SHORT
from tests.tiny_language import SIZES, byte_level, save, word_piece


def logits_after(spec: str, text: str) -> torch.Tensor:
    """The logits after a text alone, by hand."""
    loaded = load(spec, weights="default")
    assert loaded.own_text is not None
    with torch.no_grad():
        logits: torch.Tensor = loaded.module(**loaded.own_text.run([text])).logits[0, -1]
    return logits


def expected(spec: str, text: str) -> list[tuple[int, float]]:
    """The five most probable next tokens after a text alone, by hand."""
    logits = logits_after(spec, text)
    shares = torch.exp(logits.double() - torch.logsumexp(logits.double(), 0))
    best = shares.argsort(descending=True)[:5].tolist()
    return [(token, float(shares[token])) for token in best]


@pytest.mark.parametrize("name", ["gpt2", "llama", "left_padded"])
def test_next_tokens_are_the_softmax_after_the_last_real_position(
    name: str, request: pytest.FixtureRequest
) -> None:
    spec = request.getfixturevalue(name)
    shot = hookscope.capture(spec, input=[PROMPT, SHORT], layers="lm_head")
    rows = shot.metadata["next_tokens"]
    vocabulary = load(spec).own_text.vocabulary  # type: ignore[union-attr]
    for row, text in zip(rows, (PROMPT[5:], SHORT[5:]), strict=True):
        by_hand = expected(spec, text)
        assert [entry["id"] for entry in row] == [token for token, _ in by_hand]
        assert [entry["probability"] for entry in row] == pytest.approx(
            [share for _, share in by_hand], abs=1e-5
        )
        assert [entry["token"] for entry in row] == [vocabulary.text(e["id"]) for e in row]
        scores = logits_after(spec, text)
        assert [e["logit"] for e in row] == pytest.approx(
            [float(scores[e["id"]]) for e in row], abs=1e-4
        )


def test_an_encoder_decoder_predicts_after_its_decoders_tokens(t5: str) -> None:
    shot = hookscope.capture(t5, input=PROMPT, layers="lm_head")
    [row] = shot.metadata["next_tokens"]
    logits = shot["lm_head/output"][0, 0].double().softmax(0)
    assert row[0]["id"] == int(logits.argmax())
    assert row[0]["probability"] == pytest.approx(float(logits.max()), abs=1e-6)


def test_masked_language_models_and_classifiers_have_no_next_tokens(bert: str) -> None:
    for spec, given in ((bert, PROMPT), ("resnet18", None)):
        shot = hookscope.capture(spec, input=given, layers=".")
        assert "next_tokens" not in shot.metadata


def test_a_capture_without_logits_has_no_next_tokens(gpt2: str, tmp_path: Path) -> None:
    body = hookscope.capture(
        load(gpt2).module.transformer, input={"input_ids": torch.ones(1, 3).long()}
    )
    assert "next_tokens" not in body.metadata


def tiny(kind: str, folder: Path) -> str:
    """A model of transformers whose width and classes are as many as its tokenizer has tokens."""
    import transformers

    tokenizer = byte_level() if kind.startswith(("GPT2", "T5")) else word_piece()
    size = len(tokenizer) + len(tokenizer) % 2
    options: dict[str, Any] = {"vocab_size": size, "num_labels": size, "pad_token_id": 1}
    if kind.startswith("GPT2"):
        options |= {"n_positions": 64, "n_embd": size, "n_layer": 2, "n_head": 2}
        options |= {"bos_token_id": 0, "eos_token_id": 0}
        config: Any = transformers.GPT2Config(**options)
    elif kind.startswith("T5"):
        options |= {"d_model": size, "d_kv": 12, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        config = transformers.T5Config(**options, decoder_start_token_id=1, eos_token_id=0)
    elif kind.startswith("DistilBert"):
        options |= {"dim": size, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
        config = transformers.DistilBertConfig(**options)
    else:
        options |= {**SIZES, "hidden_size": size, "intermediate_size": 32}
        config = transformers.BertConfig(**options, is_decoder=kind == "BertLMHeadModel")
    return save(folder, getattr(transformers, kind), config, tokenizer)


HEADLESS = ("DistilBertModel", "BertModel", "GPT2Model", "T5Model", "T5EncoderModel")
OTHER_HEADS = (
    *("BertForTokenClassification", "GPT2ForTokenClassification", "GPT2ForSequenceClassification"),
    *("BertForQuestionAnswering", "BertForPreTraining", "DistilBertForMaskedLM"),
)
GENERATORS = ("GPT2LMHeadModel", "BertLMHeadModel", "T5ForConditionalGeneration")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [*HEADLESS, *OTHER_HEADS, *GENERATORS])
def test_only_a_head_over_the_vocabulary_predicts_next_tokens(kind: str, tmp_path: Path) -> None:
    """Neither the width nor the number of classes tells: both are that of the tokens here."""
    shot = hookscope.capture(tiny(kind, tmp_path), input=PROMPT, layers=".")
    assert ("next_tokens" in shot.metadata) == (kind in GENERATORS)


@pytest.mark.parametrize("kind", ["DistilBertModel", "GPT2Model"])
def test_hidden_states_are_no_logits_to_explain(kind: str, tmp_path: Path) -> None:
    spec = tiny(kind, tmp_path)
    with pytest.raises(RequestError, match="no logits"):
        hookscope.attribute(spec, input=PROMPT)
    if kind == "GPT2Model":  # the lens applies the norm and the head, which DistilBERT lacks
        with pytest.raises(RequestError, match="logits"):
            hookscope.lens(spec, input=PROMPT)


def test_classes_are_not_named_by_tokens(tmp_path: Path) -> None:
    spec = tiny("GPT2ForTokenClassification", tmp_path)
    shown = hookscope.attribute(spec, input=PROMPT, target=3)
    assert shown.rows[0].target.text in ("3", "LABEL_3")
    with pytest.raises(HookscopeError, match="Paris"):
        hookscope.attribute(spec, input=PROMPT, target=" Paris")


def test_edits_show_next_tokens_before_and_after(gpt2: str) -> None:
    edit = "transformer.h.1.mlp=scale:40"
    shot = hookscope.capture(gpt2, input=PROMPT, layers="lm_head", edits=edit)
    clean = hookscope.capture(gpt2, input=PROMPT, layers="lm_head")
    effect = shot.metadata["effect"]["next_tokens"]
    assert effect["unedited"] == clean.metadata["next_tokens"]
    assert effect["edited"] == shot.metadata["next_tokens"] != effect["unedited"]


def test_a_page_has_the_table(gpt2: str) -> None:
    shot = hookscope.capture(gpt2, input=PROMPT, layers="lm_head")
    page = hookscope.report(shot).html
    assert "tokens after row 1" in page
    assert "next token" in shot._repr_html_()


def greedy(spec: str, text: str, steps: int) -> list[int]:
    """Greedy decoding by hand, all tokens anew for each."""
    loaded = load(spec, weights="default")
    assert loaded.own_text is not None
    ids = loaded.own_text.run([text])["input_ids"]
    new: list[int] = []
    with torch.no_grad():
        for _ in range(steps):
            following = loaded.module(input_ids=ids).logits[:, -1].argmax(-1)
            new.append(int(following))
            ids = torch.cat([ids, following[:, None]], 1)
    return new


def test_generated_text_is_greedy_decoding(gpt2: str) -> None:
    shot = hookscope.capture(gpt2, input=PROMPT, layers="lm_head", generate=4)
    [entry] = shot.metadata["generated"]
    vocabulary = load(gpt2).own_text.vocabulary  # type: ignore[union-attr]
    assert entry["ids"] == greedy(gpt2, PROMPT[5:], 4)
    assert entry["tokens"] == list(vocabulary.texts(entry["ids"]))
    assert entry["text"] == "".join(entry["tokens"])
    assert "next_tokens" not in shot.metadata


def test_an_end_of_text_token_that_ended_the_text_is_told(tmp_path: Path, gpt2: str) -> None:
    ids = greedy(gpt2, PROMPT[5:], 4)
    folder = tmp_path / "ends"
    shutil.copytree(gpt2.removeprefix("hf:"), folder)
    file = folder / "generation_config.json"
    settings = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**settings, "eos_token_id": ids[0], "pad_token_id": 0}))
    for spec, count, ended in ((f"hf:{folder}", 4, True), (gpt2, 1, False)):
        shot = hookscope.capture(spec, input=PROMPT, layers="lm_head", generate=count)
        [entry] = shot.metadata["generated"]
        assert (entry["ids"], entry["ended"]) == (ids[:1], ended)
    assert (
        "(1 token; ended "
        in hookscope.capture(
            f"hf:{folder}", input=PROMPT, layers="lm_head", generate=4
        )._repr_html_()
    )


def test_each_row_of_a_batch_has_its_text(left_padded: str) -> None:
    shot = hookscope.capture(left_padded, input=[PROMPT, SHORT], layers="lm_head", generate=3)
    texts = [entry["ids"] for entry in shot.metadata["generated"]]
    assert texts == [greedy(left_padded, text[5:], 3) for text in (PROMPT, SHORT)]


def test_an_encoder_decoder_generates_after_its_start_token(t5: str) -> None:
    shot = hookscope.capture(t5, input=PROMPT, layers="lm_head", generate=3)
    by_hand = load(t5, weights="default")
    assert by_hand.own_text is not None
    whole: Any = by_hand.module.generate(
        **by_hand.own_text.run([PROMPT[5:]]), max_new_tokens=3, do_sample=False
    )
    assert shot.metadata["generated"][0]["ids"] == whole[0, 1:].tolist()


def test_a_generate_of_a_file_without_texts_gives_ids(repo: Path) -> None:
    letters = f"{repo}/sample_models/letters.py:Letters"
    shot = hookscope.capture(letters, input="text:hello", layers="scores", generate=2)
    [entry] = shot.metadata["generated"]
    assert (len(entry["ids"]), entry["text"]) == (2, None)
    assert entry["ids"][0] == int(shot["scores/output"][0, -1].argmax())


@pytest.mark.parametrize(
    ("new", "ids", "text"),
    [
        ([5, 0, 1, 1], [5, 0], "e"),  # the end, then padding
        ([0, 1], [0], ""),
    ],
)
def test_padding_after_the_end_is_left_out(new: list[int], ids: list[int], text: str) -> None:
    from hookscope.execution.language_output import _generated
    from hookscope.sources.loaded import Vocabulary

    letters = ["<eos>", "<pad>", *"bcde"]
    vocabulary = Vocabulary(
        encode=lambda text: [letters.index(c) for c in text],
        decode=lambda ids: "".join(letters[i] for i in ids),
        name=letters.__getitem__,
        size=6,
        special=frozenset({0, 1}),
        padding=1,
    )
    entry = _generated(vocabulary, [3, 4], [3, 4, *new], {0})
    assert (entry["ids"], entry["text"], entry["ended"]) == (ids, text, True)
