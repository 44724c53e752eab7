"""Texts for a model: a tokenizer from a file or a folder, a chat template, several lines."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

import hookscope
from hookscope.errors import InputError
from hookscope.specs.input_spec import parse_inputs
from tests import tiny_language
from tests.language.conftest import PROMPT

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(400, 8)
        self.scores = nn.Linear(8, 400)

    def forward(self, {parameters}):
        return self.scores(self.embed({ids}))
"""
TEMPLATE = (
    "{% for message in messages %}<eos>{{ message.role }} {{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %} answer{% endif %}"
)


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(CODE.format(parameters="ids", ids="ids"))
    return f"{tmp_path / 'net.py'}:Net"


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    tiny_language.byte_level().save_pretrained(folder)
    return folder / "tokenizer.json"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_tokenizer_serves_a_model_without_one(net: str, tokenizer_file: Path, kind: str) -> None:
    path = tokenizer_file if kind == "file" else tokenizer_file.parent
    shot = hookscope.capture(net, input=PROMPT, tokenizer=path)
    [tokens] = shot.metadata["tokens"]
    ids = tiny_language.byte_level()(PROMPT[5:])["input_ids"]
    assert tokens["ids"] == [ids]
    assert tokens["texts"] == [["The", " capital", " of", " France", " is"]]
    [row] = shot.metadata["next_tokens"]  # scores of 400 classes, more than the vocabulary has
    assert row[0]["id"] == int(shot["scores/output"][0, -1].argmax())
    module = hookscope.load_model(net).module
    with torch.no_grad():
        assert torch.equal(shot["scores/output"], module(torch.tensor([ids])))


def test_arguments_by_name_get_what_the_model_has_a_parameter_for(
    tmp_path: Path, tokenizer_file: Path
) -> None:
    (tmp_path / "named.py").write_text(
        CODE.format(parameters="attention_mask=None, input_ids=None", ids="input_ids")
    )
    shot = hookscope.capture(
        f"{tmp_path / 'named.py'}:Net",
        input=[PROMPT, "text:Paris"],
        tokenizer=tokenizer_file.parent,
    )
    [tokens] = shot.metadata["tokens"]
    assert tokens["argument"] == "input_ids"
    assert tokens["padding"] == [[], [2, 3, 4]]


def test_another_tokenizer_replaces_that_of_the_folder(gpt2: str, tmp_path: Path) -> None:
    letters = tiny_language.word_piece()
    letters.save_pretrained(tmp_path / "words")
    shot = hookscope.capture(
        gpt2, input="text:Paris", tokenizer=tmp_path / "words", layers="lm_head"
    )
    assert shot.metadata["tokens"][0]["texts"][0][0] == "[CLS]"


def test_a_chat_template_is_applied_once(tmp_path: Path) -> None:
    spec = tiny_language.gpt2(tmp_path / "chat", chat_template=TEMPLATE)
    shot = hookscope.capture(spec, input="text:Paris", chat=True, layers="lm_head")
    [texts] = shot.metadata["tokens"][0]["texts"]
    assert "".join(texts) == "<eos>user Paris answer"
    assert shot.metadata["options"]["chat"] is True


@pytest.mark.parametrize("given", ["text:Paris", None, "ints:1x3:0-9", torch.zeros(1, 3).long()])
def test_without_a_template_or_a_text_a_chat_is_an_error(gpt2: str, given) -> None:
    named = "template" if isinstance(given, str) and given.startswith("text") else "chat"
    with pytest.raises(InputError, match=named):
        hookscope.capture(gpt2, input=given, chat=True)


def test_lines_of_a_file_are_a_padded_batch(gpt2: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text(f"{PROMPT[5:]}\n\nParis\n", encoding="utf-8")
    shot = hookscope.capture(gpt2, input=f"lines:{file}", layers="lm_head")
    both = hookscope.capture(gpt2, input=[PROMPT, "text:Paris"], layers="lm_head")
    assert shot.metadata["tokens"] == both.metadata["tokens"]
    assert torch.equal(shot["lm_head/output"], both["lm_head/output"])
    entries = shot.metadata["inputs"]
    assert entries[-1]["spec"] == f"lines:{file}:3"
    assert entries[-1]["sha256"] == hashlib.sha256(b"Paris").hexdigest()


def test_one_line_can_be_chosen(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\nthree", encoding="utf-8-sig")
    assert [spec.rest for spec in parse_inputs([f"lines:{file}"])] == ["one", "three"]
    assert [spec.rest for spec in parse_inputs([f"lines:{file}:3"])] == ["three"]


@pytest.mark.parametrize(
    ("content", "spec", "named"),
    [
        (b"\n \n", "lines:{}", "prompts.txt"),
        (b"one", "lines:{}:2", "line 2"),
        (b"\xff\xfe", "lines:{}", "byte 0"),
        (None, "lines:{}", "prompts.txt"),
    ],
)
def test_lines_that_cannot_be_read_are_an_error(
    content: bytes | None, spec: str, named: str, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=named):
        parse_inputs([spec.format(file)])


def test_what_is_no_tokenizer_or_has_no_padding_token_is_an_error(net: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("{}")
    tokenizer = tiny_language.byte_level()
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.save(str(tmp_path / "padding token"))
    for name in ("missing", "empty", "text", "padding token"):
        with pytest.raises(InputError, match=name):
            hookscope.capture(net, input=[PROMPT, "text:Paris"], tokenizer=tmp_path / name)
