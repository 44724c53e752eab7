"""``--device-map``: a model spread over memory and a disk, or over GPUs, gives the same values."""

from __future__ import annotations

import gc
import sys
import warnings
from pathlib import Path

import accelerate
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hookscope
from hookscope import load_model as load
from hookscope.errors import CheckFailed, EnvironmentFault, RequestError, StoreError
from hookscope.execution.device_dispatch import _offload_folder, unsplit
from hookscope.execution.isolation import preserve_model_state
from hookscope.execution.verification import bit_identical
from hookscope.hooks.early_stop import EarlyStop
from hookscope.hooks.layers import layers_of
from hookscope.specs.choices import DEVICE_MAPS

# A block that takes the weights of a part without calling it, a stack with a parameter of its own,
# tied weights, and a buffer that train mode changes.
SOURCE = """
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.down(F.linear(x, self.up.weight, self.up.bias).relu())

class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.randn(3, 8))
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        x = x + self.place
        for block in self.blocks:
            x = block(x)
        return x

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(1, 1, 8))
        self.embed, self.head = nn.Linear(8, 8), nn.Linear(8, 8)
        self.head.weight = self.embed.weight
        self.stack, self.norm = Stack(), nn.BatchNorm1d(3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = self.norm(self.stack(self.embed(x) + self.first))
        return self.head(self.attention(x, x, x)[0])

def example_input():
    return torch.randn(2, 3, 8)
"""
SPREAD = {"device_map": "auto", "max_memory": {"cpu": 2000}}


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "net.py").write_text(SOURCE)
    return f"{tmp_path}/net.py:Net"


def spread_note(caplog: pytest.LogCaptureFixture) -> str:
    [note] = [r.getMessage() for r in caplog.records if r.getMessage().startswith("device map:")]
    return note


