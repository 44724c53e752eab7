"""Weights from files: wrappers, mismatches, and no unpickled code."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest
import torch
import torchvision
from blake3 import blake3
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from hookscope.errors import RequestError, WeightsError
from hookscope.sources.loaded import WeightsRequest
from hookscope.sources.weights import load_file_into
from tests.conftest import Run
from tests.refusals import refused


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
    info = load_file_into(target, WeightsRequest(str(path)))
    assert same(target, source)
    assert (info.missing, info.unexpected, info.stripped) == ((), (), ())
    assert info.blake3 == blake3(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict"])
def test_checkpoints_of_training_are_opened(tmp_path: Path, key: str) -> None:
    path, source, target = tmp_path / "w.pth", net(1), net()
    torch.save({"epoch": 3, key: source.state_dict(), "step": torch.tensor(5)}, path)
    load_file_into(target, WeightsRequest(str(path)))
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
    info = load_file_into(target, WeightsRequest(str(path)))
    assert same(target, source)
    assert info.stripped == stripped
    assert not info.missing
    assert not info.unexpected


def test_a_module_that_is_called_module_keeps_its_name(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    source, target = nn.ModuleDict({"module": net(1)}), nn.ModuleDict({"module": net()})
    torch.save(source.state_dict(), path)
    assert load_file_into(target, WeightsRequest(str(path))).stripped == ()
    assert same(target, source)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("lacks", ["0.bias", "0.weight", "1.running_mean", "1.num_batches_tracked"])
@pytest.mark.parametrize("complete", [True, False])
def test_a_file_is_refused_where_strict_loading_refuses_it(
    tmp_path: Path, suffix: str, lacks: str, complete: bool
) -> None:
    path, state = tmp_path / f"w{suffix}", net(1).state_dict()
    if complete:
        lacks = ""
    else:
        del state[lacks]
    (save_file if suffix == ".safetensors" else torch.save)(dict(state), path)
    try:
        net().load_state_dict(dict(state))
        fits = True
    except RuntimeError:
        fits = False
    assert fits is (complete or lacks == "1.num_batches_tracked")
    if fits:
        assert load_file_into(net(), WeightsRequest(str(path))).missing == ()
        return
    with refused(
        WeightsError, f"6 of the model's 7 tensors .*missing: {lacks}", hint="--partial", status=2
    ):
        load_file_into(net(), WeightsRequest(str(path)))
    assert load_file_into(net(), WeightsRequest(str(path), partial=True)).missing == (lacks,)


def test_a_buffer_that_is_not_saved_is_not_missing(tmp_path: Path) -> None:
    def with_buffer() -> nn.Module:
        model = net()
        model.register_buffer("scratch", torch.ones(3), persistent=False)
        return model

    path = tmp_path / "w.pth"
    torch.save(with_buffer().state_dict(), path)
    assert load_file_into(with_buffer(), WeightsRequest(str(path))).missing == ()


def test_state_besides_tensors_that_is_missing_is_named(tmp_path: Path) -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> str:
            return "extra"

        def set_extra_state(self, state: str) -> None:
            pass

    path = tmp_path / "w.pth"
    torch.save(nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(WeightsError, match="missing: _extra_state"):
        load_file_into(Extra(2, 2), WeightsRequest(str(path)))


def test_names_of_another_model_are_told_of_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save({f"net.{name}": value for name, value in net().state_dict().items()}, path)
    with pytest.raises(WeightsError) as caught:
        load_file_into(net(), WeightsRequest(str(path)))
    assert caught.value.message.startswith("0 of the model's 7 tensors are in")
    assert "net.0.weight" in caught.value.message
    assert "the model has 0.weight" in caught.value.message
    assert "--rename" in caught.value.hint


def test_missing_names_beside_unexpected_ones_hint_at_renaming(tmp_path: Path) -> None:
    path, state = tmp_path / "w.pth", net(1).state_dict()
    state["0.offset"] = state.pop("0.bias")
    torch.save(state, path)
    with refused(WeightsError, r"missing: 0\.bias; unexpected: 0\.offset", hint="--rename"):
        load_file_into(net(), WeightsRequest(str(path)))
    wanted = WeightsRequest(str(path), (("0.offset", "0.bias"),))
    assert load_file_into(net(), wanted).missing == ()


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("resnet18", "ResNet"),
        ("densenet121", "DenseNet"),
        ("vgg11", "VGG"),
        ("alexnet", "AlexNet"),
        ("mobilenet_v2", "MobileNet"),
        ("mobilenet_v3_small", "MobileNet"),
        ("efficientnet_b0", "EfficientNet"),
        ("convnext_tiny", "ConvNeXt"),
        ("swin_t", "Swin"),
        ("vit_b_16", "vision transformer"),
    ],
)
def test_the_family_of_a_wrong_models_checkpoint_is_named(
    tmp_path: Path, model: str, family: str
) -> None:
    with torch.device("meta"):
        names = torchvision.models.get_model(model).state_dict()
    path = tmp_path / "w.pth"
    torch.save(dict.fromkeys((f"module.{name}" for name in names), torch.ones(1)), path)
    with pytest.raises(WeightsError, match=family):
        load_file_into(nn.ModuleDict({"own": nn.Linear(2, 2)}), WeightsRequest(str(path)))


def test_the_command_refuses_the_checkpoint_of_another_model(run: Run, tmp_path: Path) -> None:
    torch.save(torchvision.models.alexnet(num_classes=2).state_dict(), tmp_path / "w.pth")
    done = run("capture", "resnet18", "--weights", "w.pth", cwd=tmp_path)
    assert done.rc == 2
    assert "0 of the model's 122 tensors" in done.stderr
    assert "AlexNet" in done.stderr
    assert not list(tmp_path.glob("*.safetensors"))


def test_partial_lists_missing_and_unexpected_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, state = tmp_path / "w.pth", net(1).state_dict()
    del state["0.bias"]
    state["head.weight"] = torch.ones(1)
    torch.save(state, path)
    target = net()
    kept = target[0].bias.clone()
    with caplog.at_level(logging.WARNING, "hookscope"):
        info = load_file_into(target, WeightsRequest(str(path), partial=True))
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
    assert load_file_into(tied(), WeightsRequest(str(path))).missing == ()


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("open('ran', 'w')",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (net(), "Python objects (torch.nn.modules.container.Sequential)"),
        ({"state_dict": Evil()}, "which hookscope does not unpickle"),
        ([1, 2], "contains no named weights"),
        ({"epoch": 3}, "contains no named weights"),
        ({"state_dict": {}}, "contains no named weights"),
        ({"x": torch.ones(1)}, "0 of the model's 7 tensors"),
        (
            {"0.weight": torch.ones(2, 2), "0.bias": torch.ones(4)},
            "1 of the model's 7 tensors is in",
        ),
    ],
)
def test_content_that_is_no_fitting_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(content, "w.pth")
    with refused(WeightsError, message=message):
        load_file_into(net(), WeightsRequest("w.pth"))
    assert not Path("ran").exists()


def test_a_misfit_names_the_tensor_and_both_shapes(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save(nn.Sequential(nn.Linear(5, 4)).state_dict(), path)
    with pytest.raises(WeightsError, match=r"0\.weight \(4x5 instead of 4x3\); missing: 1\.weight"):
        load_file_into(net(), WeightsRequest(str(path)))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("length", [0, 9, 200])
def test_a_damaged_file_is_refused(tmp_path: Path, suffix: str, length: int) -> None:
    path = tmp_path / f"w{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(net().state_dict(), path)
    path.write_bytes(path.read_bytes()[:length])
    with refused(WeightsError, message=str(path), hint="Write or download it again"):
        load_file_into(net(), WeightsRequest(str(path)))


@pytest.mark.parametrize("data", [b"hello", pickle.dumps(Evil()), b"PK\x03\x04", b"\x80"])
def test_a_file_that_pytorch_never_wrote_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.pth").write_bytes(data)
    with pytest.raises(WeightsError):
        load_file_into(net(), WeightsRequest("w.pth"))
    assert not Path("ran").exists()


def test_a_missing_file_is_a_wrong_request(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        load_file_into(net(), WeightsRequest(str(tmp_path / "w.pth")))
    assert caught.value.exit_code == 2


def two(first: str, second: str, seed: int = 0) -> nn.ModuleDict:
    return nn.ModuleDict({first: net(seed), second: nn.ModuleDict({"in": net(seed + 5)})})


@pytest.mark.parametrize(
    ("stored", "rename"),
    [
        (lambda name: name, {"backbone": "body", "head": "neck"}),
        (lambda name: f"module.{name}", {"backbone": "body", "head": "neck"}),
        (lambda name: f"module.{name}", {"module.backbone": "body", "head": "neck"}),
        (lambda name: f"module.{name}", {"module.backbone": "body", "module.head": "neck"}),
        (lambda name: f"_orig_mod.{name}", {"backbone": "body", "head": "neck"}),
        (lambda name: f"net.{name}", {"net.backbone": "body", "net.head": "neck"}),
        (lambda name: f"net.{name}", {"net": "", "net.backbone": "body", "net.head": "neck"}),
        (lambda name: name.replace("head.in", "in"), {"backbone": "body", "in": "neck.in"}),
        (lambda name: name.replace("head.in.", ""), {"": "neck.in", "backbone": "body"}),
    ],
)
def test_prefixes_are_replaced_as_they_stand_or_without_wrappers(
    tmp_path: Path, stored, rename: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "hookscope")
    path, source, target = tmp_path / "w.pth", two("backbone", "head", 1), two("body", "neck")
    torch.save({stored(name): value for name, value in source.state_dict().items()}, path)
    info = load_file_into(target, WeightsRequest(str(path), tuple(rename.items())))
    assert f"weights: renamed {len(source.state_dict())} keys in {path}" in caplog.text
    assert same(target, two("body", "neck", 1))
    assert (info.missing, info.unexpected) == ((), ())


def test_the_longest_prefix_counts_and_only_whole_parts_of_names(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save({"a.w": torch.ones(1), "ab.w": torch.ones(2), "a.b.w": torch.ones(3)}, path)
    target = nn.Module()
    for name, length in (("x", 1), ("ab", 2), ("y", 3)):
        target.add_module(name, nn.Module())
        target.get_submodule(name).w = nn.Parameter(torch.zeros(length))
    info = load_file_into(target, WeightsRequest(str(path), (("a", "x"), ("a.b", "y"))))
    assert (info.missing, info.unexpected) == ((), ())


@pytest.mark.parametrize(
    ("rename", "message", "hint"),
    [
        ((("bakbone", "body"),), "begins with 'bakbone'", "backbone"),
        ((("back", "body"),), "begins with 'back'", "backbone"),
        ((("zzz", "body"),), "begins with 'zzz'", "whole parts"),
        (
            (("backbone.0", "same"), ("backbone.1", "same")),
            "would both become 'same.",
            "Rename each prefix",
        ),
        ((("backbone", "elsewhere"),), "0 of the model's", "--rename"),
    ],
)
def test_a_prefix_that_cannot_be_replaced_is_a_wrong_request(
    tmp_path: Path, rename: tuple[tuple[str, str], ...], message: str, hint: str
) -> None:
    path = tmp_path / "w.pth"
    torch.save(nn.ModuleDict({"backbone": net()}).state_dict(), path)
    with refused(WeightsError, message=message, hint=hint, status=2):
        load_file_into(net(), WeightsRequest(str(path), rename))


def test_partial_takes_what_fits_and_tells_both_shapes_of_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, target = tmp_path / "w.pth", net()
    kept = target[0].weight.clone()
    state = net(1).state_dict()
    torch.save({**state, "0.weight": torch.ones(7, 3)}, path)
    with caplog.at_level(logging.WARNING, "hookscope"):
        info = load_file_into(target, WeightsRequest(str(path), partial=True))
    assert torch.equal(target[0].weight, kept)
    assert torch.equal(target[0].bias, state["0.bias"])
    messages = (
        f"weights: not loaded from {path} because of another shape: 0.weight (7x3 instead of 4x3)"
    )
    assert caplog.messages == [messages]
    assert info.missing == ("0.weight",)


def test_partial_with_nothing_that_fits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save({"0.weight": torch.ones(7, 3), "0.bias": torch.tensor(3.0)}, path)
    with pytest.raises(WeightsError, match=r"0 of .*7x3 instead of 4x3.*one number instead of 4"):
        load_file_into(net(), WeightsRequest(str(path), partial=True))


@pytest.mark.parametrize("file", ["photo.png", "photo.pth", "photo.safetensors"])
def test_an_image_is_told_for_what_it_is(tmp_path: Path, file: str) -> None:
    path = tmp_path / file
    Image.new("RGB", (4, 4)).save(path, "PNG")
    with refused(WeightsError, "is an image, not weights", hint="--input"):
        load_file_into(net(), WeightsRequest(str(path)))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_is_not_read_as_weights(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.jit.save(torch.jit.trace(net().eval(), torch.ones(1, 3)), str(path))
    with refused(
        WeightsError, "is a TorchScript archive, not weights", hint="Weights cannot be read"
    ):
        load_file_into(net(), WeightsRequest(str(path)))
