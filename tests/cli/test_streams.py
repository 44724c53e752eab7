"""Streams: results on stdout alone, colour by policy, ASCII for ASCII, quiet when a pipe closes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hookscope.cli.console import prepare_streams
from hookscope.cli.main import cli
from tests.processes import COMMAND, in_terminal

ESCAPE = "\x1b["
FORCED = {"FORCE_COLOR": "1"}
BUFFERED = {
    "PYTHONUNBUFFERED": ""
}  # what is left in a buffer fails last, at the interpreter's exit
on_unix = pytest.mark.skipif(sys.platform == "win32", reason="needs a Unix terminal")

TINY = """
from torch import nn, zeros
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self.add_module(":x:[red]é", nn.Identity())
    def forward(self, x):
        return getattr(self, ":x:[red]é")(self.lin(x))
def example_input():
    return zeros(1, 2)
"""


def uncolored(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir(exist_ok=True)
    file = folder / "tiny.py"
    file.write_text(TINY, encoding="utf-8")
    return file


@pytest.mark.slow
def test_what_a_model_prints_does_not_mix_with_the_result(run, tiny) -> None:
    speaking = TINY.replace(
        "    return getattr", "    print('forward speaks')\n        return getattr"
    )
    tiny.write_text(speaking, encoding="utf-8")
    done = run("capture", "tiny.py:Net", "--json")
    assert json.loads(done.stdout)["command"] == "capture"
    assert "forward speaks" in done.stderr


@pytest.mark.slow
def test_results_on_stdout_and_all_else_on_stderr(run, tiny) -> None:
    done = run("capture", "tiny.py:Net")
    assert done.rc == 0, done.stderr
    assert "lin" in done.stdout
    assert "weights: as built by tiny.py from seed 0" in done.stderr
    wrote, following = done.stderr.splitlines()[-2:]
    assert wrote.startswith("wrote Net.capture.safetensors (")
    assert following == "next: hookscope grads tiny.py:Net"
    quiet = run("capture", "tiny.py:Net", "-q")
    assert (quiet.rc, quiet.stdout, quiet.stderr) == (0, done.stdout, "")
    again = run("-v", "capture", "tiny.py:Net")
    assert again.stdout == done.stdout
    assert "replacing" in again.stderr
    steps = [line for line in again.stderr.splitlines() if re.match(r"\[ +\d+\.\d{3} s\] ", line)]
    assert [step.partition("] ")[2].split()[0] for step in steps[:1]] == ["Loading"]
    assert len(steps) >= 4


@pytest.mark.slow
def test_an_ascii_stream_gets_ascii(run, tiny) -> None:
    for arguments in (["tree", "tiny.py:Net"], ["capture", "tiny.py:Net", "--force"]):
        done = run(*arguments, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
        assert done.rc == 0, done.stderr
        assert done.stdout.isascii()
        assert r":x:[red]\xe9" in done.stdout


def test_an_ascii_stream_takes_any_error(run) -> None:
    done = run("tree", "modèle→…", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.rc == 2
    assert r"mod\xe8le->..." in done.stderr


def test_a_line_in_a_pipe_ends_with_a_newline_alone(monkeypatch) -> None:
    written = io.BytesIO()  # as Windows opens a pipe
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, newline="\r\n"))
    prepare_streams()
    sys.stdout.write("complete -F _hookscope hookscope\n")
    sys.stdout.flush()
    assert written.getvalue() == b"complete -F _hookscope hookscope\n"


@pytest.mark.parametrize(
    ("flags", "env", "colored"),
    [
        ([], {}, False),
        (["--color"], {}, True),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"FORCE_COLOR": "0"}, False),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (["--no-color"], {"FORCE_COLOR": "1"}, False),
        (["--color"], {"NO_COLOR": "1"}, True),
        ([], {"HOOKSCOPE_TREE_COLOR": "1"}, True),
        ([], {"HOOKSCOPE_COLOR": "0", "FORCE_COLOR": "1"}, False),
        (["--color"], {"TERM": "dumb"}, True),
    ],
)
def test_colour_in_a_pipe_only_when_forced(run, flags, env, colored) -> None:
    before = run(*flags, "tree", "nope", env=env)
    after = run("tree", "nope", *flags, env=env)
    assert before == after
    assert (ESCAPE in after.stderr) == colored
    assert uncolored(after.stderr).startswith("Error: ")


@pytest.mark.slow
def test_forced_colour_changes_nothing_but_colour(run) -> None:
    plain = run("models", "resnet*")
    assert ESCAPE not in plain.stdout
    for done in (run("models", "resnet*", "--color"), run("models", "resnet*", env=FORCED)):
        assert ESCAPE in done.stdout
        assert uncolored(done.stdout) == plain.stdout
        # Colours alone: neither a pipe nor a log takes cursor codes.
        assert set(re.findall(r"\x1b\[[\d;?]*([A-Za-z])", done.stdout + done.stderr)) == {"m"}
        assert "\r" not in done.stdout + done.stderr


WAITS_FOR_GO = """
import os, sys, time