def on_disk(net: str, folder: Path) -> nn.Module:
    """The model with all of it on the disk, as its owner may hand it over."""
    model = hookscope.load_model(net).module
    names = {name: "disk" for name, _ in model.named_children()} | {"first": "cpu"}
    preload = ["Block", "MultiheadAttention"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that "first" is a parameter, no module
        return accelerate.dispatch_model(
            model, names, main_device="cpu", offload_dir=folder, preload_module_classes=preload
        )


MORE = [{"train": True}, {"dtype": "float64"}, {"attention": True}]


@pytest.mark.parametrize(
    ("device_map", "more"),
    [*((device_map, {}) for device_map in DEVICE_MAPS), *(("auto", more) for more in MORE)],
)
def test_values_are_bit_equal_to_those_of_the_model_in_memory(
    net: str, caplog: pytest.LogCaptureFixture, device_map: str, more: dict[str, object]
) -> None:
    plain = hookscope.capture(net, what=("output", "input"), **more)
    caplog.set_level("INFO")
    spread = {**SPREAD, "device_map": device_map}
    shot = hookscope.capture(net, what=("output", "input"), verify=True, **more, **spread)
    assert "disk" in spread_note(caplog)
    assert list(shot) == list(plain)
    assert all(bit_identical(shot[key], plain[key]) for key in plain)


def test_weights_are_converted_before_it_is_settled_what_fits(
    net: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for dtype, fits in ((None, False), ("bfloat16", True)):
        caplog.clear()
        hookscope.capture(net, device_map="auto", max_memory={"cpu": 3000}, dtype=dtype)
        assert ("disk" not in spread_note(caplog)) is fits


def test_gradients_are_those_of_the_model_in_memory(net: str) -> None:
    plain = hookscope.grads(net, loss="sum")
    shot = hookscope.grads(net, loss="sum", **SPREAD)
    assert all(bit_identical(shot[key], plain[key]) for key in shot)
    missing = plain.keys() - shot.keys()
    assert {"stack.blocks.3.down/weight.grad"} <= missing <= {k for k in plain if "output" not in k}
    assert missing <= {f"{a.module}/{a.what}" for a in shot.absent if "offloaded" in a.reason}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_gives_the_same_shards_and_passes_end_early(
    net: str, tmp_path: Path, workers: int
) -> None:
    rows = TensorDataset(torch.randn(6, 3, 8))
    given = {"input": rows, "layers": "stack.blocks.1.down", "batch": 2, "workers": workers}
    hookscope.extract(net, tmp_path / "plain", **given)
    done = hookscope.extract(net, tmp_path / "spread", **given, **SPREAD)
    assert done.manifest["stopped_after"] == "stack.blocks.1.down"
    plain = (tmp_path / "plain" / "rows-00000000.safetensors").read_bytes()
    assert (tmp_path / "spread" / "rows-00000000.safetensors").read_bytes() == plain


def test_a_dataset_is_resumed_with_other_memory(net: str, tmp_path: Path) -> None:
    rows = TensorDataset(torch.randn(4, 3, 8))
    given = {"input": rows, "layers": "head", "batch": 2, "workers": 0, "device_map": "auto"}
    hookscope.extract(net, tmp_path / "out", **given, max_memory={"cpu": 2000})
    done = hookscope.extract(net, tmp_path / "out", **given, resume=True)
    assert done.resumed == 4


def weights_at(model: nn.Module) -> dict[str, str]:
    return {name: weight.device.type for name, weight in model.named_parameters()}


def test_a_pass_that_ends_early_or_fails_leaves_no_weight_behind(net: str, tmp_path: Path) -> None:
    model = on_disk(net, tmp_path)
    where = weights_at(model)
    assert where["stack.blocks.1.up.weight"] == "meta"
    last = next(layer for layer in layers_of(model) if layer.name == "stack.blocks.1.down")
    with torch.no_grad(), EarlyStop(model, {last: 1}).passing():
        model(torch.randn(2, 3, 8))
    assert weights_at(model) == where
    with pytest.raises(RuntimeError), preserve_model_state(model, train=False, seed=0):
        model(torch.randn(2, 4, 8))
    assert weights_at(model) == where


def test_the_size_of_a_recording_is_known_before_it_is_made(net: str, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="2,760") as plain:
        hookscope.capture(net, max_bytes=5)
    with pytest.raises(CheckFailed) as spread:
        hookscope.capture(on_disk(net, tmp_path), input=torch.randn(2, 3, 8), max_bytes=5)
    assert str(spread.value) == str(plain.value)


def test_what_lies_on_the_disk_goes_with_the_model(
    net: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    shot = hookscope.capture(net, **SPREAD)
    gc.collect()
    assert list((tmp_path / "scratch").iterdir()) == []
    assert shot["head/output"].shape == (2, 3, 8)


def test_a_disk_that_is_too_small_is_told_before_it_is_full() -> None:
    with pytest.raises(StoreError, match="bytes") as caught:
        _offload_folder(nn.Linear(1, 1), 1 << 60)
    assert "TMPDIR" in caught.value.hint


# Which parts stay together where there are several GPUs: accelerate's plan needs none of them.

WHOLE = {"BasicBlock", "Bottleneck", "EncoderBlock", "SwinTransformerBlock", "MBConv", "Inception"}
WHOLE |= {"InvertedResidual", "_DenseBlock", "Block", "CNBlock", "InceptionA", "InceptionC"}
WHOLE |= {"GPT2Block", "MultiheadAttention", "ResBottleneckBlock"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "word",
    [
        *("resnet18", "resnet50", "vit_b_16", "swin_t", "efficientnet_b0", "googlenet"),
        *("mobilenet_v2", "densenet121", "convnext_tiny", "inception_v3", "regnet_y_400mf"),
        *("timm:vit_tiny_patch16_224", "timm:swin_tiny_patch4_window7_224"),
    ],
)
def test_a_residual_block_is_not_split(word: str) -> None:
    model = load(word, meta=True).module
    size = sum(p.nbytes for p in model.parameters())
    room = {0: size // 2, 1: size // 2, "cpu": size}
    places = accelerate.infer_auto_device_map(model, room, no_split_module_classes=unsplit(model))
    assert len(set(places.values())) > 1
    whole = [name for name, part in model.named_modules() if type(part).__name__ in WHOLE]
    assert whole
    for name in whole:
        inside = {place for path, place in places.items() if path.startswith(f"{name}.")}
        assert len(inside) <= 1, name


def test_the_blocks_that_a_model_of_transformers_names_are_taken() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=9)
    with torch.device("meta"):
        model = nn.Sequential(transformers.GPT2Model(config))
    assert unsplit(model) == ["GPT2Block"]


def test_a_module_that_its_owner_made_is_not_spread(net: str) -> None:
    with pytest.raises(RequestError, match="module"):
        hookscope.capture(load(net).module, input=torch.randn(2, 3, 8), **SPREAD)


def test_without_accelerate_it_is_told_how_to_install_it(
    net: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "hookscope.execution.device_dispatch")
    monkeypatch.setitem(sys.modules, "accelerate", None)  # as where it is not installed
    with pytest.raises(EnvironmentFault, match="accelerate") as caught:
        hookscope.capture(net, **SPREAD)
    assert "hookscope[accelerate]" in caught.value.hint


# On GPUs

several = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="takes two GPUs")


@several
@pytest.mark.parametrize("device_map", DEVICE_MAPS)
def test_values_over_two_gpus_are_those_of_one(net: str, device_map: str) -> None:
    one = hookscope.grads(net, loss="sum", device="cuda")
    memory = {"cuda:0": 3000, "cuda:1": 10**6}
    two = hookscope.grads(net, loss="sum", device_map=device_map, max_memory=memory)
    if device_map != "balanced_low_0":  # all of it may fit the others
        assert len({r.device for r in two.records}) > 1
    assert list(two) == list(one)
    for key in one:
        torch.testing.assert_close(two[key].cpu(), one[key].cpu())


@several
def test_a_dataset_over_two_gpus_gives_the_rows_of_one(net: str, tmp_path: Path) -> None:
    rows = TensorDataset(torch.randn(6, 3, 8))
    given = {"input": rows, "layers": "head", "batch": 2, "workers": 0}
    hookscope.extract(net, tmp_path / "one", **given, device="cuda")
    hookscope.extract(net, tmp_path / "two", **given, **SPREAD | {"max_memory": {"cuda:0": 3000}})
    one, two = (hookscope.load(tmp_path / name)["head"].torch() for name in ("one", "two"))
    torch.testing.assert_close(one, two)
