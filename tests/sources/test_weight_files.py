"""Sharded checkpoints are read as one; an inconsistent one is an error."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from blake3 import blake3
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file
from torch import nn

import hookscope
from hookscope.errors import RequestError, WeightsError
from hookscope.files.weight_files import find_weight_files
from hookscope.sources.loaded import WeightsRequest
from hookscope.sources.weights import load_file_into
from tests.refusals import refused

SAFE, PICKLED = "model.safetensors.index.json", "pytorch_model.bin.index.json"


def net(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40), nn.Linear(40, 50))


def same(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder that huggingface_hub wrote: three files and their index."""
    save_torch_state_dict(net(1).state_dict(), tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    return tmp_path


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
    target = net()
    info = load_file_into(target, WeightsRequest(str(index if by == "index" else tmp_path)))
    assert same(target, net(1))
    assert (info.missing, info.unexpected) == ((), ())


def test_the_hash_of_a_set_is_that_of_what_b3sum_prints(shards: Path) -> None:
    files = sorted(file.name for file in shards.glob("*.safetensors"))
    lines = [
        f"{blake3((shards / name).read_bytes()).hexdigest()}  {name}\n" for name in (SAFE, *files)
    ]
    if shutil.which("b3sum"):
        command = ["b3sum", SAFE, *files]
        printed = subprocess.run(command, cwd=shards, capture_output=True, text=True, check=True)
        assert printed.stdout == "".join(lines)
    expected = blake3("".join(lines).encode()).hexdigest()
    assert load_file_into(net(), WeightsRequest(str(shards))).blake3 == expected


def test_the_hash_of_a_set_is_the_same_from_any_folder(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = find_weight_files(str(shards)).blake3()
    monkeypatch.chdir(shards)
    assert find_weight_files(SAFE).blake3() == find_weight_files(".").blake3() == elsewhere


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_folder_with_one_file_is_that_file(tmp_path: Path, name: str) -> None:
    save = save_file if name.endswith("safetensors") else torch.save
    save(net(1).state_dict(), tmp_path / name)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "training_args.bin").write_bytes(b"no weights")
    target = net()
    info = load_file_into(target, WeightsRequest(str(tmp_path)))
    assert same(target, net(1))
    assert info.blake3 == blake3((tmp_path / name).read_bytes()).hexdigest()


def test_links_to_a_cache_elsewhere_are_followed(shards: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in [*shards.glob("*.safetensors"), shards / SAFE]:
        (snapshot / file.name).symlink_to(file)
    target = net()
    load_file_into(target, WeightsRequest(str(snapshot)))
    assert same(target, net(1))


@pytest.mark.parametrize(
    "name",
    ["../out.safetensors", "/etc/passwd", "C:\\x.safetensors", "a/../../b", "..", "", "./x", "a\0"],
)
def test_an_index_may_not_lead_out_of_its_folder(shards: Path, name: str) -> None:
    save_file(net(2).state_dict(), shards.parent / "out.safetensors")
    change_map(shards / SAFE, lambda names: names.update({"0.weight": name}))
    with refused(WeightsError, "outside the folder", status=2):
        load_file_into(net(), WeightsRequest(str(shards)))


def test_a_missing_file_of_a_set_is_named(shards: Path) -> None:
    gone = sorted(shards.glob("*.safetensors"))[1]
    gone.unlink()
    with refused(
        WeightsError, r"1 of the 3 files .* are missing", message=gone.name, hint="Download"
    ):
        load_file_into(net(), WeightsRequest(str(shards)))


@pytest.mark.parametrize("length", [0, 7, 60, -1])
def test_a_cut_off_file_of_a_set_is_named(shards: Path, length: int) -> None:
    cut = sorted(shards.glob("*.safetensors"))[1]
    cut.write_bytes(cut.read_bytes()[:length])
    with pytest.raises(WeightsError) as caught:
        load_file_into(net(), WeightsRequest(str(shards)))
    assert cut.name in caught.value.message
    assert caught.value.exit_code == 2


def test_an_index_that_names_tensors_which_no_file_has_is_refused(shards: Path) -> None:
    change_map(shards / SAFE, lambda names: names.update({"3.weight": names["0.weight"]}))
    with pytest.raises(WeightsError, match=r"'3\.weight' is not in .*although the index"):
        load_file_into(net(), WeightsRequest(str(shards)))


def test_of_a_set_the_tensors_that_the_index_names_are_read(shards: Path) -> None:
    change_map(shards / SAFE, lambda names: names.pop("0.bias"))
    info = load_file_into(net(), WeightsRequest(str(shards), partial=True))
    assert info.missing == ("0.bias",)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", "[" * 100_000, "\udc00", "1" * 10_000),
        *('{"weight_map": {}}', '{"weight_map": []}', '{"weight_map": {"a": 3}}'),
    ],
)
def test_a_damaged_index_is_refused(shards: Path, text: str) -> None:
    (shards / SAFE).write_text(text, errors="surrogatepass")
    with pytest.raises(WeightsError, match="is not a valid index of weights") as caught:
        find_weight_files(str(shards))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("files", "message", "hint"),
    [
        ([], "contains no weights", "an index"),
        (["config.json"], "contains no weights", "an index"),
        (["a.safetensors", "b.safetensors"], "2 weights files and no index", "Name one of them"),
        (["a.bin.index.json", "b.bin.index.json"], "2 weights files", "Name one of them"),
        ([".metadata", "__0_0.distcp"], "torch.distributed.checkpoint", "dcp_to_torch"),
    ],
)
def test_a_folder_without_weights_or_with_several_is_a_wrong_request(
    tmp_path: Path, files: list[str], message: str, hint: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    with refused(RequestError, message, hint=hint):
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "False\n"), done.stderr
    assert "is not a valid index of weights" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_command_takes_a_folder_and_writes_its_hash(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self): super().__init__(nn.Linear(30, 40), nn.Linear(40, 50))\n"
    )
    stored = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 50))
    (tmp_path / "set").mkdir()
    save_torch_state_dict(stored.state_dict(), tmp_path / "set", max_shard_size="5KB")
    options = ["--weights", "set", "--shape", "2x30", "--what", "input,output", "--output"]
    command = [sys.executable, "-m", "hookscope", "capture", "net.py:Net", *options]
    done = subprocess.run(
        [*command, "out.safetensors"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    capture = hookscope.load(tmp_path / "out.safetensors")
    assert capture.metadata["model"]["blake3"] == find_weight_files(str(tmp_path / "set")).blake3()
    assert torch.equal(capture["./output"], stored(capture["./input.0"].clone()))  # aligned
