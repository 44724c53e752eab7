"""Each command writes the formats that the help of its output names, and refuses all others."""

from __future__ import annotations

import json
import re

import pytest

from hookscope.cli.main import cli
from tests.properties.conftest import Workplace
from tests.properties.declared_values import first_request
from tests.properties.minimal_requests import REQUESTS
from tests.properties.python_calls import written_in

MAGIC = {
    **{".png": b"\x89PNG", ".jpg": b"\xff\xd8\xff", ".svg": b"<?xml", ".pdf": b"%PDF"},
    **{".npy": b"\x93NUMPY", ".npz": b"PK", ".parquet": b"PAR1", ".fp": b"# hookscope"},
    **{".html": b"<!doctype html>", ".json": b"{", ".sarif": b"{", ".xml": b"<?xml"},
    **{".csv": b"", ".safetensors": b"", ".txt": None, ".pt": None},
}
ONE_TENSOR = {("capture", ".npy"): "--layer conv", ("export", ".npy"): "--layer conv1"}


def endings_of(command: str) -> list[str]:
    """The endings that the help of ``--output`` names; empty for a folder."""
    about = next(o.help for o in cli.commands[command].options() if o.key == "output")
    return list(dict.fromkeys(e for e in re.findall(r"\.[a-z]+\b", about or "") if e in MAGIC))


WRITERS = [
    name
    for name, command in cli.commands.items()
    if any(option.key == "output" for option in command.options())
    and name not in ("extract", "run")  # folders
]
# Written beside the picture; of features alone, or of a training run alone; of several tensors.
OF_OTHERS = {("cam", ".safetensors"), *(("plot", end) for end in (".csv", ".json", ".html"))}
OF_OTHERS |= {("export", ".csv"), ("grads", ".npy"), ("step", ".npy")}
CASES = [
    (name, end) for name in WRITERS for end in endings_of(name) if (name, end) not in OF_OTHERS
]


def words_for(command: str, ending: str) -> str:
    """The least request with an output of that ending."""
    words = first_request(command)
    if command == "export" and ending in (".npz", ".npy", ".safetensors"):
        words = REQUESTS[command, "capture"]
    elif command == "export":
        words = REQUESTS[command, "features"]
    if (old := written_in(words)) is not None:
        words = words.replace(f"-o {old}", "")
    return f"{words} {ONE_TENSOR.get((command, ending), '')} -o out{ending}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("command", "ending"), CASES, ids="".join)
def test_a_named_format_is_written(workplace: Workplace, command: str, ending: str) -> None:
    answer = workplace.shell(command, words_for(command, ending))
    assert answer.status in (0, 1), answer.err
    data = answer.files[f"out{ending}"]
    assert data.startswith(MAGIC[ending]) and data
    if ending in (".json", ".sarif"):
        json.loads(data)
    assert f"wrote out{ending} (" in answer.err


@pytest.mark.parametrize("command", WRITERS)
def test_other_formats_are_refused(workplace: Workplace, command: str) -> None:
    known = endings_of(command)
    for ending in set(MAGIC) - set(known):
        answer = workplace.shell(command, words_for(command, ending))
        assert (answer.status, answer.out, answer.files) == (2, "", {}), ending
        assert f"out{ending}" in answer.err and any(e in answer.err for e in known)
