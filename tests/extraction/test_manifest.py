"""Files that describe a folder of results: damage is detected and repaired, names stay inside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import hookscope
from hookscope.errors import ResultsFileError, StoreError
from hookscope.stores.features import folder, manifest
from hookscope.stores.features.location import Location, parse_location

from .conftest import contents, leave_unfinished
from .conftest import extract_six_rows as extract
from .handwritten_features import ramp, write_features

SHARD = "rows-00000002.safetensors"
INDEX = "features.safetensors.index.json"
TABLES = ["manifest.json", INDEX, "inputs.jsonl"]


def flipped(data: bytes, every: int = 1, seed: int | None = None) -> Iterator[bytes]:
    """The bytes with one bit flipped in every n-th byte: each bit of it, or one at random."""
    source = np.random.default_rng(seed)
    for location in range(0, len(data), every):
        for bit in range(8) if seed is None else (int(source.integers(8)),):
            changed = bytearray(data)
            changed[location] ^= 1 << bit
            yield bytes(changed)


def notices(out: Path) -> bool:
    try:
        return not hookscope.verify(out).ok
    except StoreError as error:
        assert error.exit_code == 1
        return True


@pytest.mark.parametrize(
    ("every", "seed"), [(5, 0), pytest.param(1, None, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("name", [*TABLES, SHARD])
def test_a_flipped_bit_in_any_byte_is_noticed(tmp_path: Path, name: str, every, seed) -> None:
    extract(tmp_path / "out")
    whole = (tmp_path / "out" / name).read_bytes()
    assert not notices(tmp_path / "out")
    if name == "inputs.jsonl":
        table = tmp_path / "out" / name
        table.write_bytes(whole.replace(b'"item": 3', b'"item": 8'))
        [damage] = hookscope.verify(tmp_path / "out").damages
        assert damage.file == name and "3 to 4" in damage.problem
    for data in flipped(whole, every, seed):
        (tmp_path / "out" / name).write_bytes(data)
        assert notices(tmp_path / "out"), data


def test_no_bit_of_a_json_file_can_be_flipped_unnoticed(tmp_path: Path) -> None:
    location = parse_location(tmp_path)
    value = {"options": {"checksum": "00000000"}, "rows": 1, "spec": '\n "checksum": "00000000"'}
    folder.write_json(location, "a.json", value)
    assert folder.read_json(location, "a.json") == value
    for data in flipped((tmp_path / "a.json").read_bytes()):
        (tmp_path / "a.json").write_bytes(data)
        with pytest.raises(ResultsFileError, match=r"a\.json"):
            folder.read_json(location, "a.json")


def unfinished(out: Path, **kind) -> dict[str, bytes]:
    """Remove the last shard of a folder; return its files when it was complete."""
    extract(out, **kind)
    whole = contents(out)
    leave_unfinished(out, 4)
    return whole


# Names and links.

READERS: dict[str, Callable[[Path], object]] = {
    "open": lambda out: hookscope.load(out)["fc"][:],
    "export": lambda out: hookscope.export(out, out.parent / "all.npy"),
    "tensors": lambda out: hookscope.load(out)["fc"].torch()[:],
}


@pytest.mark.parametrize("name", ["../x", "{out}/../x", "sub/../../x", "link", "sub/x"])
@pytest.mark.parametrize("reader", READERS)
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path, reader: str, name: str) -> None:
    out = write_features(tmp_path / "f", {"fc/output": ramp(4, 2)}, 2)
    shutil.move(out / SHARD, tmp_path / "x")
    if name == "link":
        (out / SHARD).symlink_to(tmp_path / "x")
    else:
        (out / "sub").symlink_to(tmp_path) if name == "sub/x" else (out / "sub").mkdir()
        document = json.loads((out / "manifest.json").read_text())
        document["shards"][1]["file"] = name.format(out=out)
        (out / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(ResultsFileError, match=r"outside|not a file") as caught:
        READERS[reader](out)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "all.npy").exists()
    assert notices(out)


def test_a_link_within_the_folder_and_a_link_to_the_folder_are_followed(tmp_path: Path) -> None:
    out = write_features(tmp_path / "f", {"fc/output": ramp(4, 2)}, 2)
    (out / "sub").mkdir()
    shutil.move(out / SHARD, out / "sub" / "x")
    (out / SHARD).symlink_to("sub/x")
    (tmp_path / "link").symlink_to(out)
    for each in (out, tmp_path / "link"):
        assert np.array_equal(hookscope.load(each)["fc"][:], ramp(4, 2).numpy())
        assert hookscope.verify(each).ok


@pytest.mark.parametrize("name", TABLES)
def test_the_other_files_are_not_read_through_links_that_lead_out(tmp_path, name: str) -> None:
    out = write_features(tmp_path / "f", {"fc/output": ramp(4, 2)}, 2)
    shutil.move(out / name, tmp_path / "x")
    (out / name).symlink_to(tmp_path / "x")
    assert notices(out)
    if name != INDEX:  # which readers do not need
        with pytest.raises(ResultsFileError, match="outside"):
            hookscope.load(out).inputs[0]


def test_resume_replaces_a_link_and_leaves_what_it_led_to(tmp_path: Path) -> None:
    out = tmp_path / "out"
    extract(out)
    whole = contents(out)
    for name in (SHARD, *TABLES):
        shutil.move(out / name, tmp_path / name)
        (out / name).symlink_to(tmp_path / name)
    extract(out, resume=True)
    assert contents(out) == whole
    assert not any(path.is_symlink() for path in out.iterdir())
    for name in (SHARD, *TABLES):
        assert (tmp_path / name).read_bytes() == whole[name]


@pytest.mark.parametrize("word", ["resume", "force"])
def test_no_file_is_written_through_a_link_that_was_planted(tmp_path: Path, word: str) -> None:
    out, precious = tmp_path / "out", tmp_path / "precious"
    extract(tmp_path / "whole", stats_only=True)
    extract(out, stats_only=True)
    precious.write_text("mine")
    for name in ("manifest.json", "inputs.jsonl", "statistics.safetensors", SHARD):
        (out / f".{name}.part").symlink_to(precious)
    (out / f".{INDEX}.part").symlink_to(tmp_path / "new")
    (out / "statistics.safetensors").unlink()
    extract(out, stats_only=True, **{word: True})
    assert precious.read_text() == "mine" and not (tmp_path / "new").exists()
    assert contents(out) == contents(tmp_path / "whole")
    assert sorted(path.name for path in out.iterdir()) == sorted(contents(out))


@pytest.mark.parametrize("word", ["resume", "force"])
def test_a_link_in_the_place_of_the_folder_of_parts_is_refused(tmp_path: Path, word: str) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    extract(out)
    other.mkdir()
    (other / "plan.json").write_text("mine")
    (out / ".parts").symlink_to(other)
    with pytest.raises(ResultsFileError, match="outside"):
        extract(out, **{word: True})
    assert contents(other) == {"plan.json": b"mine"}


def test_what_is_known_of_a_shard_names_no_file_outside(tmp_path: Path) -> None:
    out = tmp_path / "out"
    whole = unfinished(out)
    shutil.copy(out / SHARD, tmp_path / "x")
    name = manifest.part_name(2)
    part = folder.read_json(parse_location(out), name)
    folder.write_json(parse_location(out), name, {**part, "file": "../x"})
    assert extract(out, resume=True).resumed == 2
    assert contents(out) == whole
    assert (tmp_path / "x").exists()


def test_a_place_follows_no_name_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "x").write_text("")
    location = Location(str(tmp_path / "in"))
    uses = (location.open, location.size, location.remove, lambda name: location.write(name, b""))
    for name in ("../x", str(tmp_path / "x"), "../in/../x"):
        for use in uses:
            with pytest.raises(ResultsFileError, match="outside"):
                use(name)
