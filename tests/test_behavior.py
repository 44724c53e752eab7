"""The recorder of behaviour: the same twice, and each change is found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools.behavior import Place, main, record_examples

pytestmark = pytest.mark.exhaustive

EXAMPLES = [
    'capture sample_models/digits.py:trained --layer "conv*" --shape 1x1x8x8',
    "capture sample_models/digits.py:trained --layer nosuch",
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same examples, recorded twice in two places."""
    folder = tmp_path_factory.mktemp("recorded")
    for name in ("before", "after"):
        with Place(tmp_path_factory.mktemp(name)) as place:
            record_examples(folder / name, EXAMPLES, place)
    return folder


def compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = main(["compare", str(folder / "before"), str(folder / "after")])
    return status, capsys.readouterr().out


def test_the_same_twice_is_equal(recorded: Path, capsys) -> None:
    assert compared(recorded, capsys) == (0, "")
    text = (recorded / "before" / "terminal80" / "001.txt").read_text()
    assert "exit status 0" in text and "conv1/output F32 [1, 16, 8, 8] " in text
    assert "exit status 2" in (recorded / "before" / "pipe" / "002.txt").read_text()
    assert len(list((recorded / "before").rglob("*.txt"))) == 8


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("pipe/001.txt", "conv1/output F32", "conv1/output F31"),  # of the file that it wrote
        ("json/002.txt", "exit status 2", "exit status 1"),
        ("terminal120/001.txt", None, None),
    ],
)
def test_a_change_is_found(recorded: Path, tmp_path: Path, capsys, name, old, new) -> None:
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "after" / name
    if old is None:
        file.unlink()
    else:
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
    status, out = compared(tmp_path, capsys)
    assert status == 1
    assert out.startswith(f"== {name}\n") and out.count("== ") == 1  # no other file
    assert old is None or (old in out and new in out)
