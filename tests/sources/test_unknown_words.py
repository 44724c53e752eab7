"""A word that a tokenizer does not know is named, because the model gets another token for it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import hookscope
from tests.conftest import Run

CAPITALS = "hf:sample_models/capitals"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [x.getMessage() for x in caplog.records if x.levelno == logging.WARNING]


def test_the_command_names_the_words(run: Run, repo: Path) -> None:
    spec = f"hf:{repo}/sample_models/capitals"
    text = "text:the capital of Atlantis and Zog is"
    done = run("capture", spec, "--input", text, "--no-output", "--layer", "model.norm")
    assert done.rc == 0
    message = "Warning: 'Atlantis', 'Zog' are not in the vocabulary; the model gets <unk> instead."
    assert message in " ".join(done.stderr.split())


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
