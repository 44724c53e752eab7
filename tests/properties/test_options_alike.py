"""Each declared option is read alike by a command and its function, right values and wrong ones."""

from __future__ import annotations

import json
import random
import re
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import pytest

import hookscope
from hookscope.cli import error_report
from hookscope.errors import TROUBLE, RequestError
from hookscope.files import strict_json
from hookscope.specs import public
from hookscope.specs.input_spec import InputSpec
from hookscope.specs.public import Checked, in_keywords
from hookscope.specs.value_readers import CommandLineText
from tests.properties.conftest import Files, Workplace
from tests.properties.declared_values import first_request, values_of
from tests.properties.python_calls import (
    FUNCTIONS,
    called,
    document_of,
    without_times,
    written_in,
)

DRAWN = 16  # requests for each function


class Said(NamedTuple):
    """What one side says: the exit status, the document or the message, and the files."""

    status: int
    said: Any
    files: Files


def by_shell(workplace: Workplace, name: str, line: str) -> Said:
    """Run the command with ``--json``; none of its errors is spelled for Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(public, "in_keywords", lambda text, function: f"In Python: {text}")
        answer = workplace.shell(name, f"{line} --json --quiet")
    said = json.loads(answer.out) if answer.out else None
    if said is None or isinstance(said.get("failed"), str):
        message = answer.err.partition("Error: ")[2] or answer.err
        said = re.sub(r"\nSee: hookscope \w+ --help$", "", message.strip())
        function = getattr(hookscope, name)
        said = in_keywords(said, function) if hasattr(function, "options") else said
    return Said(answer.status, without_times(said), answer.files)


def by_python(
    workplace: Workplace, name: str, line: str, written: str | None, texts: bool = False
) -> Said:
    """Call the function, and save its result where the command did."""
    try:
        result = called(name, line, written, texts)
        said = json.loads(strict_json.dumps(document_of(name, result, written)))
        status = int(not getattr(result, "ok", getattr(result, "same", True)))
    except Exception as error:
        fault = error_report.explain_error(error)
        said = f"{fault.message}\n{fault.hint}".strip()
        status = TROUBLE if name == "diff" else fault.status
        function = getattr(hookscope, name)
        said = in_keywords(said, function) if hasattr(function, "options") else said
    return Said(status, without_times(said), workplace.take_files())


def plain(value: Any) -> Any:
    """A value of a group as data, with the texts of parsed inputs."""
    if isinstance(value, InputSpec | CommandLineText):
        return str(getattr(value, "text", value))
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_declared_option_is_read_alike(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each value in a call that ends before it runs: what is asked, or the error.

    Python gives a value of its own, and then the text.
    """
    asked: list[Any] = []

    def end(job: Checked, **more: Any) -> None:
        groups = {name: part for name, part in job.values.items() if is_dataclass(part)}
        asked.append({name: plain(part) for name, part in groups.items()})
        raise RequestError("The options are read.")

    def read(said: Said) -> Said:
        return said._replace(said=asked.pop()) if asked else said

    monkeypatch.setattr(Checked, "__call__", end)
    monkeypatch.setattr(workplace, "take_files", dict)
    first = first_request(name)
    right, wrong = values_of(name, every=True)
    ways = [(way, True) for key in wrong for way in wrong[key]]
    ways += [(way, texts) for key in right for way in right[key] for texts in (False, True)]
    differences = []
    for way, texts in ways:
        line = f"{first} {way}"
        shell = read(by_shell(workplace, name, line))
        python = read(by_python(workplace, name, line, written_in(line), texts))
        if python != shell:
            differences.append(f"hookscope {name} {line}\n    py {python}\n    sh {shell}")
    assert not differences, "\n".join([f"{len(differences)} of {len(ways)}", *differences])


def drawn_requests(name: str) -> list[str]:
    """The least request with one to three options more, in some of which a value is wrong."""
    chance, first = random.Random(name), first_request(name)
    right, wrong = ({k: v for k, v in each.items() if v} for each in values_of(name))
    lines: list[str] = []
    while len(lines) < DRAWN and right:
        chosen = chance.sample(sorted(right), min(len(right), chance.choice((1, 1, 2, 3))))
        words = [chance.choice(right[key]) for key in chosen]
        if wrong and chance.random() < 0.4:
            words = [*words[1:], chance.choice(wrong[chance.choice(sorted(wrong))])]
        lines.append(" ".join([first, *(w for w in words if w.split()[0] not in first)]))
    return lines


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_none_of_the_drawn_requests_differs(workplace: Workplace, name: str) -> None:
    differences = []
    for line in drawn_requests(name):
        shell = by_shell(workplace, name, line)
        document = shell.said if isinstance(shell.said, dict) else {}
        python = by_python(workplace, name, line, document.get("file") or written_in(line))
        if python != shell:
            differences.append(
                f"hookscope {name} {line}\n    py {python!s:.600}\n    sh {shell!s:.600}"
            )
    assert not differences, "\n".join(differences)
