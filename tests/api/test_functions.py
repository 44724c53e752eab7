"""The Python face: keywords as on the command line, live modules, values back, no printing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision import models as zoo

import hookscope
from hookscope.errors import (
    CheckFailed,
    EnvironmentFault,
    ForwardError,
    LossError,
    ModelError,
)
from tests.conftest import REPO
from tests.hooks.test_values import hooks_left
from tests.oracle.by_hand import same_bits
from tests.zoo import Module


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(144, 5),
    )


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str], repo: Path) -> None:
    hookscope.tree("resnet18", shapes=True)
    hookscope.capture("resnet18", layers=["fc"], input=str(repo / "img.png"))
    hookscope.grads(small(), input=X)
    hookscope.models("resnet*")
    assert capfd.readouterr() == ("", "")


def test_output_is_what_the_model_returned() -> None:
    net = small().eval()
    shot = hookscope.capture(net, input=X, layers=["4"])
    with torch.no_grad():
        assert same_bits(shot.output, net(X))
    assert same_bits(shot.output, shot["4/output"])


def test_call_values_of_every_form_reach_the_model() -> None:
    net = Module(lambda self, x, *, scale=1.0, shift=0.0: x * scale + shift)
    one = torch.ones(1)
    for value, expected in [
        (one, 1),
        ((one,), 1),
        ({"x": one, "shift": one * 4}, 5),
        (((one,), {"scale": one * 3}), 3),
    ]:
        assert hookscope.capture(net, input=value).output.item() == expected


def test_train_mode_uses_the_batchs_own_statistics() -> None:
    shot = hookscope.capture(small(), input=X, layers=["1"], train=True)
    assert shot["1/output"].mean((0, 2, 3)).abs().max() < 1e-5
    assert shot.metadata["training"] is True


def test_a_model_that_changes_its_input_in_place_leaves_the_callers_alone() -> None:
    net = Module(lambda self, x: x.add_(1))
    x = torch.zeros(2)
    shot = hookscope.capture(net, input=x, what="input,output", verify=True)
    assert x.tolist() == [0, 0]
    assert shot["./input.0"].tolist() == [0, 0] and shot["./output"].tolist() == [1, 1]


def test_verify_demands_the_same_bits() -> None:
    shot = hookscope.capture(small(), input=X, verify=True)
    assert shot.metadata["verified"] is True
    unsteady = Module(lambda self, x: x + next(self.count))
    unsteady.count = iter(range(9))  # type: ignore[assignment]
    with pytest.raises(CheckFailed, match="output differs"):
        hookscope.capture(unsteady, input=X, verify=True)


def test_verify_accepts_dropout_and_nan_since_the_seed_is_the_same() -> None:
    net = nn.Sequential(nn.Dropout(0.5), Module(lambda self, x: x / 0 * 0))
    assert hookscope.capture(net, input=X, train=True, verify=True).metadata["verified"]


def test_verify_starts_from_the_same_buffers_even_if_forward_rebinds_them() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.seen + 1
            return x * self.seen

    net = Counting()
    assert hookscope.capture(net, input=X, verify=True).metadata["verified"]
    assert hookscope.grads(net, input=X, loss="sum", verify=True).metadata["verified"]
    assert net.seen.item() == 0


def test_strict_names_the_layer_that_never_ran_and_why() -> None:
    net = Module(lambda self, x: self.parts[0](x), parts=nn.ModuleList([nn.ReLU(), nn.Tanh()]))
    with pytest.raises(CheckFailed, match=r"2 of 4 .* parts .*contain"):
        hookscope.capture(net, input=X, strict=True)
    assert hookscope.capture(net, input=X, layers=["parts.0"], strict=True)


def test_an_exception_in_the_model_names_the_layer_and_what_was_recorded() -> None:
    def fail(self: Module, x: Tensor) -> Tensor:
        return x @ torch.ones(7, 7)

    net = nn.Sequential(nn.Identity(), nn.Sequential(Module(fail)))
    with pytest.raises(ForwardError) as caught:
        hookscope.capture(net, input=X)
    assert caught.value.layer == "1.0" and caught.value.recorded == 1
    assert "0/output" in str(caught.value)
    assert hooks_left(net) == 0


def test_a_model_that_ends_the_program_is_a_failure_of_that_layer() -> None:
    def leave(self: Module, x: Tensor) -> Tensor:
        raise SystemExit(7)

    with pytest.raises(ForwardError, match=r"layer 0 \(Module\): SystemExit: 7"):
        hookscope.capture(nn.Sequential(Module(leave)), input=X)


def test_a_gradient_without_a_finite_entry_has_no_norm() -> None:
    net = nn.Linear(2, 1)
    found = hookscope.grads(net, input=torch.full((1, 2), torch.nan), loss="sum", what=["param"])
    weight = next(r for r in found.records if r.what == "weight.grad")
    assert (weight.stats.nan, weight.stats.norm, weight.ratio) == (2, None, None)


def test_an_exception_in_backward_is_told_too() -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        y = x.exp()
        y.add_(1)  # exp keeps its result for the backward pass
        return y

    with pytest.raises(ForwardError, match=r"backward.*inplace"):
        hookscope.grads(Module(forward), input=X, loss="sum")


@pytest.mark.parametrize("limit", [100, 3_000])
def test_max_bytes_stops_before_or_while_recording(limit: int) -> None:
    with pytest.raises(CheckFailed, match=f"{limit:,}"):
        hookscope.capture(small(), input=X, max_bytes=limit)

    def look(self: Module, x: Tensor) -> Tensor:  # no pass on the meta device can foresee this
        return self.relu(x if x.sum().item() < 1e9 else x[:1])

    with pytest.raises(CheckFailed, match="Stopped at relu"):
        hookscope.capture(Module(look, relu=nn.ReLU()), input=X, max_bytes=100)


class Remembering(nn.Module):
    """Counts its calls, and keeps a table that its first call makes."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self.calls = 0
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.table is None:
            self.table = torch.ones(2, device=x.device)
        out: Tensor = self.lin(x) * self.calls + self.table
        return out


