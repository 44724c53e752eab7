"""The file of a picture: its format, its mark, its bytes, and whether it may be replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

import hookscope
from hookscope.errors import RequestError
from hookscope.files import output_path as outputs
from tests.processes import run_python

BEGINNINGS = {".png": b"\x89PNG", ".jpg": b"\xff\xd8\xff", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.fixture
def file(repo: Path) -> Path:
    return repo / "sample_models" / "five.safetensors"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("ending", BEGINNINGS)
@pytest.mark.parametrize("kind", ["maps", "hist", "flow", "heat", "filters"])
def test_the_same_picture_gives_the_same_bytes(file, repo, tmp_path, ending, kind) -> None:
    written = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}{ending}"
        if kind == "filters":
            drawing = hookscope.filters(repo / "sample_models/digits.safetensors", "conv1")
        else:
            drawing = hookscope.plot(file, "conv1", kind=kind)
        size = drawing.save(path)
        written.append(path.read_bytes())
        assert len(written[-1]) == size
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
        with pytest.raises(RequestError, match=path.name):
            outputs.check_output(path, suffix=ending)


@pytest.mark.parametrize("name", ["a.gif", "a", "a.png.gz"])
def test_other_endings_are_refused(file, tmp_path, name: str) -> None:
    with pytest.raises(RequestError) as caught:
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
    assert done.stdout.splitlines()[1:] == ["{'matplotlib'}"]


def test_without_matplotlib_the_extra_is_named(run, file, tmp_path, repo) -> None:
    missing = tmp_path / "missing" / "matplotlib"
    missing.mkdir(parents=True)
    (missing / "__init__.py").write_text("raise ModuleNotFoundError('no', name='matplotlib')")
    done = run("plot", file, env={"PYTHONPATH": f"{missing.parent}:{repo}"})
    assert (done.rc, done.stdout) == (1, "")
    assert 'pip install "hookscope[plot]"' in done.stderr
    assert not list((tmp_path / "work").iterdir())
