"""The file of a picture: its format, its mark, its bytes, and whether it may be replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

import hookscope
from hookscope.errors import RequestError
from hookscope.files import output_path as outputs
from hookscope.hooks.capture import Capture
from tests.processes import run_python

BEGINNINGS = {".png": b"\x89PNG", ".jpg": b"\xff\xd8\xff", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.fixture
def file(repo: Path) -> Path:
    return repo / "sample_models" / "five.safetensors"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("ending", BEGINNINGS)
@pytest.mark.parametrize("kind", ["maps", "hist", "flow", "heat"])
def test_the_same_picture_gives_the_same_bytes(file, tmp_path, ending, kind) -> None:
    written = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}{ending}"
        size = hookscope.plot(file, "conv1", kind=kind).save(path)
        written.append(path.read_bytes())
        assert len(written[-1]) == size
    assert written[0] == written[1]
    assert written[0].startswith(BEGINNINGS[ending])


@pytest.mark.sampled(8)
@pytest.mark.slow
@pytest.mark.parametrize("ending", BEGINNINGS)
@pytest.mark.parametrize(
    "words",
    [
        ("filters", "sample_models/digits.py:trained", "conv1"),
        ("plot", "{attention}", "--kind", "attention", "--dark"),
    ],
    ids=["filters", "attention"],
)
def test_the_same_command_writes_the_same_bytes(run, repo, tmp_path, ending, words) -> None:
    attention = Capture()
    weights = torch.rand(1, 4, 6, 6, generator=torch.Generator().manual_seed(0)).softmax(-1)
    attention.put(weights, module="a", type="A", call=1, what="attention", kind="attention")
    attention.save(tmp_path / "attention.safetensors")
    typed = [word.format(attention=tmp_path / "attention.safetensors") for word in words]
    written = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}{ending}"
        assert run(*typed, "-o", path, cwd=repo).rc == 0
        written.append(path.read_bytes())
    assert written[0] == written[1]
    assert written[0].startswith(BEGINNINGS[ending])


@pytest.mark.parametrize("ending", BEGINNINGS)
def test_a_picture_of_ours_may_be_replaced_and_no_other(file, tmp_path, ending) -> None:
    path = tmp_path / f"a{ending.upper()}"
    hookscope.plot(file, "conv1").save(path)
    assert outputs.check_output(path, suffix=outputs.picture_ending(path)) is True
    whole = path.read_bytes()
    for other in (b"", whole.replace(b"hookscope", b"somebody!"), b"hookscope" * 1000):
        path.write_bytes(other)
        with pytest.raises(RequestError, match="was not written by hookscope"):
            outputs.check_output(path, suffix=ending)


def test_other_endings_are_refused(file, tmp_path) -> None:
    for name in ("a.gif", "a", "a.png.gz"):
        with pytest.raises(RequestError, match="not have the extension of a picture") as caught:
            hookscope.plot(file).save(tmp_path / name)
        assert ".png, .jpg, .jpeg, .svg or .pdf" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_dpi_is_pixels_an_inch(file, tmp_path) -> None:
    drawing = hookscope.plot(file)
    for dpi in (50, 100):
        drawing.save(tmp_path / "a.png", dpi)
        sides = [round(side * dpi) for side in drawing.figure.get_size_inches()]
        with Image.open(tmp_path / "a.png") as image:
            assert image.size == pytest.approx(sides, abs=1)


def test_the_users_own_settings_of_matplotlib_change_nothing(file, tmp_path, monkeypatch) -> None:
    import matplotlib

    hookscope.plot(file, "conv1").save(tmp_path / "a.png")
    loud = {"figure.facecolor": "red", "font.size": 30, "image.cmap": "jet", "axes.grid": True}
    with matplotlib.rc_context(loud):
        hookscope.plot(file, "conv1").save(tmp_path / "b.png")
        assert matplotlib.rcParams["font.size"] == 30  # and they are left as they were
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_the_command_draws_without_torch_and_without_a_window(file, tmp_path) -> None:
    code = (
        "import sys\nfrom hookscope.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n"
        "    print({'torch', 'matplotlib', 'matplotlib.pyplot'} & set(sys.modules))"
    )
    done = run_python("-c", code, "plot", file, "conv1", "-o", tmp_path / "a.png", status=0)
    assert done.stdout.splitlines() == [
        "conv1/output (1x16x8x8): channels 0-15 of 16",
        "{'matplotlib'}",
    ]


def test_without_matplotlib_a_sentence_tells_how_to_get_it(run, file, tmp_path, repo) -> None:
    missing = tmp_path / "missing" / "matplotlib"
    missing.mkdir(parents=True)
    (missing / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'matplotlib'\", name='matplotlib')"
    )
    path = f"{missing.parent}:{repo}"
    done = run("plot", file, env={"PYTHONPATH": path})
    assert (done.rc, done.stdout) == (1, "")
    assert "Error: A picture needs the package matplotlib, which" in done.stderr
    assert 'pip install "hookscope[plot]"' in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "work").iterdir())


def test_the_command_tells_what_it_drew_wrote_and_replaced(run, file, tmp_path) -> None:
    done = run("plot", file)
    assert (done.rc, done.stdout) == (0, "value: mean and standard deviation, 4 layers\n")
    kind, wrote = done.stderr.splitlines()
    assert kind == "kind: flow (no KEY is given, so the whole file is plotted)"
    assert wrote.startswith("wrote five.plot.png (")
    assert "replacing an earlier file" in run("plot", file).stderr
    (tmp_path / "work" / "five.plot.png").write_bytes(b"a diary")
    refused = run("plot", file)
    assert refused.rc == 2 and "--force" in refused.stderr
    assert run("plot", file, "--force").rc == 0


def test_a_wrong_file_or_name_is_told_before_anything_is_written(run, file, tmp_path) -> None:
    for arguments, status, words in [
        (["none.safetensors"], 2, "Cannot read none.safetensors"),
        ([file, "conv"], 2, "Did you mean conv1"),
        ([file, "-o", "a.gif"], 2, "not have the extension of a picture"),
        ([file, "--kind", "map"], 2, "is not one of"),
        ([file, "--channels", "red"], 2, "not a list of channels"),
    ]:
        done = run("plot", *arguments)
        assert (done.rc, done.stdout) == (status, "")
        assert words in done.stderr
    assert not list((tmp_path / "work").iterdir())
