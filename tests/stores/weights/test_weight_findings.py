"""Findings on files of weights: each fault is found where it is, and a healthy model has none."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

import hookscope
from hookscope.results.health import Finding, Health
from hookscope.specs.checks import ERROR, NOTE, WARNING, WEIGHT_CHECKS

State = dict[str, torch.Tensor]
Check = Callable[..., Health]


def healthy() -> State:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 32)
    )
    net.train()(torch.randn(8, 3, 8, 8))  # updates the running statistics
    return net.state_dict()


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Write tensors to a file and check it."""

    def write(state: State, **options: object) -> Health:
        save_file({name: values.contiguous() for name, values in state.items()}, tmp_path / "a.st")
        return hookscope.check(tmp_path / "a.st", **options)

    return write


def only(health: Health) -> Finding:
    [finding] = health.findings
    return finding


def test_a_healthy_model_has_no_finding(check: Check) -> None:
    health = check(healthy())
    assert health.findings == ()
    assert health.ok
    assert health.checks == tuple(WEIGHT_CHECKS)
    assert health.metadata["weights"]["tensors"] == 9


def planted(name: str, value: float, *where: Any) -> State:
    """A healthy state with a value at some places of a tensor."""
    state = healthy()
    state[name][where] = value
    return state


def batch_norm(*names: str, **changed: float) -> State:
    """The state of batch normalizations that were never updated, with some values added."""
    fresh = nn.BatchNorm1d(16).state_dict()
    return {f"{n}.{key}": value + changed.get(n, 0) for n in names for key, value in fresh.items()}


def without_bias() -> State:
    weight = nn.ConvTranspose2d(16, 8, 3, bias=False).weight.detach().clone()
    weight[3] = 0
    return {"up.weight": weight}


def embedded() -> State:
    return {"embed_tokens.weight": nn.Embedding(40, 16, padding_idx=0).weight.detach()}


def overflowing() -> State:
    return planted("1.running_var", 65_505, 2) | {"4.bias": torch.full((32,), -1e6)}


