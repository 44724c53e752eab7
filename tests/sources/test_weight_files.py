"""Sharded checkpoints are read as one; an inconsistent one is an error."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file
from torch import nn

import hookscope
from hookscope.errors import RequestError, WeightsError
from hookscope.files.weight_files import find_weight_files
from hookscope.sources.loaded import WeightsInfo, WeightsRequest
from hookscope.sources.weights import load_file_into
from tests.conftest import Run
from tests.processes import run_python
from tests.refusals import refused
from tests.sources.test_weights import same

SAFE, PICKLED = "model.safetensors.index.json", "pytorch_model.bin.index.json"


def net(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40), nn.Linear(40, 50))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder that huggingface_hub wrote: three files and their index."""
    save_torch_state_dict(net(1).state_dict(), tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    return tmp_path


def fill(path: Path, **more: Any) -> tuple[nn.Module, WeightsInfo]:
    target = net()
    return target, load_file_into(target, WeightsRequest(str(path), **more))


def change_map(index: Path, change: Callable[[dict[str, str]], object]) -> None:
    content = json.loads(index.read_text())
    change(content["weight_map"])
    index.write_text(json.dumps(content))


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("by", ["folder", "index"])
def test_a_sharded_set_is_read_by_its_folder_or_its_index(
    tmp_path: Path, safe: bool, by: str
) -> None:
    state = net(1).state_dict()
    save_torch_state_dict(state, tmp_path, max_shard_size="5KB", safe_serialization=safe)
    index = tmp_path / (SAFE if safe else PICKLED)
    assert index.exists()
    target, info = fill(index if by == "index" else tmp_path)
    assert same(target, net(1))
    assert (info.missing, info.unexpected) == ((), ())


def test_the_hash_of_a_set_is_that_of_what_b3sum_prints_from_any_folder(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(file.name for file in shards.glob("*.safetensors"))
    lines = [
        f"{blake3((shards / name).read_bytes()).hexdigest()}  {name}\n" for name in (SAFE, *files)
    ]
    if shutil.which("b3sum"):
        command = ["b3sum", SAFE, *files]
        printed = subprocess.run(command, cwd=shards, capture_output=True, text=True, check=True)
        assert printed.stdout == "".join(lines)
    expected = blake3("".join(lines).encode()).hexdigest()
    assert fill(shards)[1].blake3 == expected
    monkeypatch.chdir(shards)
    assert find_weight_files(SAFE).blake3() == find_weight_files(".").blake3() == expected


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_folder_with_one_file_is_that_file(tmp_path: Path, name: str) -> None:
    save = save_file if name.endswith("safetensors") else torch.save
    save(net(1).state_dict(), tmp_path / name)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "training_args.bin").write_bytes(b"no weights")
    target, info = fill(tmp_path)
    assert same(target, net(1))
    assert info.blake3 == blake3((tmp_path / name).read_bytes()).hexdigest()


def test_links_to_a_cache_elsewhere_are_followed(shards: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in [*shards.glob("*.safetensors"), shards / SAFE]:
        (snapshot / file.name).symlink_to(file)
    assert same(fill(snapshot)[0], net(1))


@pytest.mark.parametrize(
    "name",
    ["../out.safetensors", "/etc/passwd", "C:\\x.safetensors", "a/../../b", "..", "", "./x", "a\0"],
)
def test_an_index_may_not_lead_out_of_its_folder(shards: Path, name: str) -> None:
    save_file(net(2).state_dict(), shards.parent / "out.safetensors")
    change_map(shards / SAFE, lambda names: names.update({"0.weight": name}))
    with refused(WeightsError, "outside", status=2):
        fill(shards)


@pytest.mark.parametrize("length", [None, 0, 7, 60, -1])
def test_a_missing_or_cut_off_file_of_a_set_is_named(shards: Path, length: int | None) -> None:
    cut = sorted(shards.glob("*.safetensors"))[1]
    if length is None:
        cut.unlink()
    else:
        cut.write_bytes(cut.read_bytes()[:length])
    match = "1 of the 3 files" if length is None else None
    with refused(WeightsError, match, message=cut.name, status=2):
        fill(shards)


def test_an_index_that_names_tensors_which_no_file_has_is_refused(shards: Path) -> None:
    change_map(shards / SAFE, lambda names: names.update({"3.weight": names["0.weight"]}))
    with pytest.raises(WeightsError, match=r"'3\.weight'"):
        fill(shards)


def test_of_a_set_the_tensors_that_the_index_names_are_read(shards: Path) -> None:
    change_map(shards / SAFE, lambda names: names.pop("0.bias"))
    assert fill(shards, partial=True)[1].missing == ("0.bias",)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", "[" * 100_000, "\udc00", "1" * 10_000),
        *('{"weight_map": {}}', '{"weight_map": []}', '{"weight_map": {"a": 3}}'),
    ],
)
def test_a_damaged_index_is_refused(shards: Path, text: str) -> None:
    (shards / SAFE).write_text(text, errors="surrogatepass")
    with refused(WeightsError, "index", status=2):
        find_weight_files(str(shards))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no weights"),
        (["config.json"], "no weights"),
        (["a.safetensors", "b.safetensors"], "2 weights files"),
        (["a.bin.index.json", "b.bin.index.json"], "2 weights files"),
        ([".metadata", "__0_0.distcp"], "torch.distributed.checkpoint"),
    ],
)
def test_a_folder_without_weights_or_with_several_is_a_wrong_request(
    tmp_path: Path, files: list[str], message: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    with refused(RequestError, message):
        find_weight_files(str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet18", "sample_models/digits.py:trained"])
def test_a_set_that_is_not_whole_is_refused_before_torch_is_imported(
    shards: Path, model: str
) -> None:
    (shards / SAFE).write_text("{}")
    code = (
        "import sys; from hookscope.cli.main import main\n"
        f"sys.argv = ['hookscope', 'capture', {model!r}, '--weights', {str(shards)!r}]\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules)"
    )
    done = run_python("-c", code, status=2)
    assert done.stdout == "False\n"
    assert "index" in done.stderr and "Traceback" not in done.stderr


def test_a_folder_is_taken_from_the_command_line_and_its_hash_written(
    run: Run, tmp_path: Path
) -> None:
    stored = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 50))
    (tmp_path / "net.py").write_text(
        "from torch import nn\nnet = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 50))\n"
    )
    (tmp_path / "set").mkdir()
    save_torch_state_dict(stored.state_dict(), tmp_path / "set", max_shard_size="5KB")
    options = ["--weights", "set", "--shape", "2x30", "--what", "input,output"]
    done = run("capture", "net.py:net", *options, "--output", "out.safetensors", cwd=tmp_path)
    assert done.rc == 0, done.stderr
    capture = hookscope.load(tmp_path / "out.safetensors")
    assert capture.metadata["model"]["blake3"] == find_weight_files(str(tmp_path / "set")).blake3()
    assert torch.equal(capture["./output"], stored(capture["./input.0"].clone()))  # aligned
