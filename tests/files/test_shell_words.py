"""Command lines that users copy, for shells of POSIX systems and of Windows."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookscope.files.shell_words import join_words, quote_word

words = st.text("ab \\\"'*$&|<>^(){}[]!.:/-é", max_size=8)


@given(st.lists(words, min_size=1, max_size=4))
def test_a_posix_shell_reads_the_words_back(several: list[str]) -> None:
    assert shlex.split(join_words(several, "linux")) == several


@given(words)
def test_a_program_on_windows_reads_the_word_back(word: str) -> None:
    """Python itself quotes a word with a space by the rules by which programs read it."""
    assert quote_word(f"{word} b{word}", "win32") == subprocess.list2cmdline([f"{word} b{word}"])


@pytest.mark.parametrize(
    "word",
    ["conv*", "a&b", "a|b", "a>b", "a^b", "(model)", "!*.bn1", "", "0,3,8-11", "@list.txt", "a@b"],
)
def test_a_word_that_means_something_to_a_shell_of_windows_is_in_double_quotes(word: str) -> None:
    assert quote_word(word, "win32") == f'"{word}"'


@pytest.mark.parametrize("word", [r"C:\runs\a.safetensors", "layer3.0.conv1", "lr=0.1", "-o"])
def test_a_plain_word_has_no_quotes_on_windows(word: str) -> None:
    assert quote_word(word, "win32") == word
