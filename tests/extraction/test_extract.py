"""A model run over a dataset: the rows equal those of a capture in every situation."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import tarfile
import time
import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

import hookscope
from hookscope.errors import InputError, LayerError, RequestError
from hookscope.extraction.shard_writer import ShardFile
from hookscope.files.input_list import list_entries
from tests.zoo.specimen import Module

from .conftest import contents, entries, flip_last_bit, index_of, joined
from .conftest import extract_photos as extract

SHARDS = [f"rows-{first:08d}.safetensors" for first in (0, 4, 8)]


def test_rows_are_bit_equal_to_captures_of_the_same_batches(photos, tmp_path) -> None:
    out = tmp_path / "out"
    extract(photos, out)
    files = sorted(str(path) for path in photos.iterdir() if path.suffix != ".txt")
    for first in range(0, 12, 4):
        model = f"{tmp_path}/small.py:Small"
        shot = hookscope.capture(model, layers=["relu", "head"], input=files[first : first + 4])
        assert list(shot) == ["relu/output", "relu:2/output", "head/output"]
        for key in shot:
            assert torch.equal(joined(out, key)[first : first + 4], shot[key])


def test_the_folder_tells_what_is_in_it(photos, tmp_path) -> None:
    out = tmp_path / "out"
    done = extract(photos, out)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest.pop("checksum")
    assert manifest == json.loads(json.dumps(done.manifest))
    assert (manifest["rows"], manifest["batch"], manifest["shard_rows"]) == (12, 4, 4)
    assert [(k["key"], k["shape"], k["dtype"]) for k in manifest["keys"]] == [
        ("relu/output", [4, 16, 16], "float32"),
        ("relu:2/output", [4, 16, 16], "float32"),
        ("head/output", [3], "float32"),
    ]
    for shard in manifest["shards"]:
        data = (out / shard["file"]).read_bytes()
        assert (len(data), f"{zlib.crc32(data):08x}") == (shard["bytes"], shard["crc32"])
    assert [line["row"] for line in entries(out)] == list(range(12))
    for line in entries(out):
        data = Path(line["path"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (line["bytes"], line["sha256"])
    others = {"manifest.json", "features.safetensors.index.json", "inputs.jsonl"}
    assert {path.name for path in out.iterdir()} == {*others, *SHARDS}


@pytest.mark.parametrize("wrapper", [torch.compile, nn.DataParallel, nn.Sequential])
def test_passes_end_after_the_last_wanted_layer_of_a_wrapped_model_too(tmp_path, wrapper) -> None:
    past: list[int] = []
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    net[2].register_forward_pre_hook(lambda *_: past.append(1))
    rows, layer = torch.rand(6, 4), "0.1" if wrapper is nn.Sequential else "1"
    counts = {}
    for stop in (True, False):
        past.clear()
        given = {"layers": layer, "batch": 2, "workers": 0, "input": TensorDataset(rows)}
        done = hookscope.extract(wrapper(net), tmp_path / f"{stop}", stop=stop, **given)
        assert done.manifest["stopped_after"] == (layer if stop else None)
        assert torch.equal(joined(tmp_path / f"{stop}", f"{layer}/output"), net[:2](rows))
        counts[stop] = len(past)
    assert counts == {True: 1, False: 4}  # the pass on the meta device, and three batches


def test_a_corrupt_image_stops_the_run_after_the_shards_before_it(photos, tmp_path) -> None:
    whole = (photos / "06.jpg").read_bytes()
    (photos / "06.jpg").write_bytes(whole[: len(whole) // 2])
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"06\.jpg"):
        extract(photos, out)
    assert [path.name for path in out.glob("rows-*")] == SHARDS[:1]
    (photos / "06.jpg").write_bytes(whole)
    extract(photos, out, resume=True)
    extract(photos, tmp_path / "undisturbed")
    assert contents(out) == contents(tmp_path / "undisturbed")


def test_a_skipped_image_keeps_its_row_as_nan_and_is_marked(photos, tmp_path) -> None:
    extract(photos, tmp_path / "sound")
    (photos / "06.jpg").write_bytes(b"\xff\xd8 no image")
    done = extract(photos, tmp_path / "out", skip_bad=True)
    assert done.state.skipped == 1
    assert [line["row"] for line in entries(tmp_path / "out") if "skipped" in line] == [6]
    ours, sound = joined(tmp_path / "out", "head/output"), joined(tmp_path / "sound", "head/output")
    assert ours[6].isnan().all()
    others = [i for i in range(12) if i != 6]
    assert torch.equal(ours[others], sound[others])


def test_a_run_with_another_model_or_input_cannot_resume(photos, tmp_path) -> None:
    out = tmp_path / "out"
    extract(photos, out)
    with pytest.raises(RequestError, match="finished"):
        extract(photos, out)
    with pytest.raises(RequestError, match="seed was 0"):
        extract(photos, out, resume=True, seed=1)
    (photos / "03.jpg").unlink()
    with pytest.raises(RequestError, match="rows was 12"):
        extract(photos, out, resume=True)
    assert extract(photos, out, force=True).rows == 11


def test_resuming_mends_a_damaged_and_a_missing_shard_and_no_other(photos, tmp_path) -> None:
    out = tmp_path / "out"
    extract(photos, out)
    before = contents(out)
    flip_last_bit(out / SHARDS[1])
    (out / SHARDS[2]).unlink()
    kept = (out / SHARDS[0]).stat().st_mtime_ns
    counts = []
    done = extract(photos, out, resume=True, progress=lambda s: counts.append((s.done, s.total)))
    assert (done.resumed, done.state.rows) == (4, 8)
    assert counts == [(8, 12), (12, 12)]  # rows that existed are counted
    assert contents(out) == before
    assert (out / SHARDS[0]).stat().st_mtime_ns == kept


def test_inputs_from_a_list_and_from_a_tar_are_those_of_the_folder(photos, tmp_path) -> None:
    extract(photos, tmp_path / "folder")
    files = sorted(path for path in photos.iterdir() if path.suffix != ".txt")
    (tmp_path / "list.txt").write_text("\n".join(map(str, files)) + "\n\n")
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        for path in [*files, photos / "notes.txt"]:
            archive.add(path, path.name)
    expected = joined(tmp_path / "folder", "head/output")
    for name, word in {"list": f"@{tmp_path}/list.txt", "tar": f"{tmp_path}/photos.tar"}.items():
        extract(photos, tmp_path / name, input=word)
        assert torch.equal(joined(tmp_path / name, "head/output"), expected)
    extract(photos, tmp_path / "half", every=2)
    assert torch.allclose(joined(tmp_path / "half", "head/output"), expected[::2], atol=1e-6)
    names = [line["path"] for line in entries(tmp_path / "tar")]
    assert names == [f"{tmp_path}/photos.tar::{path.name}" for path in files]


def test_a_list_from_windows_and_names_that_are_no_text(photos, tmp_path) -> None:
    odd = os.fsencode(photos / "00") + b"\xff.jpg"
    try:
        os.rename(photos / "00.jpg", odd)
    except OSError:
        pytest.skip("the file system takes no such names")
    extract(photos, tmp_path / "out")
    paths = hookscope.load(tmp_path / "out").inputs.paths
    assert os.fsencode(str(paths[0])) == odd
    extract(photos, tmp_path / "out", resume=True)
    names = tmp_path / "list.txt"
    names.write_text(f"{photos}/01.jpg\r\n", encoding="utf-8-sig", newline="")
    assert [entry.name for entry in list_entries([f"@{names}"])] == [f"{photos}/01.jpg"]


WRONG = [{"every": 0}, {"every": -1}, {"batch": 0}, {"batch": -2}, {"workers": -1}]
WRONG += [{"shard_size": 0}, {"memory": 0}, {"decode": "quick"}, {"autocast": "float8"}]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_makes_no_sense_is_refused(photos, tmp_path, wrong) -> None:
    with pytest.raises(RequestError, match=next(iter(wrong))):
        extract(photos, tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def test_rows_along_another_dimension_come_to_the_front(tmp_path) -> None:
    rows, total = TensorDataset(torch.rand(6, 4)), Module(lambda self, x: x.sum(0))
    net = nn.Sequential(nn.Linear(4, 3), Module(lambda self, x: x.T), total)
    hookscope.extract(net, tmp_path / "out", layers=["0", "1"], input=rows, batch=4, workers=0)
    assert torch.equal(joined(tmp_path / "out", "1/output"), joined(tmp_path / "out", "0/output"))
    net = nn.Sequential(nn.Linear(4, 3), total)
    with pytest.raises(LayerError, match="1/output"):  # which has no dimension for them
        hookscope.extract(net, tmp_path / "sum", layers="1", input=rows, workers=0)


def test_an_object_store_gets_the_same_files(photos, tmp_path) -> None:
    import fsspec

    extract(photos, tmp_path / "disk")
    extract(photos, "memory://lab/run1")
    store = fsspec.filesystem("memory")
    found = {path.removeprefix("/lab/run1/"): store.cat(path) for path in store.find("/lab/run1")}
    assert found == contents(tmp_path / "disk")
    store.pipe_file(f"/lab/run1/{SHARDS[1]}", b"damaged")
    extract(photos, "memory://lab/run1", resume=True)
    assert {p.removeprefix("/lab/run1/"): store.cat(p) for p in store.find("/lab/run1")} == found
    store.rm("/lab", recursive=True)


@pytest.mark.parametrize("more", [{}, {"store_dtype": "int8"}, {"stats_only": True}])
def test_the_index_tells_the_bytes_of_all_tensors(photos, tmp_path, more) -> None:
    out = tmp_path / "out"
    extract(photos, out, **more)
    index = index_of(out)
    files = [load_file(out / file) for file in set(index["weight_map"].values())]
    size = sum(tensor.nbytes for tensors in files for tensor in tensors.values())
    assert index["metadata"]["total_size"] == size
    assert hookscope.verify(out).ok


@pytest.mark.exhaustive
def test_the_batches_held_behind_a_slow_disk_fit_into_the_memory(tmp_path, monkeypatch) -> None:
    write, held = ShardFile.write, []

    def slowly(file: ShardFile, first: int, values: dict[str, torch.Tensor]) -> int:
        deadline = time.monotonic() + 300
        enough = 4 * sum(one.nbytes for one in values.values())
        while True:  # until the run has waited once because the queue was full
            time.sleep(0.1)
            tensors = [one for one in gc.get_objects() if type(one) is torch.Tensor]
            wide = [one for one in tensors if one.shape[1:] == (77,) and not one.is_meta]
            held.append(sum({one.data_ptr(): one.nbytes for one in wide}.values()))
            if max(held) >= enough or time.monotonic() > deadline:
                return write(file, first, values)

    monkeypatch.setattr(ShardFile, "write", slowly)
    values, memory = torch.rand(64, 1), 7520
    model = Module(lambda self, x: x.repeat(1, 77))
    more = {"workers": 0, "layers": ".", "memory": memory}
    done = hookscope.extract(model, tmp_path / "out", input=TensorDataset(values), **more)
    batch = done.manifest["batch"] * 77 * 4
    assert 4 * batch == max(held) <= memory