def test_a_pass_without_values_leaves_nothing_in_the_model() -> None:
    net, x = Remembering(), torch.ones(1, 2)
    tree = hookscope.tree(net, shapes=True, shape=(1, 2))
    assert tree.total.run is not None and tree.total.run.outputs == ("1x2",)
    assert (net.calls, net.table) == (0, None)
    with torch.no_grad():
        expected = net.lin(x) + 1
    shot = hookscope.capture(net, input=x, max_bytes=10**6)
    assert net.calls == 1 and same_bits(shot.output, expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    ["fasterrcnn_mobilenet_v3_large_320_fpn", "retinanet_resnet50_fpn", "ssd300_vgg16"],
)
def test_detectors_are_captured_and_have_gradients(name: str) -> None:
    layers = ["*head*"]
    shot = hookscope.capture(name, layers=layers, shape=(3, 96, 96), max_bytes=10**9)
    assert shot.coverage.executed
    found = hookscope.grads(name, layers=["*head*"], shape=(3, 96, 96), loss="sum", what="param")
    assert found["./input.0.0.grad"].shape == (3, 96, 96)
    tree = hookscope.tree(name, shapes=True, shape=(3, 96, 96), layers=["backbone"])
    assert tree.modules[0].run is not None and tree.modules[0].run.calls == 1


