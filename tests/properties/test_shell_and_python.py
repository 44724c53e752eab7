"""A command and its function do the same: the document, the files, and what they refuse."""

from __future__ import annotations

import json

import pytest

from hookscope.files import strict_json
from tests.properties.conftest import Workplace
from tests.properties.minimal_requests import REQUESTS
from tests.properties.python_calls import (
    FUNCTIONS,
    called,
    document_of,
    without_times,
    written_in,
)
from tests.properties.test_requests import name_of

CALLS = {pair: words for pair, words in REQUESTS.items() if pair[0] in FUNCTIONS}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pair", CALLS, ids=name_of)
def test_a_command_and_its_function_give_the_same(
    workplace: Workplace, pair: tuple[str, str]
) -> None:
    name, words = pair[0], CALLS[pair]
    by_shell = workplace.shell(name, f"{words} --json --quiet")
    document = json.loads(by_shell.out)
    written = document.get("file") or written_in(words)
    result = called(name, words, written)
    by_python = json.loads(strict_json.dumps(document_of(name, result, written)))
    assert without_times(by_python) == without_times(document)
    assert by_shell.status == int(not getattr(result, "ok", getattr(result, "same", True)))
    files = workplace.take_files()
    assert files.keys() == by_shell.files.keys()
    assert not [name for name in files if files[name] != by_shell.files[name]]
