"""Whatever is damaged in a folder of results, the run that wrote it mends it to the same bytes."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import hookscope
from hookscope.errors import HookscopeError
from hookscope.stores.features import folder
from hookscope.stores.features.location import Location

from .conftest import contents, flip_last_bit, leave_unfinished
from .conftest import extract_six_rows as extract
from .test_manifest import flipped

SHARD = "rows-00000002.safetensors"
INDEX, TABLE = "features.safetensors.index.json", "inputs.jsonl"
KINDS = {"rows": {}, "statistics": {"stats_only": True}, "pca": {"reduce": "pca:2"}}


class Case(NamedTuple):
    """What is done to a folder, the rows that are kept if it is known, and of which runs."""

    damage: Callable[[Path], object]
    kept: int | None
    kinds: tuple[str, ...] = ("rows",)
    lacks: int | None = None  # the first row that an interrupted run has not finished
    named: str = ""  # in a warning


def lose(*names: str) -> Callable[[Path], object]:
    return lambda out: [(out / name).unlink() for name in names]


def write(data: bytes, *names: str) -> Callable[[Path], object]:
    return lambda out: [path.write_bytes(data) for name in names for path in out.glob(name)]


def alter(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda out: (out / name).write_bytes(change((out / name).read_bytes()))


def flip(name: str) -> Callable[[Path], object]:
    return lambda out: flip_last_bit(out / name)


def leave_halves(out: Path) -> None:
    """What killed processes had half written, and one that was writing away such a half."""
    half = "..statistics.safetensors.part.x1.part"
    for name in (".parts/.00000004.json.part", ".manifest.json.part", f".{SHARD}.part"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("")
    (out / half).mkdir()
    (out / half / ".tmpXYZ").write_bytes(b"half")


def both(*damages: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda out: [damage(out) for damage in damages]


PLAN, PART, PARTS = ".parts/plan.json", ".parts/00000000.json", ".parts/0*.json"
MANIFEST, FITTED, ALL = "manifest.json", "pca.safetensors", tuple(KINDS)
TEXTS = [b"", b"{", b"[" * 100_000, b"{}", b"null", b'{"rows": 6}']
CASES = {
    **{f"manifest {t[:9]}": Case(write(t, MANIFEST), 6, ALL, None, MANIFEST) for t in TEXTS},
    "manifest missing": Case(lose(MANIFEST), 6, ALL),
    "manifest and index": Case(write(b"{", MANIFEST, INDEX), 0, named=MANIFEST),
    "table missing": Case(lose(TABLE), None, ALL),
    "table cut": Case(alter(TABLE, lambda data: data[:-9]), None, ALL),
    "table no text": Case(alter(TABLE, lambda data: b"\xff\n" + data), None, ALL),
    "table no rows": Case(write(b"[]\n3\n" * 3, TABLE), None, ALL),
    "table changed": Case(alter(TABLE, lambda data: data.replace(b'm": 3', b'm": 8')), 4),
    "shard missing": Case(lose(SHARD), 4),
    "shard flipped": Case(flip(SHARD), 4),
    "halves": Case(leave_halves, 6, ALL),
    "halves of a begun run": Case(leave_halves, 4, ("rows", "pca"), 4),
    "fitted missing": Case(lose(FITTED), 6, ("pca",)),
    "fitted flipped": Case(flip(FITTED), 6, ("pca",)),
    "fitted missing in a begun run": Case(lose(FITTED), 4, ("pca",), 2),
    "fitted cut in a begun run": Case(alter(FITTED, lambda data: data[:40]), 4, ("pca",), 2),
    "fitted flipped in a begun run": Case(flip(FITTED), 4, ("pca",), 2),
    "plan": Case(write(b"{", PLAN), 4, lacks=4, named=PLAN),
    "plan and index": Case(both(write(b"{", PLAN), lose(INDEX)), 0, lacks=4, named=PLAN),
    "all parts": Case(write(b"{", PARTS), 4, lacks=4, named=PART),
    "all parts and index": Case(both(write(b"{", PARTS), lose(INDEX)), 0, lacks=4, named=PART),
    "part without text": Case(write(b"", PART), 2, lacks=2),
    "part of a list": Case(write(b"[]", PART), 2, lacks=2),
    "part of a number": Case(write(b"3", PART), 2, lacks=2),
    "part without a file": Case(write(b'{"first": 0}', PART), 2, lacks=2),
}
PAIRS = [(name, kind) for name, case in CASES.items() for kind in case.kinds]


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_a_damaged_folder_is_mended(tmp_path, caplog, name: str, kind: str) -> None:
    case, out, options = CASES[name], tmp_path / "out", KINDS[kind]
    extract(out, **options)
    whole = contents(out)
    if case.lacks is not None:
        leave_unfinished(out, case.lacks)
    case.damage(out)
    damaged = contents(out)
    if case.lacks is not None or name.startswith("manifest"):
        with pytest.raises(HookscopeError):
            hookscope.load(out)
    told = {"fitted": FITTED, "table": TABLE, "shard": SHARD}.get(name.split()[0])
    if told and case.lacks is None:
        assert [damage.file for damage in hookscope.verify(out).damages] == [told]
    with pytest.raises(HookscopeError):  # neither mended nor replaced without being told so
        extract(out, **options)
    assert contents(out) == damaged
    with caplog.at_level(logging.WARNING, "hookscope"):
        done = extract(out, resume=True, **options)
    assert case.kept in (None, done.resumed)
    assert contents(out) == whole and {path.name for path in out.iterdir()} == set(whole)
    assert case.named in caplog.text


class Dying(Location):
    """A folder in which only a limited number of files can be removed."""

    def __init__(self, word: Path, files: int) -> None:
        super().__init__(str(word))
        self.left = iter(range(files))

    def remove(self, name: str) -> None:
        next(self.left)
        super().remove(name)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_while_it_clears_the_folder_it_may_begin_again(tmp_path, kind: str) -> None:
    out = tmp_path / "out"
    extract(out, **KINDS[kind])
    whole = contents(out)
    for number in range(len(whole)):
        for word in ("resume", "force"):
            broken = tmp_path / f"{word}{number}"
            shutil.copytree(out, broken)
            with pytest.raises(StopIteration):
                folder.clear_folder(Dying(broken, number))
            extract(broken, **KINDS[kind], **{word: True})
            assert contents(broken) == whole


@pytest.mark.parametrize("name", ["plan.json", "00000000.json", "fitted.json"])
def test_a_flipped_bit_in_what_is_known_of_parts_does_not_change_the_result(
    tmp_path: Path, name: str
) -> None:
    begun = tmp_path / "begun"
    extract(begun, reduce="pca:2")
    whole = contents(begun)
    leave_unfinished(begun, 4)
    data = (begun / ".parts" / name).read_bytes()
    for number, changed in enumerate(flipped(data, max(len(data) // 12, 1), 1)):
        out = tmp_path / str(number)
        shutil.copytree(begun, out)
        (out / ".parts" / name).write_bytes(changed)
        extract(out, reduce="pca:2", resume=True)
        assert contents(out) == whole


def test_a_damaged_manifest_lets_no_other_command_go_on(tmp_path: Path) -> None:
    extract(tmp_path / "out")
    (tmp_path / "out" / "manifest.json").write_text("{")
    with pytest.raises(HookscopeError, match=r"batch was 2\b.* 3 "):
        extract(tmp_path / "out", batch=3, resume=True)
