"""Resuming a run over a dataset: folders, assigned shards, and what must be the same."""

from __future__ import annotations

import gc
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hookscope.errors import RequestError, StoreError
from hookscope.extraction.batch_runner import RunProgress, WaitTimes
from hookscope.extraction.shard_writer import Shard, assign_shards, plan_shards, shard_row_count
from hookscope.results.records import Coverage
from hookscope.stores.features import folder, manifest, resumption
from hookscope.stores.features.location import Location, RemoteLocation, parse_location
from hookscope.tensors.hash import hash_tensors
from tests.refusals import refused

from .conftest import LINEAR, contents, index_of
from .conftest import extract_six_rows as extract

SHARD = "rows-00000000.safetensors"


@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 9), st.integers(1, 5))
def test_every_row_is_in_one_batch_of_one_shard_of_one_process(
    rows: int, size: int, batch: int, world: int
) -> None:
    shards = plan_shards(rows, size)
    assert [row for s in shards for row in range(s.first, s.last)] == list(range(rows))
    assert all(s.rows == size for s in shards[:-1]) and all(0 < s.rows <= size for s in shards)
    for shard in shards:
        batches = list(shard.batches(batch))
        assert [row for b in batches for row in b] == list(range(shard.first, shard.last))
        assert all(len(b) == batch for b in batches[:-1])
    done = {s.name for s in shards[::3]}
    parts = [assign_shards(shards, done, rank, world) for rank in range(world)]
    assert [s for part in parts for s in part] == [s for s in shards if s.name not in done]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


# Bytes of a row, batch, bytes of a shard, rows, and the rows of a shard.
SIZES = [
    (1000, 32, 96_000, 10_000, 96),
    (1000, 32, 95_999, 10_000, 64),
    (1000, 32, 1, 10_000, 32),
    (1000, 32, None, 10_000, 640),
    (0, 32, 100, 10_000, 3200),
    (10**9, 4, None, 10_000, 4),
    (10**6, 4, None, 10**6, 512),
    (1, 4, None, 64, 4),
    (1, 4, None, 65, 8),
    (1, 4, None, 0, 4),
]


def test_a_shard_is_whole_batches_of_bounded_size() -> None:
    for *given_sizes, expected in SIZES:
        assert shard_row_count(*given_sizes) == expected, given_sizes
    assert (Shard(512, 600).name, Shard(512, 600).rows) == ("rows-00000512.safetensors", 88)


def test_time_is_counted_for_the_part_that_it_passed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 5))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    times = WaitTimes()
    with times.of("forward"):
        pass
    with times.of("forward"), times.of("write"):
        pass
    assert (times.read, times.forward, times.write) == (0, 5 + 15, 5)
    assert list(times.reading(["a", "b"])) == ["a", "b"]
    assert times.read == 15  # for each batch, and for the end of the iterator
    state = RunProgress(7, begun=next(clock))
    assert state.seconds == 5 and state.seconds == 10
    assert (state.total, state.rows, state.bytes, state.skipped) == (7, 0, 0, 0)


# Folders.


@pytest.mark.parametrize("word", ["{}/out", "memory://hookscope-resuming/", "local://{}/out"])
def test_files_are_written_found_and_removed_with_their_folders(tmp_path: Path, word: str) -> None:
    location = parse_location(word.format(tmp_path))
    assert isinstance(location, RemoteLocation) is ("://" in word)
    location.check_writable()
    assert location.names() == [] and location.size("a") is None
    for name, data in {"b/c.json": b"12", "b/deep/d": b"3", "a": b""}.items():
        location.write(name, data)
    assert location.names() == ["a", "b/c.json", "b/deep/d"]
    assert (location.size("b/c.json"), location.size("a")) == (2, 0)
    assert "://" in word or location.size("b") is None
    with location.open("b/c.json") as file:
        assert file.read() == b"12"
    scratch = location.scratch("x")
    scratch.write_text("y")
    location.publish(scratch, "x")
    assert not scratch.exists() and location.names() == ["a", "b/c.json", "b/deep/d", "x"]
    again = pickle.loads(pickle.dumps(location))
    assert type(again) is type(location) and again.names() == location.names()
    if "memory" not in word:
        assert contents(tmp_path / "out")["b/c.json"] == b"12"
    for name in ("a", "b/deep/d", "x"):
        location.remove(name)
    assert location.names() == ["b/c.json"]
    # Of another run, in a folder of the same name: a name below an address is all of it.
    location.write("hookscope-resuming/b/c.json", b"2")
    location.remove("b/c.json")
    assert location.names() == ["hookscope-resuming/b/c.json"]
    location.remove("hookscope-resuming/b/c.json")


def test_scratch_room_is_in_the_folder_or_given_back(tmp_path: Path) -> None:
    location = Location(str(tmp_path / "out"))
    location.write("b/c", b"")
    location.remove("b/c")
    assert [path.name for path in tmp_path.rglob("*")] == ["out"]  # the folder itself stays
    assert location.scratch("x") == tmp_path / "out" / ".x.part"
    assert str(location) == str(tmp_path / "out")
    remote = parse_location(f"local://{tmp_path}/out")
    remote.remove("none")
    room = remote.scratch("x").parent
    assert pickle.loads(pickle.dumps(remote)).scratch("x").parent != room
    assert room.is_dir() and not room.is_relative_to(tmp_path)
    del remote
    gc.collect()
    assert not room.exists()


