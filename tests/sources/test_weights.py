"""Weights from files: wrappers, misfits, and nothing unpickled."""

from __future__ import annotations

import hashlib
import logging
import pickle
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from hookscope.errors import RequestError, WeightsError
from hookscope.sources.loaded import WeightsWord
from hookscope.sources.weights import load_file_into


def net(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def same(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
def test_weights_are_read_and_hashed(tmp_path: Path, suffix: str) -> None:
    path, source, target = tmp_path / f"w{suffix}", net(1), net()
    (save_file if suffix == ".safetensors" else torch.save)(source.state_dict(), path)
    info = load_file_into(target, WeightsWord(str(path)))
    assert same(target, source)
    assert (info.missing, info.unexpected, info.stripped) == ((), (), ())
    assert info.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict"])
def test_checkpoints_of_training_are_opened(tmp_path: Path, key: str) -> None:
    path, source, target = tmp_path / "w.pth", net(1), net()
    torch.save({"epoch": 3, key: source.state_dict(), "step": torch.tensor(5)}, path)
    load_file_into(target, WeightsWord(str(path)))
    assert same(target, source)


@pytest.mark.parametrize(
    ("rename", "stripped"),
    [
        (lambda name: f"module.{name}", ("module.",)),
        (lambda name: f"_orig_mod.{name}", ("_orig_mod.",)),
        (lambda name: f"module._orig_mod.{name}", ("_orig_mod.", "module.")),
        (lambda name: name.replace("0.", "0._fsdp_wrapped_module."), ("_fsdp_wrapped_module.",)),
        (lambda name: f"module.module.{name}", ("module.",)),
    ],
)
def test_prefixes_of_wrappers_are_taken_off(tmp_path: Path, rename, stripped) -> None:
    path, source, target = tmp_path / "w.pth", net(1), net()
    torch.save({rename(name): value for name, value in source.state_dict().items()}, path)
    info = load_file_into(target, WeightsWord(str(path)))
    assert same(target, source)
    assert info.stripped == stripped
    assert not info.missing
    assert not info.unexpected


def test_a_module_that_is_called_module_keeps_its_name(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    source, target = nn.ModuleDict({"module": net(1)}), nn.ModuleDict({"module": net()})
    torch.save(source.state_dict(), path)
    assert load_file_into(target, WeightsWord(str(path))).stripped == ()
    assert same(target, source)


def test_missing_and_unexpected_names_are_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, state = tmp_path / "w.pth", net(1).state_dict()
    del state["0.bias"]
    state["head.weight"] = torch.ones(1)
    torch.save(state, path)
    target = net()
    kept = target[0].bias.clone()
    with caplog.at_level(logging.WARNING, "hookscope"):
        info = load_file_into(target, WeightsWord(str(path)))
    assert (info.missing, info.unexpected) == (("0.bias",), ("head.weight",))
    assert torch.equal(target[0].bias, kept)
    assert "0.bias" in caplog.text
    assert "head.weight" in caplog.text


def test_a_tied_weight_that_was_saved_once_is_not_missing(tmp_path: Path) -> None:
    def tied() -> nn.ModuleDict:
        model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
        model["b"].weight = model["a"].weight
        return model

    path, state = tmp_path / "w.pth", tied().state_dict()
    del state["b.weight"]
    torch.save(state, path)
    assert load_file_into(tied(), WeightsWord(str(path))).missing == ()


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("open('ran', 'w')",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (net(), "Python objects (torch.nn.modules.container.Sequential)"),
        ({"state_dict": Evil()}, "which hookscope does not unpickle"),
        ([1, 2], "holds no weights by name"),
        ({"epoch": 3}, "holds no weights by name"),
        ({"state_dict": {}}, "holds no weights by name"),
        ({"x": torch.ones(1)}, "No name in"),
        ({"0.weight": torch.ones(2, 2), "0.bias": torch.ones(4)}, "do not fit the model"),
    ],
)
def test_content_that_is_no_fitting_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(content, "w.pth")
    with pytest.raises(WeightsError) as caught:
        load_file_into(net(), WeightsWord("w.pth"))
    assert message in caught.value.message
    assert caught.value.hint
    assert not Path("ran").exists()


def test_a_misfit_names_the_tensor_and_both_shapes(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save(nn.Sequential(nn.Linear(5, 4)).state_dict(), path)
    with pytest.raises(WeightsError, match=r"0\.weight.*4, 5.*4, 3"):
        load_file_into(net(), WeightsWord(str(path)))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("length", [0, 9, 200])
def test_a_damaged_file_is_refused(tmp_path: Path, suffix: str, length: int) -> None:
    path = tmp_path / f"w{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(net().state_dict(), path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(WeightsError) as caught:
        load_file_into(net(), WeightsWord(str(path)))
    assert str(path) in caught.value.message
    assert "Write or download it again" in caught.value.hint


@pytest.mark.parametrize("data", [b"hello", pickle.dumps(Evil()), b"PK\x03\x04", b"\x80"])
def test_a_file_that_pytorch_never_wrote_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.pth").write_bytes(data)
    with pytest.raises(WeightsError):
        load_file_into(net(), WeightsWord("w.pth"))
    assert not Path("ran").exists()


def test_a_missing_file_is_a_wrong_request(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        load_file_into(net(), WeightsWord(str(tmp_path / "w.pth")))
    assert caught.value.exit_code == 2


def test_a_folder_is_a_wrong_request(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is a folder"):
        load_file_into(net(), WeightsWord(str(tmp_path)))


@pytest.mark.parametrize("file", ["photo.png", "photo.pth", "photo.safetensors"])
def test_an_image_is_told_for_what_it_is(tmp_path: Path, file: str) -> None:
    path = tmp_path / file
    Image.new("RGB", (4, 4)).save(path, "PNG")
    with pytest.raises(WeightsError, match="is an image, not weights") as caught:
        load_file_into(net(), WeightsWord(str(path)))
    assert "--input" in caught.value.hint


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_is_not_read_as_weights(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.jit.save(torch.jit.trace(net().eval(), torch.ones(1, 3)), str(path))
    with pytest.raises(WeightsError, match="is a TorchScript archive, not weights") as caught:
        load_file_into(net(), WeightsWord(str(path)))
    assert "This version does not read" in caught.value.hint
