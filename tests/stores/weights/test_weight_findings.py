"""Findings on files of weights: each fault is found where it is, and a healthy model has none."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

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


@pytest.mark.parametrize("name", ["0.weight", "4.bias", "1.running_mean"])
def test_nan_and_infinity_are_errors(check: Check, name: str) -> None:
    state = healthy()
    state[name].view(-1)[3] = torch.nan
    state[name].view(-1)[1] = -torch.inf
    found = {f.check: f for f in check(state).findings}
    assert set(found) == {"nan", "inf"}
    for finding in found.values():
        assert (finding.level, finding.layer, finding.measured) == (ERROR, name, 1)
        assert f"1 of its {state[name].numel():,} entries" in finding.message


def test_zero_channels_are_named(check: Check) -> None:
    state = healthy()
    state["0.weight"][[2, 11]] = 0
    finding = only(check(state))
    assert (finding.check, finding.level, finding.layer) == ("zero", WARNING, "0.weight")
    assert (finding.measured, finding.units) == (2, (2, 11))
    assert finding.message == "2 of its 16 channels are zero throughout: 2, 11"


def test_the_padding_row_of_an_embedding_is_a_note(check: Check) -> None:
    weight = nn.Embedding(40, 16, padding_idx=0).weight.detach()
    finding = only(check({"model.embed_tokens.weight": weight}))
    assert (finding.check, finding.level, finding.units) == ("zero", NOTE, (0,))


def test_a_tensor_that_is_zero_throughout_is_a_note(check: Check) -> None:
    state = {"head.weight": torch.zeros(10, 64), "gate.weight": torch.zeros(64, 64)}
    finding = only(check(state | {"gamma": torch.zeros(64)}))
    assert (finding.check, finding.level) == ("zero", NOTE)
    assert {finding.layer, *finding.others} == {"head.weight", "gate.weight"}


def test_constant_channels_are_named(check: Check) -> None:
    state = healthy()
    state["4.weight"][7] = -0.25
    finding = only(check(state, skip="outlier"))
    assert (finding.check, finding.level, finding.units) == ("constant", WARNING, (7,))


def test_tables_and_masks_have_no_channels(check: Check) -> None:
    mask = torch.zeros(64, 49, 49)
    mask[3, 2, 1] = -100
    assert check({"attn_mask": mask, "position_ids": torch.zeros(4, 77)}).findings == ()


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


def test_what_float16_cannot_hold(check: Check) -> None:
    state = healthy()
    state["1.running_var"][2] = 65_505
    state["4.bias"][0] = -1e6
    finding = only(check(state))
    assert (finding.check, finding.level) == ("float16-overflow", WARNING)
    assert (finding.layer, finding.others) == ("4.bias", ("1.running_var",))
    assert (finding.measured, finding.threshold) == (1e6, 65504)
    state = healthy()
    state["1.running_var"][2] = 65_504
    assert check(state).ok
    state["0.bias"][:4] = 1e-9
    finding = only(check(state))
    assert (finding.check, finding.level) == ("float16-underflow", NOTE)
    assert finding.measured == 0.25


def test_float16_itself_is_not_judged_by_its_range(check: Check) -> None:
    state = {"x": torch.tensor([65504.0, 2.0**-24]).half(), "n": torch.tensor([10**9])}
    assert check(state).findings == ()


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


def test_one_of_several_adapters_at_its_start(check: Check) -> None:
    state = {"a.lora_B.weight": torch.zeros(64, 16), "b.lora_B.weight": torch.randn(64, 16)}
    assert "this adapter" in only(check(state)).message
    assert only(check({"k.ia3_l": torch.ones(64, 1)})).check == "adapter"


def test_a_variance_is_positive(check: Check) -> None:
    state = healthy()
    state["1.running_var"][:2] = 0
    finding = only(check(state))
    assert (finding.check, finding.level, finding.measured) == ("variance", WARNING, 2)
    state["1.running_var"][4] = -1e-3
    finding = only(check(state))
    assert (finding.level, finding.layer) == (ERROR, "1.running_var")


def test_batch_normalizations_that_were_never_updated(check: Check) -> None:
    fresh = nn.BatchNorm1d(16).state_dict()
    state = {f"bn1.{name}": values for name, values in fresh.items()}
    finding = only(check(state))
    assert (finding.check, finding.level, finding.layer) == ("batchnorm", NOTE, "bn1")
    other = {name: values + 1 for name, values in fresh.items()}
    finding = only(check(state | {f"bn2.{name}": values for name, values in other.items()}))
    assert (finding.level, finding.measured) == (WARNING, 1)
    # A converted file may have lost its counters.
    other["num_batches_tracked"] *= 0
    assert check(other).findings == ()


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
    assert finding.message == f"1 of its {count} channels is zero throughout: 3"
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
    assert zero.message == "1 of its 48 channels is zero throughout: 5"
    assert outlier.check == "outlier" and 7 in outlier.units
    state["h.0.attn.c_attn.weight"] = layer.weight.detach().t()  # as nn.Linear has it
    assert [finding.units for finding in check(state).findings] == [zero.units, outlier.units]


@pytest.mark.parametrize("name", ["with space.safetensors", "it's $HOME; echo.safetensors"])
def test_a_suggested_command_can_be_pasted_into_a_shell(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a folder" / name
    path.parent.mkdir()
    save_file({"conv 1.weight": torch.tensor([1.0, torch.nan])}, path)
    hint = only(hookscope.check(path)).hint
    command = hint.removeprefix("To print the index of the first one: ")
    assert shlex.split(command) == ["hookscope", "show", str(path), "conv 1.weight"]


def test_without_a_bias_a_finding_is_about_rows(check: Check) -> None:
    weight = nn.ConvTranspose2d(16, 8, 3, bias=False).weight.detach().clone()
    weight[3] = 0
    message = "1 of its 16 rows (dimension 0) is zero throughout: 3"
    assert only(check({"up.weight": weight})).message == message


def test_a_tensor_without_entries_is_noted(check: Check) -> None:
    finding = only(check(healthy() | {"none": torch.zeros(0, 3), "nothing": torch.zeros(0)}))
    assert (finding.check, finding.level) == ("unread", NOTE)
    assert {finding.layer, *finding.others} == {"none", "nothing"}
    assert finding.message == "it was not checked: it has no entries"
