"""Every environment variable with a wrong value: a usage error that names it, before torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hookscope.specs.commands import COMMANDS
from tests.processes import run_python

# For keys whose values are no words of a list, numbers or pairs.
WRONG = {
    **{"output": "no/such/folder/x", "file": "no/such/folder/x", "chrome": "no/such/folder/x"},
    **{
        "weights": "no/such.pth",
        "target": "no-such.npy",
        "against": "no-such.npy",
        "input": "no-such.png",
    },
    **{"model": "no-such-model", "config": "no-such.toml", "layer": "{a"},
}
# Any word may be a type, a method, an output or a layer of some model; the columns of a table are
# known with its view, and the colour maps to matplotlib.
LATE = ("type", "method", "scores", "receptive", "sort", "colormap")
BY_FILE = [(name, "sort") for name in ("show", "similar", "probe", "top")]  # its columns vary
BY_FILE += [("lens", "model"), ("attribute", "model")]  # an argument, which is given here
FILES = ("show", "plot", "export", "verify", "report", "similar", "probe", "top")
ARGUMENTS = {
    **{name: ["no-such-file"] for name in FILES},
    **{name: ["no-such.py:Net"] for name in ("lens", "attribute")},
    "diff": ["resnet18", "alexnet"],
    "filters": ["conv1"],
    "completion": ["bash"],
}
PROBE = """
import contextlib, io, json, os, sys
from hookscope.cli.main import cli, main

name, wrong, late, by_file, arguments = json.loads(sys.argv[1])
for option in sorted(cli.commands[name].options(), key=lambda option: option.key in late):
    if [name, option.key] in by_file:
        continue
    for variable in option.envvar:
        os.environ[variable] = wrong.get(option.key, "no such thing")
        said, result = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(result):
            try:
                main([name, *arguments])
            except SystemExit as end:
                status = end.code
        del os.environ[variable]
        early = option.key in late or not {"torch", "rich"} & set(sys.modules)
        print(json.dumps([variable, status, said.getvalue(), result.getvalue(), early]))
"""


# Each starts a process for its many options; the others have options of the same kinds.
SAMPLE = {"capture", "extract", "plot", "config"}


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        name if name in SAMPLE else pytest.param(name, marks=pytest.mark.exhaustive)
        for group in COMMANDS.values()
        for name in group
    ],
)
def test_a_wrong_value_is_a_usage_error_that_names_the_variable(
    clean_environment, tmp_path: Path, command: str
) -> None:
    request = json.dumps([command, WRONG, LATE, BY_FILE, ARGUMENTS.get(command, [])])
    done = run_python("-c", PROBE, request, cwd=tmp_path, env=clean_environment, status=0)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) >= 12  # the global options have two variables each
    for variable, status, said, result, early in found:
        assert (status, result) == (2, ""), (variable, said)
        assert "Error: " in said and variable in said, (variable, said)
        assert "Traceback" not in said and "Unexpected" not in said, said
        assert early, f"{variable} is judged after torch was imported"


@pytest.mark.parametrize(
    "env",
    [
        {"_HOOKSCOPE_COMPLETE": "nonsense"},
        {"_HOOKSCOPE_COMPLETE": "tcsh_complete"},
        {"_HOOKSCOPE_COMPLETE": "bash_complete", "COMP_WORDS": "hookscope", "COMP_CWORD": "x"},
        {"_HOOKSCOPE_COMPLETE": "bash_complete", "COMP_CWORD": "1"},
    ],
)
def test_a_wrong_request_for_completion(refused, env: dict[str, str]) -> None:
    said = refused(env=env)
    assert said.startswith("Error: _HOOKSCOPE_COMPLETE is ")


def test_a_refused_request_is_told_with_what_set_its_values(run, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    file = tmp_path / "work" / "hookscope.toml"
    file.write_text("[capture]\nlayer = 'fc'\n")
    done = run("capture", env={"HOOKSCOPE_CAPTURE_OUTPUT": "no/x.npz", "HOOKSCOPE_SEED": "3"})
    assert done.rc == 2
    assert done.stderr.splitlines()[1].endswith(
        f"--layer is set by {file}. --seed is set by HOOKSCOPE_SEED. --output is set by"
        " HOOKSCOPE_CAPTURE_OUTPUT."
    )