def test_a_file_that_cannot_be_written_leaves_nothing_half(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    (tmp_path / "name" / "inside").write_text("kept")
    with refused(StoreError, f"name to {tmp_path}", hint="resume"):
        Location(str(tmp_path)).write("name", b"data")
    assert contents(tmp_path) == {"name/inside": b"kept"}


def test_a_folder_can_be_made_where_its_parents_allow_it(tmp_path: Path, monkeypatch) -> None:
    Location(str(tmp_path / "a" / "b")).check_writable()
    Location(str(tmp_path)).check_writable()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    for word in ("file", "file/below", "dangling"):
        with pytest.raises(RequestError, match=word.partition("/")[0]):
            Location(str(tmp_path / word)).check_writable()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Location("out").check_writable()
    parse_location("file://out").write("a", b"1")
    assert contents(tmp_path / "work") == {"out/a": b"1"}
    assert type(parse_location(Path("out"))) is Location
    with pytest.raises(RequestError, match="nosuchprotocol"):
        parse_location("nosuchprotocol://a/b")


@pytest.mark.skipif(os.geteuid() == 0 if hasattr(os, "geteuid") else True, reason="rights bind not")
def test_a_folder_without_rights_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(RequestError, match=str(tmp_path)):
            Location(str(tmp_path / "out")).check_writable()
    finally:
        tmp_path.chmod(0o700)


# The identity of a model.


def hash_of_state(net: nn.Module) -> str | None:
    return hash_tensors(net.state_dict(keep_vars=True).items())


def test_the_hash_of_a_model_follows_every_value_name_and_shape(monkeypatch) -> None:
    def model(**change: Any) -> nn.Module:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        for name, value in change.items():
            net.register_buffer(name, value)
        return net

    first = hash_of_state(model())
    assert first == hash_of_state(model()) and first is not None and len(first) == 64
    others = [model(a=torch.zeros(2)), model(b=torch.zeros(2)), model(a=torch.zeros(1, 2))]
    others += [model(a=torch.zeros(2, dtype=torch.int32)), model(a=torch.ones(2))]
    changed = model()
    with torch.no_grad():
        changed[0].bias[0] += 1
    assert len({first, *map(hash_of_state, [*others, changed])}) == 7
    assert hash_of_state(nn.Linear(2, 2, device="meta")) is None
    strided = model()
    strided[0].weight.data = strided[0].weight.data.T.contiguous().T
    assert hash_of_state(strided) == first
    monkeypatch.setattr("hookscope.tensors.hash._BLOCK", 8)  # large values in parts
    assert hash_of_state(model()) == first


# What must be the same, and which rows are done again.

PLAN: dict[str, Any] = {
    "command": "extract",
    "options": {"batch": 2, "seed": 0},
    "model": {"spec": "m", "blake3": "1"},
    "inputs": {"specs": ["a"], "rows": 6, "sha256": "2"},
    "rows": 6,
    "keys": [{"key": "0/output"}],
}


def begun(out: Path, plan: dict[str, Any] = PLAN) -> Location:
    """A folder with an unfinished run, whose first shard is finished."""
    location = Location(str(out))
    assert resumption.start_run(location, plan) == set()
    location.write(SHARD, b"abc")
    part = {"file": SHARD, "bytes": 3, "crc32": "352441c2", "first": 0, "rows": 1}
    folder.write_json(location, manifest.part_name(0), {**part, "inputs": [{"row": 0}]})
    return location


def test_the_same_plan_goes_on_with_what_is_sound(tmp_path: Path) -> None:
    location = begun(tmp_path / "out")
    assert resumption.start_run(location, PLAN) == {SHARD}
    location.write(SHARD, b"abd")
    assert resumption.start_run(location, PLAN) == set()
    assert manifest.part_name(0) not in location.names()


LONG = {"batch": 2, "seed": 0, "x": "y" * 99}
INPUTS = {"specs": ["a"], "rows": 6, "sha256": "2"}
# What differs, its name, and its two values as they are told.
DIFFERENCES = [
    ({"options": {"batch": 3, "seed": 0}}, "batch", "2", "3"),
    ({"options": {"batch": 2, "seed": 1}}, "seed", "0", "1"),
    ({"options": {"batch": 2, "seed": 0, "x": 1}}, "x", "not set", "1"),
    ({"options": {"batch": 2}}, "seed", "0", "not set"),
    ({"model": {"spec": "n", "blake3": "1"}}, "model spec", '"m"', '"n"'),
    ({"model": {"spec": "m", "blake3": "9"}}, "model blake3", '"1"', '"9"'),
    ({"rows": 7}, "rows", "6", "7"),
    ({"keys": []}, "keys", r'\[\{"key": "0/output"\}\]', r"\[\]"),
    ({"inputs": INPUTS | {"sha256": "3"}}, "inputs sha256", '"2"', '"3"'),
    ({"options": LONG}, "x", "not set", r'"y{56}\.\.\.'),
    ({"inputs": None}, "inputs", r'\{"rows": 6, "sha256": "2"\}', "not set"),
    ({"keys": [{"b": 1, "a": 2}]}, "keys", ".*", r'\[\{"a": 2, "b": 1\}\]'),
    ({"rows": "r" * 58}, "rows", "6", f'"{"r" * 58}"'),
    ({"rows": "r" * 59}, "rows", "6", rf'"{"r" * 56}\.\.\.'),
]


@pytest.mark.parametrize(("change", "name", "before", "now"), DIFFERENCES)
def test_a_plan_that_differs_is_refused_with_the_first_difference(
    tmp_path: Path, change: dict[str, Any], name: str, before: str, now: str
) -> None:
    location = begun(tmp_path / "out")
    kept = contents(tmp_path / "out")
    with refused(RequestError, f"{name} was {before}, and is {now} now", hint="force"):
        resumption.start_run(location, PLAN | change)
    assert contents(tmp_path / "out") == kept


SAME = [
    {"inputs": INPUTS | {"specs": ["b", "c"]}},
    {"model": {"spec": "m", "blake3": None}},
    {"options": {"batch": 2, "seed": 0, "skip_bad": True}},
]


@pytest.mark.parametrize("change", SAME)
def test_what_does_not_change_the_bytes_may_differ(tmp_path: Path, change: dict[str, Any]) -> None:
    location = begun(tmp_path / "out")
    assert resumption.start_run(location, PLAN | change) == {SHARD}
    assert folder.read_json(location, folder.PLAN) == PLAN | change


def test_specs_of_inputs_count_where_no_hash_tells(tmp_path: Path) -> None:
    unknown = INPUTS | {"sha256": None}
    location = begun(tmp_path / "out", PLAN | {"inputs": unknown})
    with pytest.raises(RequestError, match=r'inputs specs was \["a"\]'):
        resumption.start_run(location, PLAN | {"inputs": unknown | {"specs": ["b"]}})


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"options": 3}'])
def test_under_a_damaged_plan_nothing_counts_as_finished(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    location = begun(tmp_path / "out")
    location.write(folder.PLAN, content)
    assert resumption.start_run(location, PLAN) == set()
    assert SHARD not in location.names()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("kind", [{}, {"reduce": "pca:2"}, {"stats_only": True}])
def test_a_folder_of_a_finished_run_stays_and_taken_apart_is_put_together_again(
    tmp_path, kind
) -> None:
    out = tmp_path / "out"
    done = extract(out, **kind)
    before = contents(out)
    assert (done.resumed, extract(out, resume=True, **kind).resumed) == (0, 6)
    assert contents(out) == before
    location = Location(str(out))
    plan = folder.read_json(location, "manifest.json")
    document = {name: plan[name] for name in plan if name not in resumption._NOT_PLANNED}
    sound = resumption.start_run(location, document | {"options": plan["options"]})
    assert sound == {shard["file"] for shard in plan["shards"]}
    assert "manifest.json" not in contents(out)
    assert extract(out, resume=True, **kind).resumed == 6
    assert contents(out) == before


def test_the_manifest_and_the_index_of_a_finished_run(tmp_path: Path) -> None:
    document = extract(tmp_path / "out").manifest
    assert [shard["first"] for shard in document["shards"]] == [0, 2, 4]
    assert (document["schema"], document["rows"]) == (2, 6)
    model = document["model"]
    assert (model["spec"], model["source"], model["blake3"]) == ("Sequential", "live", None)
    assert model["state_blake3"] == hash_of_state(LINEAR) and model["code_sha256"] is None
    places = {f"0/output[{n}:{n + 2}]": f"rows-{n:08d}.safetensors" for n in (0, 2, 4)}
    index = index_of(tmp_path / "out")
    assert (index["metadata"]["total_size"], index["weight_map"]) == (6 * 3 * 4, places)


def test_rows_that_are_not_told_of_keep_the_manifest_from_being_written(tmp_path: Path) -> None:
    location = begun(tmp_path / "out")

    def gather(location: Location, parts: Any) -> Any:
        assert [part["first"] for part in parts] == [0] and "inputs" not in parts[0]
        return list(parts), {"0/output[0:1]": SHARD}, 12

    with pytest.raises(StoreError, match="1 of 6 rows"):
        manifest.finish_run(location, PLAN, Coverage(), gather)
    assert "manifest.json" not in location.names()
    found = manifest.finish_run(location, PLAN | {"rows": 1}, Coverage(), gather)
    assert found == folder.read_json(location, "manifest.json")
    assert (found["schema"], found["rows"], found["not_executed"]) == (2, 1, [])
    assert (tmp_path / "out" / "inputs.jsonl").read_text() == '{"row": 0}\n'
    assert folder.read_json(location, folder.INDEX)["metadata"]["total_size"] == 12
    assert not any(name.startswith(".parts/") for name in location.names())
