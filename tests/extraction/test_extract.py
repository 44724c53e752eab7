"""A model run over a dataset: the rows equal those of a capture in every situation."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
import zlib
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

import hookscope
from hookscope.errors import InputError, LayerError, RequestError
from hookscope.extraction.shard_writer import ShardFile
from hookscope.files.input_list import list_entries
from hookscope.stores.features.folder import read_json
from hookscope.stores.features.location import parse_location

from .conftest import begin_again, contents, weight_map


def extract(photos: Path, folder: Path, **more):
    more = {"layers": ["relu", "head"], "batch": 4, "shard_size": 1, "workers": 0} | more
    more.setdefault("input", str(photos))
    return hookscope.extract(f"{photos.parent}/small.py:Small", folder, **more)


def joined(folder: Path, key: str) -> torch.Tensor:
    """All rows of a key, read with safetensors and the index only."""
    index = json.loads((folder / "features.safetensors.index.json").read_text())["weight_map"]
    own = [name for name in index if name.startswith(f"{key}[")]
    parts = []
    for name in sorted(own, key=lambda name: int(name[len(key) + 1 :].split(":")[0])):
        with safe_open(folder / index[name], "pt") as file:
            parts.append(file.get_tensor(name))
    return torch.cat(parts)


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
    lines = [json.loads(line) for line in (out / "inputs.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == list(range(12))
    for line in lines:
        data = Path(line["path"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (line["bytes"], line["sha256"])
    assert {path.name for path in out.iterdir()} == {
        "manifest.json",
        "features.safetensors.index.json",
        "inputs.jsonl",
        *(f"rows-{first:08d}.safetensors" for first in (0, 4, 8)),
    }


def test_processes_that_read_ahead_change_nothing(photos, tmp_path) -> None:
    extract(photos, tmp_path / "one", workers=0)
    extract(photos, tmp_path / "two", workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.exhaustive
def test_the_pass_ends_after_the_last_wanted_layer(photos, tmp_path) -> None:
    source = tmp_path / "small.py"
    text = source.read_text().replace(
        "return self.head", "print('past the last layer')\n        return self.head"
    )
    source.write_text(text)
    script = (
        "import hookscope; hookscope.extract('small.py:Small', 'OUT/', layers='relu',"
        " input='photos', batch=4, workers=0, stop=STOP)"
    )
    seen = {}
    for stop in (True, False):
        run = script.replace("OUT", f"out{stop}").replace("STOP", str(stop))
        done = subprocess.run(
            [sys.executable, "-c", run], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        seen[stop] = (done.stdout + done.stderr).count("past the last layer")
    # One pass on the meta device and one to find the input, then one for each of three batches.
    assert seen[False] - seen[True] == 3
    stopped = json.loads((tmp_path / "outTrue" / "manifest.json").read_text())
    assert stopped["stopped_after"] == "relu"
    for key in ("relu/output", "relu:2/output"):
        assert torch.equal(joined(tmp_path / "outTrue", key), joined(tmp_path / "outFalse", key))


def test_a_model_whose_order_depends_on_data_runs_to_its_end(photos, tmp_path) -> None:
    source = tmp_path / "small.py"
    source.write_text(
        source.read_text().replace("x = self.relu(x - 0.1)", "x = self.relu(x) if x.sum() else x")
    )
    assert extract(photos, tmp_path / "out", layers="conv").manifest["stopped_after"] is None


@pytest.mark.parametrize("wrapper", [torch.compile, torch.nn.DataParallel, torch.nn.Sequential])
def test_passes_of_a_wrapped_model_end_early(tmp_path, wrapper) -> None:
    past = []
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    net[2].register_forward_pre_hook(lambda *_: past.append(1))
    rows = torch.rand(6, 4)
    layer = "0.1" if wrapper is torch.nn.Sequential else "1"
    given = {"layers": layer, "batch": 2, "workers": 0, "input": TensorDataset(rows)}
    done = hookscope.extract(wrapper(net), tmp_path / "out", **given)
    assert done.manifest["stopped_after"] == layer
    assert len(past) == 1  # the pass on the meta device
    assert torch.equal(joined(tmp_path / "out", f"{layer}/output"), net[:2](rows))


def test_a_corrupt_image_stops_the_run_after_the_shards_before_it(photos, tmp_path) -> None:
    whole = (photos / "06.jpg").read_bytes()
    (photos / "06.jpg").write_bytes(whole[: len(whole) // 2])
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"06\.jpg.*damaged or cut off"):
        extract(photos, out)
    assert [path.name for path in out.glob("rows-*")] == ["rows-00000000.safetensors"]
    (photos / "06.jpg").write_bytes(whole)
    extract(photos, out, resume=True)
    extract(photos, tmp_path / "undisturbed")
    assert contents(out) == contents(tmp_path / "undisturbed")


def test_a_skipped_image_keeps_its_row_as_nan_and_is_marked(photos, tmp_path) -> None:
    extract(photos, tmp_path / "sound")
    (photos / "06.jpg").write_bytes(b"\xff\xd8 no image")
    done = extract(photos, tmp_path / "out", skip_bad=True)
    assert done.state.skipped == 1
    lines = [json.loads(x) for x in (tmp_path / "out" / "inputs.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines if "skipped" in line] == [6]
    ours, sound = joined(tmp_path / "out", "head/output"), joined(tmp_path / "sound", "head/output")
    assert ours[6].isnan().all()
    others = [i for i in range(12) if i != 6]
    assert torch.equal(ours[others], sound[others])


def test_a_run_with_another_model_or_input_cannot_resume(photos, tmp_path) -> None:
    out = tmp_path / "out"
    extract(photos, out)
    with pytest.raises(RequestError, match="results of a finished run"):
        extract(photos, out)
    with pytest.raises(RequestError, match="seed was 0, and is 1 now"):
        extract(photos, out, resume=True, seed=1)
    (photos / "03.jpg").unlink()
    with pytest.raises(RequestError, match="inputs rows was 12, and is 11 now"):
        extract(photos, out, resume=True)
    assert extract(photos, out, force=True).rows == 11


def test_resuming_mends_a_damaged_and_a_missing_shard_and_no_other(photos, tmp_path) -> None:
    out = tmp_path / "out"
    extract(photos, out)
    before = contents(out)
    damaged = out / "rows-00000004.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    (out / "rows-00000008.safetensors").unlink()
    kept = (out / "rows-00000000.safetensors").stat().st_mtime_ns
    counts = []
    done = extract(
        photos, out, resume=True, progress=lambda state: counts.append((state.done, state.total))
    )
    assert (done.resumed, done.state.rows) == (4, 8)
    assert counts == [(8, 12), (12, 12)]  # rows that existed are counted
    assert contents(out) == before
    assert (out / "rows-00000000.safetensors").stat().st_mtime_ns == kept


@pytest.mark.exhaustive
@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_undisturbed_bytes(photos, tmp_path) -> None:
    extract(photos, tmp_path / "undisturbed", batch=1)
    line = (
        "import hookscope; hookscope.extract('small.py:Small', 'out/', layers=['relu', 'head'],"
        " input=PHOTOS, batch=1, shard_size=1, workers=1, resume=True)"
    ).replace("PHOTOS", repr(str(photos)))
    model = (tmp_path / "small.py").read_text()
    slow = model.replace("def forward(self, x):", "def forward(self, x):\n        SLEEP")
    dice = random.Random(0)
    # However late the signal comes, there is still work to do.
    wait = "import time, glob; time.sleep(600 * (len(glob.glob('out/rows-*')) > LIMIT) or 0.1)"
    wait = wait.replace("LIMIT", "int(open('limit').read())")
    (tmp_path / "small.py").write_text(slow.replace("SLEEP", wait))
    for attempt in range(2):
        (tmp_path / "limit").write_text(str(2 * attempt + 4))
        process = subprocess.Popen([sys.executable, "-c", line], cwd=tmp_path)
        out = tmp_path / "out"
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and len(list(out.glob("rows-*"))) < 2 * attempt + 1:
            time.sleep(0.02)
        time.sleep(dice.random() * 0.5)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (out / "manifest.json").exists()
    (tmp_path / "limit").write_text("99")
    done = subprocess.run([sys.executable, "-c", line], cwd=tmp_path, check=False)
    assert done.returncode == 0
    theirs, ours = contents(tmp_path / "undisturbed"), contents(tmp_path / "out")
    assert {name for name in ours if name.startswith("rows")} == {
        name for name in theirs if name.startswith("rows")
    }
    assert weight_map(tmp_path / "out") == weight_map(tmp_path / "undisturbed")
    assert ours["inputs.jsonl"] == theirs["inputs.jsonl"]
    for name in theirs:
        if name.startswith("rows"):
            assert ours[name] == theirs[name]
    assert not [name for name in ours if ".part" in name]


def test_inputs_from_a_list_and_from_a_tar_are_those_of_the_folder(photos, tmp_path) -> None:
    extract(photos, tmp_path / "folder")
    files = sorted(path for path in photos.iterdir() if path.suffix != ".txt")
    (tmp_path / "list.txt").write_text("\n".join(map(str, files)) + "\n\n")
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        for path in [*files, photos / "notes.txt"]:
            archive.add(path, path.name)
    expected = joined(tmp_path / "folder", "head/output")
    for i, word in enumerate([f"@{tmp_path}/list.txt", f"{tmp_path}/photos.tar"]):
        model = f"{tmp_path}/small.py:Small"
        hookscope.extract(model, tmp_path / f"{i}", layers="head", input=word, batch=4, workers=0)
        assert torch.equal(joined(tmp_path / f"{i}", "head/output"), expected)
    names = [
        json.loads(line)["path"]
        for line in (tmp_path / "1" / "inputs.jsonl").read_text().splitlines()
    ]
    assert names == [f"{tmp_path}/photos.tar::{path.name}" for path in files]


def test_a_tar_that_is_cut_off_or_damaged_loses_no_row_in_silence(photos, tmp_path) -> None:
    path = tmp_path / "photos.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("00.jpg", "01.jpg"):
            archive.add(photos / name, name)
    assert len(list_entries([str(path)])) == 2
    with tarfile.open(path) as archive:
        at = archive.getmembers()[1].offset
    whole = path.read_bytes()
    for damaged in (whole[: at + 100], whole[:at] + b"x" + whole[at + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=f"it is cut off or damaged at byte {at}"):
            list_entries([str(path)])


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


@pytest.mark.parametrize(
    "wrong",
    [
        *({"every": 0}, {"every": -1}, {"batch": 0}, {"batch": -2}, {"workers": -1}),
        *({"shard_size": 0}, {"memory": 0}, {"decode": "quick"}, {"autocast": "float8"}),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(photos, tmp_path, wrong) -> None:
    with pytest.raises(RequestError, match=next(iter(wrong))):
        extract(photos, tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def test_every_second_input(photos, tmp_path) -> None:
    extract(photos, tmp_path / "all", batch=1)
    extract(photos, tmp_path / "half", every=2, batch=1)
    half, whole = (joined(tmp_path / name, "head/output") for name in ("half", "all"))
    assert torch.equal(half, whole[::2])


def test_what_has_no_dimension_for_the_inputs_is_refused(photos, tmp_path) -> None:
    source = tmp_path / "small.py"
    text = source.read_text()
    source.write_text(
        text.replace("return self.head(", "self.head.weight; return self.sum(")
        .replace("self.head = nn.Linear(4, 3)", "self.head = nn.Linear(4, 3); self.sum = Sum()")
        .replace(
            "class Small",
            "class Sum(nn.Module):\n    def forward(self, x):\n"
            "        return x.sum(0)\n\nclass Small",
        )
    )
    with pytest.raises(LayerError, match="sum/output has no batch dimension"):
        extract(photos, tmp_path / "out", layers="sum")


def test_rows_along_another_dimension_come_to_the_front(photos, tmp_path) -> None:
    source = tmp_path / "small.py"
    text = source.read_text()
    source.write_text(
        text.replace(
            "return self.head(self.pool(x).flatten(1))",
            "return self.turn(self.head(self.pool(x).flatten(1)))",
        )
        .replace("self.head = nn.Linear(4, 3)", "self.head = nn.Linear(4, 3); self.turn = Turn()")
        .replace(
            "class Small",
            "class Turn(nn.Module):\n    def forward(self, x):\n        return x.T\n\nclass Small",
        )
    )
    extract(photos, tmp_path / "out", layers=["head", "turn"])
    assert torch.equal(
        joined(tmp_path / "out", "turn/output"), joined(tmp_path / "out", "head/output")
    )


def test_no_hook_and_no_memory_format_stays_on_a_module_that_was_given(photos, tmp_path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    out = tmp_path / "out"
    hookscope.extract(
        model, out, layers="0", input=str(photos), preprocess="none", batch=4, workers=0, size=16
    )
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert joined(out, "0/output").shape == (12, 4, 14, 14)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "batch", "idle"),
    [(2, 2, 0), pytest.param(3, 6, 1, marks=pytest.mark.exhaustive)],
)
def test_several_processes_write_what_one_writes(photos, tmp_path, processes, batch, idle) -> None:
    (tmp_path / "run.py").write_text(
        "import hookscope, logging; logging.basicConfig()\n"
        "hookscope.extract('small.py:Small', 'out/', layers=['relu', 'head'], input=PHOTOS,"
        f" batch={batch}, shard_size=1, workers=0)\n".replace("PHOTOS", repr(str(photos)))
        + "from pathlib import Path\n"
        "threads = [task.read_text() for task in Path('/proc/self/task').glob('*/comm')]\n"
        "assert not [name for name in threads if 'gloo' in name]  # they may end in an abort\n"
    )
    extract(photos, tmp_path / "one", batch=batch)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words = [*launch, "--nproc-per-node", str(processes), "run.py"]
    done = subprocess.run(words, cwd=tmp_path, check=True, stderr=subprocess.PIPE, text=True)
    document = f"{processes} processes share {12 // batch} shards, so {idle} have"
    assert (document in done.stderr) is bool(idle)
    one, several = contents(tmp_path / "one"), contents(tmp_path / "out")
    for name in one:
        if not name.endswith(".json"):
            assert several[name] == one[name], name
    theirs, ours = (
        read_json(parse_location(tmp_path / word), "manifest.json") for word in ("one", "out")
    )
    assert weight_map(tmp_path / "out") == weight_map(tmp_path / "one")
    assert theirs.pop("model") != ours.pop("model")  # the paths of the file differ
    assert theirs == ours


def test_an_object_store_gets_the_same_files(photos, tmp_path) -> None:
    import fsspec

    extract(photos, tmp_path / "disk")
    extract(photos, "memory://lab/run1")
    store = fsspec.filesystem("memory")
    found = {path.removeprefix("/lab/run1/"): store.cat(path) for path in store.find("/lab/run1")}
    assert found == contents(tmp_path / "disk")
    store.pipe_file("/lab/run1/rows-00000004.safetensors", b"damaged")
    extract(photos, "memory://lab/run1", resume=True)
    assert {p.removeprefix("/lab/run1/"): store.cat(p) for p in store.find("/lab/run1")} == found
    store.rm("/lab", recursive=True)


@pytest.mark.parametrize("more", [{}, {"store_dtype": "int8"}, {"stats_only": True}])
def test_the_index_tells_the_bytes_of_all_tensors(photos, tmp_path, more) -> None:
    out = tmp_path / "out"
    extract(photos, out, **more)
    index = json.loads((out / "features.safetensors.index.json").read_text())
    tensors = [
        t for file in set(index["weight_map"].values()) for t in load_file(out / file).values()
    ]
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors)
    assert hookscope.verify(out).ok


def test_without_a_size_a_shard_is_a_sixteenth_of_the_rows(photos, tmp_path) -> None:
    for i in range(20, 40):
        (photos / f"{i}.jpg").write_bytes((photos / "00.jpg").read_bytes())
    extract(photos, tmp_path / "whole", batch=2, shard_size=10**6)
    done = extract(photos, tmp_path / "out", batch=2, shard_size=None)
    assert [shard["rows"] for shard in done.manifest["shards"]] == [2] * 16
    assert torch.equal(
        joined(tmp_path / "out", "relu/output"), joined(tmp_path / "whole", "relu/output")
    )


@pytest.mark.parametrize("moment", ["begun", "finished"])
def test_what_a_killed_process_had_half_written_is_no_part_of_the_results(
    photos, tmp_path, moment
) -> None:
    out = tmp_path / "out"
    extract(photos, out)
    before = contents(out)
    if moment == "begun":
        begin_again(out)
    strays = (
        ".parts/.00000004.json.part",
        ".manifest.json.part",
        ".rows-00000008.safetensors.part",
    )
    for name in strays:
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("")
    extract(photos, out, resume=True)
    assert contents(out) == before


class Wide(nn.Module):
    def forward(self, x):
        return x.repeat(1, 77)


@pytest.mark.exhaustive
def test_the_batches_held_behind_a_slow_disk_fit_into_the_memory(tmp_path, monkeypatch) -> None:
    write, held = ShardFile.write, []

    def slowly(file: ShardFile, first: int, values: dict[str, torch.Tensor]) -> int:
        deadline = time.monotonic() + 300
        while True:  # until the run has waited once because the queue was full
            time.sleep(0.1)
            tensors = [one for one in gc.get_objects() if type(one) is torch.Tensor]
            wide = [one for one in tensors if one.shape[1:] == (77,) and not one.is_meta]
            results = {one.data_ptr(): one.nbytes for one in wide}
            held.append(sum(results.values()))
            if (
                max(held) >= 4 * sum(one.nbytes for one in values.values())
                or time.monotonic() > deadline
            ):
                break
        return write(file, first, values)

    monkeypatch.setattr(ShardFile, "write", slowly)
    values, memory = torch.rand(64, 1), 7520
    more = {"workers": 0, "layers": ".", "memory": memory}
    done = hookscope.extract(Wide(), tmp_path / "out", input=TensorDataset(values), **more)
    batch = done.manifest["batch"] * 77 * 4
    assert 4 * batch == max(held) <= memory