class Finder:
    def find_spec(self, name, path=None, target=None):
        deadline = time.monotonic() + 300
        while name == "torch" and not os.path.exists("go"):
            time.sleep(0.01)
            if time.monotonic() > deadline:
                open("late", "w").close()
                break

sys.meta_path.insert(0, Finder())
"""


@on_unix
@pytest.mark.slow
def test_a_terminal_shows_a_status_first_and_wipes_it(tiny, clean_environment) -> None:
    # Torch is imported once the test has seen what is shown before it.
    (tiny.parent / "sitecustomize.py").write_text(WAITS_FOR_GO)
    paths = os.pathsep.join((str(tiny.parent), clean_environment["PYTHONPATH"]))
    env = clean_environment | {"PYTHONPATH": paths}

    def look(seen: bytes) -> None:
        if b"Loading torch" in seen:
            (tiny.parent / "go").touch()

    words = (*COMMAND, "tree", "tiny.py:Net")
    text = in_terminal(*words, cwd=tiny.parent, env=env, look=look).decode()
    assert not (tiny.parent / "late").exists()
    assert text.index("Loading torch") < text.index("lin")
    # Whatever was shown is wiped before anything lasting is written.
    assert "\x1b[K" in text[text.rindex("...") : text.index("Linear")]
    assert ESCAPE + "3" in text  # colours
    assert "├" in text or "└" in text


@pytest.mark.sampled(3)
@on_unix
@pytest.mark.slow
@pytest.mark.parametrize(("flag", "term"), [("-q", "xterm"), ("--json", "xterm"), ("", "dumb")])
def test_no_status_when_quiet_json_or_dumb(tiny, clean_environment, flag, term) -> None:
    words = (*COMMAND, "tree", "tiny.py:Net", *filter(None, [flag]))
    env = clean_environment | {"TERM": term}
    text = in_terminal(*words, cwd=tiny.parent, env=env).decode()
    assert "\x1b[K" not in text
    assert "Loading" not in text
    if term == "dumb":
        assert ESCAPE not in text


@on_unix
@pytest.mark.slow
def test_a_table_fits_the_terminal_and_cuts_no_name(tmp_path, clean_environment) -> None:
    words = (*COMMAND, "models", "*rcnn*", "--no-color")
    for columns, env in [(40, {}), (200, {"COLUMNS": "60"})]:
        shown = in_terminal(*words, cwd=tmp_path, env=clean_environment | env, size=(24, columns))
        text = shown.decode()
        lines = uncolored(text).replace("\r", "").replace(ESCAPE + "K", "").splitlines()
        assert 30 < max(map(len, lines)) <= int(env.get("COLUMNS", columns))
        assert any("fasterrcnn_mobilenet_v3_large_320_fpn" in line for line in lines)


def pipe_to(command: str, tail: str, env: dict[str, str], folder: Path):
    script = f'set -o pipefail; "{sys.executable}" -m hookscope {command} | {tail}'
    return subprocess.run(
        ["bash", "-c", script],
        env=env | BUFFERED,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@on_unix
@pytest.mark.parametrize(
    "command",
    ["config -q", "completion zsh", "grads --help", "show {samples}/five.safetensors --color"],
)
def test_a_closed_pipe_is_quiet_and_no_failure(repo, tmp_path, clean_environment, command) -> None:
    command = command.format(samples=repo / "sample_models")
    # true reads nothing: by the time anything is written, the pipe is closed.
    for tail in ("head -1", "true", "{ exec <&-; sleep 0.5; }"):
        done = pipe_to(command, tail, clean_environment, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["config", "models"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_an_error(
    tmp_path, clean_environment, command, unbuffered
) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, *COMMAND, command],
            env=clean_environment | {"PYTHONUNBUFFERED": unbuffered},
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr.count("Error: ") == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@on_unix
def test_closed_streams_do_no_harm(tmp_path, clean_environment) -> None:
    script = f'"{sys.executable}" -m hookscope config >&- 2>&-'
    assert subprocess.run(["sh", "-c", script], env=clean_environment, cwd=tmp_path).returncode == 0


@pytest.mark.exhaustive
def test_quiet_and_verbose_are_the_same_before_and_after(run) -> None:
    for flags in (["-q"], ["--quiet"], ["-vv"], ["--no-color"], ["--no-config"], ["--json"]):
        assert run(*flags, "config") == run("config", *flags)


def test_verbosity_adds_up(parse) -> None:
    assert parse("tree", "-v", before=["-v"]).obj.verbose == 2
    assert parse("tree", "-v").obj.verbose == 1
    assert parse("tree", before=["-vv"]).obj.verbose == 2
    assert parse("tree").obj.verbose == 0


def test_a_flag_before_the_command_beats_the_variable(parse, monkeypatch) -> None:
    monkeypatch.setenv("HOOKSCOPE_TREE_JSON", "0")
    assert parse("tree", before=["--json"]).obj.json is True
    assert parse("tree", "--no-json", before=["--json"]).obj.json is False


def test_the_global_options_stand_everywhere() -> None:
    names = {param.name for param in cli.params} - {"version"}
    assert names == {"quiet", "verbose", "json", "color", "config", "no_config"}
    for command in cli.commands.values():
        assert names <= {param.name for param in command.params}
