"""``hookscope show``: the real command on real files, in a pipe and in a real terminal."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hookscope
from hookscope.views.images.colors import color_scale
from hookscope.views.images.feature_maps import resize_maps
from tests.cli.test_light_imports import loaded
from tests.conftest import REPO, Finished, Run

FIVE = REPO / "sample_models" / "five.safetensors"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A capture of a small model, in bfloat16, with an entry that is not a number."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4)).bfloat16()
    images = torch.randn(2, 3, 8, 8).bfloat16()
    images[1, 0, 0, 0] = float("nan")
    with hookscope.record(model, layers=["0", "1", "3"]) as capture:
        model(images)
    path = tmp_path / "work" / "net.safetensors"
    path.parent.mkdir(exist_ok=True)
    capture.save(path)
    return path


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        'capture sample_models/digits.py:trained --layer "conv*"',
        "capture sample_models/digits.py:trained --edit conv1=zero --compare --verify",
        "grads sample_models/digits.py:trained --target 3",
        "step sample_models/two_steps.py:TwoSteps --loss sum --optimizer adam",
    ],
)
@pytest.mark.parametrize("columns", [None, "60"])
def test_a_file_shows_the_table_that_its_run_printed(
    run: Run, tmp_path: Path, line: str, columns: str | None
) -> None:
    shutil.copytree(REPO / "sample_models", tmp_path / "sample_models")
    out = tmp_path / "a.safetensors"
    env = {"COLUMNS": columns, "FORCE_COLOR": "1"} if columns else {}
    printed = run(*shlex.split(line), "-o", out, cwd=tmp_path, env=env)
    shown = run("show", out, cwd=tmp_path, env=env)
    assert (shown.rc, shown.stderr) == (0, "")
    assert shown.stdout == printed.stdout and printed.rc == 0


def test_a_key_shows_what_its_tensor_holds(run: Run, file: Path) -> None:
    done = run("show", file, "3", "--json")
    [document] = json.loads(done.stdout)["tensors"]
    tensor = hookscope.load(file)["3/output"].double()
    assert (document["key"], document["slice"], document["shape"]) == ("3/output", "", [2, 4])
    assert document["dtype"] == "bfloat16"
    assert (document["stats"]["nan"], document["first_nan"]) == (4, [1, 0])
    kept = tensor[0]
    assert document["stats"]["mean"] == pytest.approx(kept.mean().item())
    assert sum(one["count"] for one in document["histogram"]) == 4
    values = [tensor[tuple(entry["index"])].item() for entry in document["largest"]]
    assert values == [entry["value"] for entry in document["largest"]]
    assert values == sorted(kept.tolist(), key=abs, reverse=True)
    text = run("show", file, "3").stdout
    assert "first is at [1,0]" in text
    assert re.search(r"^3/output +Linear +2x4 +bfloat16 ", text, re.MULTILINE)


def test_a_slice_is_numpys(run: Run, file: Path) -> None:
    whole = hookscope.load(file)["0/output"].double().numpy()
    words = {"0[0,3]": (0, 3), "0/output[...,1:4,::2]": (..., slice(1, 4), slice(None, None, 2))}
    for document in json.loads(run("show", file, *words, "--json").stdout)["tensors"]:
        part = whole[words.pop(next(word for word in words if word.endswith(document["slice"])))]
        kept = part[np.isfinite(part)]
        assert document["shape"] == list(part.shape)
        assert document["stats"]["max"] == kept.max()
        assert document["stats"]["std"] == pytest.approx(kept.std())
    assert not words


def test_completing_keys_needs_nothing_heavy(clean_environment: dict[str, str], file: Path) -> None:
    answer = {"_HOOKSCOPE_COMPLETE": "bash_complete", "COMP_CWORD": "3"}
    answer["COMP_WORDS"] = f"hookscope show {file} 0"
    assert loaded(clean_environment, file.parent, **answer) == set()


# Maps, in a pipe and in a real terminal


def test_a_pipe_gets_shades_in_ascii(run: Run) -> None:
    done = run("show", FIVE, "relu1", "--map", "--count", "2")
    assert done.rc == 0 and done.stdout.isascii()
    maps = hookscope.load(FIVE)["relu1/output"][0, :2].double().numpy()
    lines = done.stdout.splitlines()
    assert lines[2].split() == ["0", "1"]
    place = color_scale(maps).position(resize_maps(maps, 16, 32))
    ramp = " .:-=+*#%@"
    for one, start in ((0, 0), (1, 33)):
        drawn = [line[start : start + 32].ljust(32) for line in lines[3:19]]
        assert drawn == ["".join(ramp[round(x * 9)] for x in row) for row in place[one]]


def test_strength_and_seed_choose_the_channels(run: Run) -> None:
    maps = hookscope.load(FIVE)["conv1/output"][0].double()
    strongest = maps.abs().mean(dim=(1, 2)).argsort(descending=True)[:3].tolist()
    done = run("show", FIVE, "conv1", "--map", "--by", "strength", "--count", "3")
    assert [int(word) for word in done.stdout.splitlines()[2].split()] == strongest
    first, again, other = (
        run("show", FIVE, "conv1", "--map", "--by", "random", "--count", "4", "--seed", seed).stdout
        for seed in ("1", "1", "2")
    )
    assert first == again != other


Screen = Callable[..., list[str]]


@pytest.fixture
def screen(tmp_path: Path, clean_environment: dict[str, str]) -> Iterator[Screen]:
    """Run a command in a terminal of some size and return its lines, escapes included."""
    if not shutil.which("tmux"):
        pytest.skip("tmux is not installed")
    socket = str(tmp_path / "tmux")

    def tmux(*words: str) -> str:
        line = ["tmux", "-f", "/dev/null", "-S", socket, *words]
        done = subprocess.run(
            line, env=clean_environment, capture_output=True, encoding="utf-8", check=True
        )
        return done.stdout

    def show(width: int, height: int, words: str, **env: str) -> list[str]:
        given = " ".join(f"{name}={value}" for name, value in env.items())
        size = ("-x", str(width), "-y", str(height))
        line = f"env -u COLORTERM -u TERM {given} {sys.executable} -m hookscope show {words}"
        tmux("-u", "new-session", "-d", *size, f"cd {tmp_path}; {line}; echo END; sleep 600")
        deadline = time.monotonic() + 300
        try:
            while time.monotonic() < deadline:
                text = tmux("capture-pane", "-e", "-p", "-J", "-S", "-200")
                if "END" in text:
                    return text.partition("END")[0].rstrip("\n").split("\n")
                time.sleep(0.1)
            raise AssertionError(f"nothing ended: {text}")
        finally:
            tmux("kill-server")

    yield show


def cells(lines: list[str]) -> list[list[tuple[str, str, str]]]:
    """Each character of each line with the colours it stands in, as the escapes name them."""
    front = back = ""  # which last until they are changed, over the ends of lines too
    found: list[list[tuple[str, str, str]]] = [[]]
    for code, character in re.findall(r"\x1b\[([\d;:]*)m|(.|\n)", "\n".join(lines)):
        if character == "\n":
            found.append([])
            continue
        if character:
            found[-1].append((character, front, back))
            continue
        words = (code or "0").replace(":", ";").split(";")
        while words:
            word = words.pop(0)
            if word in ("38", "48"):
                size = 4 if words[0] == "2" else 2
                color, words = ";".join(words[:size]), words[size:]
                front, back = (color, back) if word == "38" else (front, color)
            elif word in ("0", "39", "49"):
                front = "" if word != "49" else front
                back = "" if word != "39" else back
    return found


def test_a_terminal_of_true_colour_shows_each_value_in_its_colour(screen: Screen) -> None:
    lines = screen(
        80, 24, f"{FIVE} relu1 --map --channels 3", COLORTERM="truecolor", TERM="xterm-256color"
    )
    maps = hookscope.load(FIVE)["relu1/output"][0, 3:4].double().numpy()
    height = sum("▀" in line for line in lines)
    rows, wide = 2 * height, sum(c == "▀" for c, _, _ in cells(lines)[3])
    assert rows == wide and rows % 8 == 0  # square, and each value so many cells wide
    expected = color_scale(maps).paint(resize_maps(maps, rows, wide))[0]
    for i, line in enumerate(cells(lines)[3 : 3 + height]):
        for j, (_, front, back) in enumerate(line):
            assert front == "2;" + ";".join(map(str, expected[2 * i, j]))
            assert back == "2;" + ";".join(map(str, expected[2 * i + 1, j]))


def test_256_colours_are_used_where_there_are_no_more(screen: Screen) -> None:
    lines = screen(80, 24, f"{FIVE} relu1 --map", TERM="screen-256color")
    drawn = [cell for line in cells(lines) for cell in line if cell[0] == "▀"]
    assert drawn and {color[:2] for _, *both in drawn for color in both} == {"5;"}


@pytest.mark.parametrize("env", [{"TERM": "xterm"}, {"TERM": "dumb"}, {"NO_COLOR": "1"}], ids=str)
def test_with_fewer_colours_there_are_shades(screen: Screen, env: dict[str, str]) -> None:
    given = {"TERM": "xterm-256color", "COLORTERM": "truecolor"} if "NO_COLOR" in env else {}
    text = "\n".join(screen(80, 24, f"{FIVE} relu1 --map", **given, **env))
    assert "▀" not in text and re.search(r"\| \.:-=\+\*#%@\|", text)


def test_an_ascii_terminal_gets_ascii(screen: Screen) -> None:
    given = {"PYTHONIOENCODING": "ascii", "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    assert "".join(screen(80, 24, f"{FIVE} relu1 --map", **given)).isascii()


@pytest.mark.parametrize(("width", "height"), [(40, 12), (80, 24), (132, 50)])
@pytest.mark.parametrize("words", ["relu1 --map", "relu1 --map --count 3", "'relu1[0,2]' --map"])
def test_maps_fill_the_window_and_keep_within_it(
    screen: Screen, width: int, height: int, words: str
) -> None:
    lines = screen(width, height, f"{FIVE} {words}", COLORTERM="truecolor", TERM="xterm-256color")
    drawn = [line for line in lines if "▀" in line]
    widths = [len(line) for line in cells(lines)]
    assert max(widths) <= width
    # Sixteen maps of eight columns, the narrowest that is drawn, may run past a small window.
    if (words, width) != ("relu1 --map", 40):
        assert len(lines) < height
    assert max(widths) > width / 2 or len(drawn) * 2 > height - 6


@pytest.mark.parametrize("width", [40, 80, 120])
def test_values_fit_the_terminal(screen: Screen, width: int) -> None:
    lines = screen(width, 60, f"{FIVE} conv2", TERM="xterm-256color")
    assert any("█" in line for line in lines)
    assert max(map(len, cells(lines))) <= width
    assert any("[0,0,1,7]" in line or re.search(r"\[0,\d+,\d+,\d+\]", line) for line in lines)


def test_the_last_line_of_a_capture_is_not_the_last_word(run: Run) -> None:
    done: Finished = run("show", FIVE)
    assert (done.rc, done.stderr) == (0, "")
    assert done.stdout.split()[0] == "layer"