def test_a_large_recording_is_told_before_it_is_made(caplog: pytest.LogCaptureFixture) -> None:
    from hookscope.execution import trial_pass as size_estimate

    with caplog.at_level(logging.INFO, "hookscope"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(size_estimate, "LARGE", 10**5)
        hookscope.capture("resnet18", shape=(1, 3, 64, 64), layers=["layer1.*"])
    assert "size: " in caplog.text and "0.0 GB" in caplog.text


def test_a_frozen_model_still_has_gradients_at_its_values() -> None:
    net = small().eval().requires_grad_(False)
    found = hookscope.grads(net, input=X, loss="sum")
    assert {r.kind for r in found.records} == {"output.grad", "input.grad"}
    assert {a.reason for a in found.absent} == {"frozen"}


def test_nothing_to_differentiate_is_an_error() -> None:
    net = Module(lambda self, ids: self.table(ids), table=nn.Embedding(5, 3)).requires_grad_(False)
    with pytest.raises(LossError, match="frozen"):
        hookscope.grads(net, input=torch.tensor([1, 2]), loss="sum")
    found = hookscope.grads(net.requires_grad_(True), input=torch.tensor([1, 2]), loss="sum")
    reasons_by_key = {f"{a.module}/{a.what}": a.reason for a in found.absent}
    assert reasons_by_key["./input.0.grad"] == "integer"
    assert found["table/weight.grad"].sum() == 6


def test_half_precision_models_run_and_are_described_in_full() -> None:
    shot = hookscope.capture("resnet18", layers=["fc"], shape=(1, 3, 64, 64), dtype="bfloat16")
    record = shot.records[0]
    assert record.dtype == "bfloat16" and shot["fc/output"].dtype is torch.bfloat16
    assert record.stats.mean == pytest.approx(shot["fc/output"].double().mean().item())


def test_a_live_module_is_copied_before_it_is_cast() -> None:
    net = small()
    shot = hookscope.capture(net, input=X, dtype="float64")
    assert shot["0/output"].dtype is torch.float64
    assert net[0].weight.dtype is torch.float32


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(EnvironmentFault, match="no cuda device"):
        hookscope.capture(small(), input=X, device="cuda")
    assert hookscope.capture(small(), input=X, device="auto").metadata["device"] == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_gives_the_same_keys_and_files(tmp_path: Path) -> None:
    options: dict[str, Any] = {"layers": ["layer3.*"], "shape": (1, 3, 64, 64)}
    shot = hookscope.capture("resnet18", device="cuda", verify=True, **options)
    plain = hookscope.capture("resnet18", **options)
    assert list(shot) == list(plain) and shot.records[0].device == "cuda:0"
    shot.save(tmp_path / "a")
    again = hookscope.load(tmp_path / "a")
    assert all(same_bits(again[key], shot[key].cpu()) for key in again)
    assert hookscope.grads("resnet18", device="cuda", verify=True, **options)


def test_the_tree_is_that_of_named_modules() -> None:
    net = zoo.resnet18(weights=None)
    tree = hookscope.tree("resnet18")
    assert [node.name for node in tree.modules] == [name or "." for name, _ in net.named_modules()]
    assert tree.total.parameters == sum(p.numel() for p in net.parameters())
    for node, module in zip(tree.modules, net.modules(), strict=True):
        assert node.parameters == sum(p.numel() for p in module.parameters())
        assert node.bytes == sum(
            t.numel() * t.element_size() for t in [*module.parameters(), *module.buffers()]
        )


def test_shared_modules_and_frozen_parts_stand_in_the_tree() -> None:
    shared = nn.Linear(2, 2)
    net = nn.ModuleDict({"a": shared, "b": shared, "c": nn.Linear(2, 2).requires_grad_(False)})
    tree = hookscope.tree(net)
    assert [(n.name, n.aliases, n.trainable) for n in tree.modules] == [
        (".", (), 6),
        ("a", ("b",), 6),
        ("c", (), 0),
    ]
    assert tree.total.parameters == 12


def test_shapes_and_calls_of_the_tree_are_those_of_a_true_run() -> None:
    tree = hookscope.tree("resnet18", shapes=True, shape=(2, 3, 64, 64))
    shot = hookscope.capture("resnet18", shape=(2, 3, 64, 64))
    runs = {node.name: node.run for node in tree.modules}
    for executed in shot.coverage.executed:
        run = runs[executed.module]
        assert run is not None and run.calls == executed.calls
        assert run.outputs == ("x".join(map(str, shot[f"{executed.module}/output"].shape)),)
    # conv1: 2 * kernel * channels in * channels out * positions, for two images
    conv1 = runs["conv1"]
    assert conv1 is not None and conv1.flops == 2 * 7 * 7 * 3 * 64 * 32 * 32 * 2


def test_shapes_of_a_model_that_looks_at_values_come_from_a_true_run() -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        return self.lin(x) if x.sum().item() else x

    tree = hookscope.tree(Module(forward, lin=nn.Linear(4, 2)), shapes=True, shape=(1, 4))
    lin = tree.modules[1].run
    assert lin is not None and (lin.outputs, lin.flops) == (("1x2",), 16)


def test_models_are_listed_by_glob_and_task() -> None:
    assert [m.name for m in hookscope.models("resnet{18,34}")] == ["resnet18", "resnet34"]
    assert {m.task for m in hookscope.models(task="video")} == {"video"}
    assert len(hookscope.models()) == len(zoo.list_models())
    with pytest.raises(ModelError, match="hookscope models"):
        hookscope.models("nothing*")


def test_options_beyond_the_defaults_are_in_the_metadata() -> None:
    shot = hookscope.capture(small(), input=X, layers=["0"], train=True)
    assert shot.metadata["options"] == {"layers": ["0"], "train": True}
    assert shot.metadata["versions"]["torch"].startswith(torch.__version__.split("+")[0])


def test_options_that_json_cannot_hold_are_named_by_their_type(tmp_path: Path) -> None:
    targets: list[Any] = [torch.tensor([1, 0]), np.array([1, 0]), [1, 0], (1, 0)]
    for target in targets:
        found = hookscope.grads(small(), input=X, layers=["4"], target=target)
        found.save(tmp_path / "a")
        assert same_bits(found["4/bias.grad"], hookscope.load(tmp_path / "a")["4/bias.grad"])
    assert found.metadata["options"]["target"] == [1, 0]
    weights = REPO / "sample_models" / "digits.safetensors"
    spec = f"{REPO}/sample_models/digits.py:DigitsCNN"
    shot = hookscope.capture(spec, shape=(1, 1, 8, 8), layers=["."], weights=weights)
    assert shot.metadata["options"]["weights"] == str(weights)


class Remembers(nn.Module):
    """Returns a buffer that it has just written, as a key-value cache is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.register_buffer("kept", torch.zeros(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.kept.copy_(self.inner(x))
        kept: Tensor = self.kept
        return kept


def test_an_output_that_is_a_buffer_is_the_one_of_the_run() -> None:
    net, x = Remembers(), torch.randn(2, 3)
    expected = net.inner(x).detach()
    shot = hookscope.capture(net, input=x)
    assert torch.equal(shot.output, expected) and torch.equal(shot["./output"], expected)
    edited = hookscope.capture(net, input=x, edits="inner=zero")
    assert edited.metadata["effect"]["output"][0]["relative"] == 1
    [ablation] = hookscope.ablate(net, input=x, rank="output").ablations
    assert ablation.output == 1
    assert net.kept.count_nonzero() == 0


def once() -> Module:
    """A model whose second call fails."""

    def forward(self: Module, x: Tensor) -> Tensor:
        hidden = self.a(x)
        if next(self.calls):
            raise ValueError("used up")
        return self.b(hidden)

    net = Module(forward, a=nn.Linear(2, 2), b=nn.Linear(2, 2))
    net.calls = iter((0, 1))  # type: ignore[assignment]
    return net


@pytest.mark.parametrize(
    ("verb", "options", "recorded"),
    [
        ("capture", {"verify": True}, 3),
        ("capture", {"ops": True}, 3),
        ("capture", {"edits": "a=zero"}, 4),
        ("capture", {"edits": "a=zero", "compare": True}, 4),
        ("grads", {"loss": "sum"}, 8),
        ("step", {"loss": "sum", "grad_edits": "a=scale:2"}, 10),
        ("trace", {"loss": "sum"}, 0),
    ],
)
def test_a_failure_in_a_later_run_says_that_the_first_one_succeeded(
    verb: str, options: dict[str, Any], recorded: int
) -> None:
    with pytest.raises(ForwardError, match=r"second run.*failed.*used up") as caught:
        getattr(hookscope, verb)(once(), input=torch.ones(1, 2), **options)
    assert caught.value.recorded == recorded and caught.value.layer == "."
    assert not recorded or f" {recorded} tensors" in caught.value.message