ZERO, ONE = torch.zeros(64, 16), torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
# What is planted, and what is found: the check, the level, the layers, the measure and the units.
FAULTS: dict[str, tuple[Callable[[], State], tuple[Any, ...]]] = {
    **{
        f"{kind} in {name}": (
            lambda name=name, value=value: planted(name, value, *[1] * healthy()[name].dim()),
            (kind, ERROR, [name], 1, None),
        )
        for name in ("0.weight", "4.bias", "1.running_mean")
        for kind, value in (("nan", torch.nan), ("inf", -torch.inf))
    },
    "zero channels": (
        lambda: planted("0.weight", 0, [2, 11]),
        ("zero", WARNING, ["0.weight"], 2, (2, 11)),
    ),
    "padding": (embedded, ("zero", NOTE, ["embed_tokens.weight"], 1, (0,))),
    "all zero": (
        lambda: {"head.weight": ZERO, "gate.weight": 0 * ONE, "gamma": ZERO[:, 0]},
        ("zero", NOTE, ["gate.weight", "head.weight"], None, None),
    ),
    "rows": (without_bias, ("zero", WARNING, ["up.weight"], 1, (3,))),
    "constant": (
        lambda: planted("4.weight", -0.25, 7),
        ("constant", WARNING, ["4.weight"], 1, (7,)),
    ),
    "overflow": (
        overflowing,
        ("float16-overflow", WARNING, ["1.running_var", "4.bias"], 1e6, None),
    ),
    "underflow": (
        lambda: planted("0.bias", 1e-9, slice(4)),
        ("float16-underflow", NOTE, ["0.bias"], 0.25, None),
    ),
    "no variance": (
        lambda: planted("1.running_var", 0, slice(2)),
        ("variance", WARNING, ["1.running_var"], 2, None),
    ),
    "negative variance": (
        lambda: planted("1.running_var", -1e-3, 4),
        ("variance", ERROR, ["1.running_var"], 1, None),
    ),
    "fresh": (lambda: batch_norm("bn"), ("batchnorm", NOTE, ["bn"], None, None)),
    "one fresh": (
        lambda: batch_norm("bn", "other", other=1),
        ("batchnorm", WARNING, ["bn"], 1, None),
    ),
    "an adapter": (
        lambda: {"a.lora_B.weight": ZERO, "b.lora_B.weight": ONE},
        ("adapter", WARNING, ["a.lora_B.weight"], None, None),
    ),
    "a vector": (lambda: {"k.ia3_l": ZERO + 1}, ("adapter", WARNING, ["k.ia3_l"], None, None)),
    "no entries": (
        lambda: healthy() | {"none": torch.zeros(0, 3), "nothing": torch.zeros(0)},
        ("unread", NOTE, ["none", "nothing"], None, None),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_where_it_is_and_nothing_else(check: Check, fault: str) -> None:
    build, (kind, level, layers, measured, units) = FAULTS[fault]
    finding = only(check(build(), skip="outlier"))
    assert (finding.check, finding.level) == (kind, level)
    assert sorted([finding.layer, *finding.others]) == layers
    assert measured in (None, finding.measured)
    assert units in (None, finding.units)


@pytest.mark.parametrize(
    "state",
    [
        lambda: {"attn_mask": 100 * torch.eye(49).expand(64, 49, 49)},
        lambda: {"position_ids": torch.zeros(4, 77)},
        lambda: planted("1.running_var", 65_504, 2),
        lambda: {"x": torch.tensor([65504.0, 2.0**-24]).half(), "n": torch.tensor([10**9])},
        # A converted file may have lost its counters.
        lambda: batch_norm("bn", bn=1) | {"bn.num_batches_tracked": torch.tensor(0)},
    ],
)
def test_what_is_usual_is_no_finding(check: Check, state: Callable[[], State]) -> None:
    assert check(state()).findings == ()


def test_an_outlier_row_is_a_note_with_its_score(check: Check) -> None:
    state = healthy()
    state["4.weight"][5] *= 30
    finding = only(check(state))
    assert (finding.check, finding.level, finding.units) == ("outlier", NOTE, (5,))
    norms = state["4.weight"].norm(dim=1).double()
    distances = (norms - norms.quantile(0.5)).abs()
    score = 0.6745 * distances[5] / distances.quantile(0.5)
    assert finding.measured == pytest.approx(float(score), rel=1e-4)
    assert finding.threshold == 3.5


@pytest.mark.parametrize(
    "names",
    [
        ("base_model.q_proj.lora_A.weight", "base_model.q_proj.lora_B.weight"),
        ("q.lora_A.default.weight", "q.lora_B.default.weight"),
        ("unet.to_q.lora.down.weight", "unet.to_q.lora.up.weight"),
        ("lora_te_q.lora_down.weight", "lora_te_q.lora_up.weight"),
    ],
)
def test_adapters_at_their_start_values(check: Check, names: tuple[str, str]) -> None:
    down, up = names
    state = {down: torch.randn(16, 64) * 0.02, up: torch.zeros(64, 16)}
    finding = only(check(state))
    assert (finding.check, finding.level, finding.layer) == ("adapter", WARNING, up)
    assert "every adapter" in finding.message
    state[up] = torch.randn(64, 16)
    assert check(state).findings == ()


def test_checks_are_chosen(check: Check) -> None:
    state = healthy()
    state["0.weight"][2] = 0
    state["4.bias"][0] = torch.nan
    assert [f.check for f in check(state, only="zero").findings] == ["zero"]
    assert [f.check for f in check(state, skip=["zero"]).findings] == ["nan"]


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_an_untrained_model_of_torchvision_has_only_notes(check: Check, name: str) -> None:
    torch.manual_seed(0)
    health = check(torchvision.models.get_model(name, weights=None).state_dict())
    assert health.ok
    assert {f.check for f in health.findings} <= {"batchnorm", "outlier"}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    [
        *("alexnet", "vgg11", "densenet121", "googlenet", "inception_v3", "mobilenet_v2"),
        *("mnasnet0_5", "shufflenet_v2_x0_5", "squeezenet1_0", "efficientnet_b0"),
        *("efficientnet_v2_s", "regnet_y_400mf", "convnext_tiny", "swin_t", "swin_v2_t"),
        *("vit_b_32", "maxvit_t", "resnext50_32x4d", "wide_resnet50_2", "r3d_18", "mvit_v2_s"),
        *("s3d", "raft_small", "fasterrcnn_resnet50_fpn", "ssd300_vgg16", "fcn_resnet50"),
        *("lraspp_mobilenet_v3_large", "deeplabv3_resnet50", "swin3d_t"),
    ],
)
def test_no_untrained_model_has_an_error_or_a_warning(check: Check, name: str) -> None:
    torch.manual_seed(0)
    options: dict[str, object] = {}
    if name.startswith(("lraspp", "fasterrcnn", "ssd", "fcn", "deeplab")):
        options = {"weights_backbone": None}
    elif name in ("googlenet", "inception_v3"):
        options = {"init_weights": False}  # the other way takes a minute
    health = check(torchvision.models.get_model(name, weights=None, **options).state_dict())
    assert health.ok, health.findings


@pytest.mark.parametrize(
    ("layer", "dead"),
    [
        (nn.ConvTranspose2d(16, 8, 3), (slice(None), 3)),
        (nn.Conv2d(16, 8, 3), (3,)),
        (nn.ConvTranspose1d(600, 700, 1), (slice(None), 3)),  # several blocks
    ],
)
def test_a_zero_output_channel_is_found_in_its_dimension(
    check: Check, layer: nn.ConvTranspose2d, dead: tuple[int, ...]
) -> None:
    count = layer.bias.shape[0]
    state = {name: value.detach().clone() for name, value in layer.state_dict().items()}
    state["weight"][dead] = 0
    finding = only(check(state))
    assert (finding.check, finding.units) == ("zero", (3,))
    assert f"1 of its {count} channels" in finding.message
    other = layer.state_dict()["weight"].clone()
    other[(3,) if len(dead) == 2 else (slice(None), 3)] = 0  # an input channel
    assert not check({**state, "weight": other}).findings


def test_a_zero_output_of_gpt2_is_found_in_its_transposed_weight(check: Check) -> None:
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    layer = Conv1D(48, 16)  # 48 outputs; the weight is 16x48
    with torch.no_grad():
        layer.weight[:, 5] = 0
        layer.weight[:, 7] *= 40
        layer.bias.uniform_(0.1, 1)
        assert not (layer(torch.randn(9, 16)) - layer.bias)[:, 5].any()
    state = {f"h.0.attn.c_attn.{name}": value for name, value in layer.state_dict().items()}
    zero, outlier = check(state).findings
    assert (zero.check, zero.layer, zero.units) == ("zero", "h.0.attn.c_attn.weight", (5,))
    assert outlier.check == "outlier" and 7 in outlier.units
    state["h.0.attn.c_attn.weight"] = layer.weight.detach().t()  # as nn.Linear has it
    assert [finding.units for finding in check(state).findings] == [zero.units, outlier.units]


@pytest.mark.parametrize("name", ["with space.safetensors", "it's $HOME; echo.safetensors"])
def test_a_suggested_command_can_be_pasted_into_a_shell(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a folder" / name
    path.parent.mkdir()
    save_file({"conv 1.weight": torch.tensor([1.0, torch.nan])}, path)
    hint = only(hookscope.check(path)).hint
    command = hint.partition(": ")[2]
    assert shlex.split(command) == ["hookscope", "show", str(path), "conv 1.weight"]
