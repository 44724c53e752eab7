"""Tokens are shown as they stand in a text, and words that a tokenizer does not know are named."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import hookscope
from hookscope import load_model as load
from hookscope.errors import InputError
from hookscope.sources.loaded import Vocabulary
from hookscope.sources.transformers.text_inputs import vocabulary_of
from tests import tiny_language

LINE = tiny_language.LINE


def byte_level() -> Vocabulary:
    return vocabulary_of(tiny_language.byte_level())


def metaspace() -> Vocabulary:
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False)
    tokenizer.train_from_iterator([LINE] * 9, trainer)
    return vocabulary_of(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


@pytest.mark.parametrize("make", [byte_level, metaspace])
def test_the_tokens_of_a_text_join_to_the_text(make: Callable[[], Vocabulary]) -> None:
    vocabulary = make()
    ids = vocabulary.encode(LINE)
    assert len(ids) < len(LINE) / 2
    assert "".join(vocabulary.texts(ids)).strip() == LINE
    assert vocabulary.text(vocabulary.token(" capital")) == " capital"


def test_a_part_of_a_character_has_its_name() -> None:
    vocabulary = byte_level()
    ids = vocabulary.encode("é")
    assert vocabulary.texts(ids) == ("Ã", "©")
    assert vocabulary.decode(ids) == "é"


def test_special_tokens_and_ids_outside_the_vocabulary_have_names() -> None:
    vocabulary = byte_level()
    assert (vocabulary.text(0), vocabulary.special) == ("<eos>", {0, 1})
    assert vocabulary.text(100_000) == "<100000>"


@pytest.mark.parametrize(
    ("text", "subject"),
    [(" Pariser", "' Paris' [+] 'er'"), ("", "no tokens"), ("Berlin", "' Berlin'")],
)
def test_a_text_of_several_tokens_is_refused_and_a_missing_space_suggested(
    text: str, subject: str
) -> None:
    with pytest.raises(InputError, match=subject):
        byte_level().token(text)


def test_a_word_that_is_not_in_the_vocabulary_is_refused(repo: Path) -> None:
    loaded = load(f"hf:{repo / 'sample_models' / 'capitals'}")
    assert loaded.own_text is not None and loaded.own_text.vocabulary is not None
    vocabulary = loaded.own_text.vocabulary
    assert vocabulary.text(vocabulary.token("<unk>")) == "<unk>"
    with pytest.raises(InputError, match="Zebra"):
        vocabulary.token(" Zebra")


CAPITALS = "hf:sample_models/capitals"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [x.getMessage() for x in caplog.records if x.levelno == logging.WARNING]


@pytest.mark.parametrize("text", ["the capital of Italy is", "the capital of <unk> is"])
def test_known_words_are_not_named(caplog: pytest.LogCaptureFixture, text: str) -> None:
    hookscope.capture(CAPITALS, input=f"text:{text}", layers="model.norm")
    assert warnings_of(caplog) == []


def test_words_of_many_texts_are_named_once_and_only_the_first_few(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    table = tmp_path / "texts.csv"
    words = [f"x{n}" for n in range(12)] * 2
    table.write_text("text\n" + "\n".join(f"the capital of {word} is" for word in words))
    folder = tmp_path / "features"
    hookscope.extract(CAPITALS, folder, input=table, layers="model.norm", batch=24)
    messages = warnings_of(caplog)
    assert [message[:5] for message in messages] == [f"'x{n}' " for n in range(5)]
    assert ["Further words" in message for message in messages] == [False] * 4 + [True]
