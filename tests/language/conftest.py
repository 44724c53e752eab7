"""Small language models, saved once for all tests."""

from __future__ import annotations

import pytest

from tests import tiny_language

PROMPT, SHORT = "text:The capital of France is", "text:Paris"


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_language.gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_language.llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def left_padded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Llama, whose tokenizer puts padding before the text."""
    return tiny_language.llama(tmp_path_factory.mktemp("left"), padding_side="left")


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_language.bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def t5(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_language.t5(tmp_path_factory.mktemp("t5"))
