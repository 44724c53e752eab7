"""Faults planted in models, each found where it is; sound models, of which nothing is said."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import return_and_correct_aliasing

import hookscope
from hookscope.errors import ForwardError, LossError, RequestError
from hookscope.files.words import ranges_text
from hookscope.model_analysis.health.parameter_report import inspect_parameters, parameter_findings
from hookscope.results.health import Finding, Health
from tests.digits_forms import FORMS
from tests.model_analysis.health import faulty
from tests.model_analysis.health.faulty import FOUND
from tests.zoo import Module

NAN, INF = float("nan"), float("inf")


def checked(name: str, **more: object) -> Health:
    torch.manual_seed(0)
    return hookscope.check(getattr(faulty, name)(), input=faulty.example_input(), **more)


def worst(health: Health) -> list[tuple[str, str, str]]:
    return [(f.level, f.check, f.layer) for f in health.findings]


def only(health: Health, check: str) -> Finding:
    [finding] = health.of(check)
    return finding


@pytest.mark.parametrize(("name", "found"), FOUND.items())
def test_a_planted_fault_is_found_where_it_is(name: str, found: list[tuple[str, str, str]]) -> None:
    health = checked(name)
    assert worst(health) == found
    assert health.ok is all(level == "note" for level, _, _ in found)


def two_births() -> nn.Module:
    parts = {"a": faulty.function(torch.log), "b": faulty.function(torch.sqrt)}
    return Module(lambda self, x: self.a(-x.abs()) + self.b(-x.abs() - 1), **parts)


def zeros_at_the_end() -> nn.Module:
    model: Any = faulty.sound()
    nn.init.zeros_(model[3].weight)
    return model


def scaled_branch() -> nn.Module:
    inner = nn.Linear(16, 16)
    return faulty.within(Module(lambda self, x: x + 1e-7 * self.inner(x), inner=inner))


def a_bias_before_a_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))


ROWS = {"input": faulty.example_input()}
# Of each model: the options, and what is found.
SITUATIONS: dict[
    str, tuple[Callable[[], nn.Module], dict[str, Any], list[tuple[str, str, str]]]
] = {
    "two births": (two_births, ROWS, [("error", "nan", "a"), ("error", "nan", "b")]),
    "minus infinity": (
        lambda: nn.Sequential(faulty.function(lambda x: torch.log(x * 0)), nn.Softmax(-1)),
        *(ROWS | {"forward_only": True, "only": "inf"}, [("error", "inf", "0")]),
    ),
    "a last layer of zeros": (zeros_at_the_end, ROWS, [("note", "vanishing", "2")]),
    "a branch beside a sound one": (scaled_branch, ROWS, [("note", "vanishing", "2.inner")]),
    "a bias before a norm": (a_bias_before_a_norm, ROWS | {"train": True, "only": "vanishing"}, []),
    "frozen": (lambda: faulty.sound().requires_grad_(False), ROWS, [("note", "frozen", ".")]),
    "weights that another module uses": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
        *({"shape": (2, 5, 16)}, []),
    ),
    "zeros of a single row": (
        lambda: nn.Sequential(nn.Linear(8, 64), nn.ReLU()),
        *({"shape": (1, 8), "dead": 0.1, "only": "dead"}, []),
    ),
    "no entries": (
        lambda: Module(lambda self, x: self.a(x[:0]), a=nn.Linear(8, 2)),
        *(ROWS, [("warning", "run", ".")]),
    ),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_is_found_in_a_situation(name: str) -> None:
    make, options, found = SITUATIONS[name]
    torch.manual_seed(0)
    assert worst(hookscope.check(make(), **options)) == found


def test_the_function_in_which_nan_arose_is_named_and_counted() -> None:
    torch.manual_seed(0)
    model = faulty.log_of_negative()
    x = faulty.example_input()
    by_hand = torch.log(model[2].first(model[1](model[0](x))))
    finding = only(hookscope.check(model, input=x), "nan")
    assert finding.measured == int(by_hand.isnan().sum())
    assert "in log()" in finding.message


@pytest.mark.parametrize(("bad", "check"), [(NAN, "nan"), (INF, "inf")])
def test_what_comes_in_with_the_input_is_no_fault_of_a_layer(bad: float, check: str) -> None:
    x = faulty.example_input()
    x[3, 4] = bad
    health = hookscope.check(faulty.sound(), input=x)
    assert worst(health) == [("error", check, ".")]
    assert health.findings[0].measured == 1
    assert "input.0" in health.findings[0].message


def test_a_parameter_and_a_buffer_that_are_no_numbers_are_named() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    with torch.no_grad():
        model[0].bias[1:3] = NAN
        model[1].running_mean[0] = INF
    found = hookscope.check(model, input=faulty.example_input()).findings
    assert [(f.check, f.layer, f.measured) for f in found] == [("nan", "0", 2), ("inf", "1", 1)]
    assert "bias" in found[0].message
    assert "running_mean" in found[1].message


def test_the_share_of_dead_units_is_that_of_torch() -> None:
    torch.manual_seed(0)
    model, x = faulty.partly_dead(), faulty.example_input()
    value = torch.relu(model[2].linear(model[1](model[0](x))))
    share = float((value == 0).all(0).float().mean())
    assert 3 / 16 <= share < 0.95
    finding = only(hookscope.check(model, input=x, dead=share), "dead")
    assert (finding.layer, finding.measured, finding.threshold) == ("2", share, share)
    assert "relu" in finding.message
    by_hand = (value == 0).all(0).nonzero().flatten().tolist()
    assert list(finding.units) == by_hand
    assert finding.message.endswith(f": {ranges_text(by_hand)}")
    assert not hookscope.check(model, input=x, dead=share + 0.01).of("dead")


def test_units_of_an_image_are_its_channels() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True))
    with torch.no_grad():
        model[0].bias[:5] = -100
    finding = only(hookscope.check(model, shape=(1, 3, 8, 8), dead=0.5), "dead")
    assert finding.measured == 5 / 8
    assert finding.units == (0, 1, 2, 3, 4)
    assert finding.message.startswith("5 of 8") and finding.message.endswith(": 0-4")


def kill_units(units: list[int], of: int, *more: nn.Module) -> nn.Sequential:
    """A layer whose listed units are below zero for any input, and a ReLU."""
    linear = nn.Linear(8, of)
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.fill_(1)
        linear.bias[units] = -1
    return nn.Sequential(linear, *more, nn.ReLU())


def test_half_the_units_dead_is_a_finding_by_default_and_one_fewer_is_none() -> None:
    x = faulty.example_input()
    half = only(hookscope.check(kill_units([0, 1, 2, 7], 8), input=x, forward_only=True), "dead")
    assert (half.level, half.measured, half.threshold) == ("warning", 0.5, 0.5)
    assert half.units == (0, 1, 2, 7)
    assert half.message.endswith(": 0-2, 7")
    assert not hookscope.check(kill_units([0, 1, 2], 8), input=x, forward_only=True).of("dead")


def test_a_message_lists_a_dozen_ranges_of_dead_units_and_the_data_all_units() -> None:
    dead = list(range(0, 60, 2))
    health = hookscope.check(kill_units(dead, 60), input=faulty.example_input(), forward_only=True)
    finding = only(health, "dead")
    assert ": 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, ..." in finding.message
    assert list(health.to_json()["findings"][0]["units"]) == dead
    whole = only(
        hookscope.check(kill_units(list(range(8)), 8), input=faulty.example_input()), "dead"
    )
    assert whole.units == tuple(range(8))


def test_some_dead_units_are_a_note_while_batch_normalisation_has_no_statistics() -> None:
    x = faulty.example_input()
    model = kill_units([0, 1, 2, 3], 8, nn.BatchNorm1d(8))
    finding = only(hookscope.check(model, input=x, forward_only=True), "dead")
    assert (finding.level, finding.units) == ("note", (0, 1, 2, 3))
    assert "--train" in finding.hint
    model[1].running_var.fill_(2)
    assert only(hookscope.check(model, input=x, forward_only=True), "dead").level == "warning"
    entirely = kill_units(list(range(8)), 8, nn.BatchNorm1d(8))
    assert only(hookscope.check(entirely, input=x, forward_only=True), "dead").level == "warning"


def test_saturation_is_the_share_within_the_margin_of_a_bound() -> None:
    x = torch.linspace(-8, 8, 101)[None]
    for module, low, high in ((nn.Sigmoid(), 0, 1), (nn.Tanh(), -1, 1)):
        for margin in (0.01, 0.1):
            y, near = module(x), margin * (high - low)
            share = float(((y <= low + near) | (y >= high - near)).double().mean())
            finding = only(
                hookscope.check(module, input=x, margin=margin, saturated=0.1), "saturated"
            )
            assert finding.measured == pytest.approx(share)


def test_a_softmax_that_leaves_nothing_to_others_is_saturated() -> None:
    model = nn.Softmax(-1)
    sharp = torch.eye(16) * 1000
    assert only(hookscope.check(model, input=sharp), "saturated").measured == 1
    assert hookscope.check(model, input=sharp / 1000).ok


def test_the_vanishing_ratio_is_that_of_hand_written_hooks() -> None:
    torch.manual_seed(0)
    model, x = faulty.sigmoids(), faulty.example_input()
    finding = only(hookscope.check(model, input=x, loss="sum"), "vanishing")
    norms: dict[str, float] = {}

    def listen(name: str, module: nn.Module, args: object, output: torch.Tensor) -> None:
        output.register_hook(lambda grad: norms.update({name: float(grad.norm())}))

    for name, module in model.named_modules():
        module.register_forward_hook(partial(listen, name))
    model(x).sum().backward()
    ratios = {name: norm / norms[""] for name, norm in norms.items()}
    assert finding.measured == pytest.approx(ratios[finding.layer], rel=1e-5)
    below = [name for name, ratio in ratios.items() if ratio < 1e-4 and name]
    assert {finding.layer, *finding.others} == set(below)


def test_a_threshold_moves_what_is_found() -> None:
    assert checked("sigmoids", vanishing=1e-30, floor=1e-30).ok
    assert not checked("sound", vanishing=0.999).ok
    assert checked("exploding", exploding=1e20, ceiling=1e20).ok
    assert not checked("sound", ceiling=1e-6).ok


def test_statistics_that_no_layer_has_updated_are_a_note() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.BatchNorm1d(16))
    finding = only(hookscope.check(model, input=faulty.example_input()), "batchnorm")
    assert (finding.level, finding.layer, finding.others) == ("note", "1", ("2",))
    assert finding.measured == 2


def test_parameters_of_many_values_are_inspected_completely() -> None:
    model = nn.Linear(1 << 11, (1 << 11) + 1, bias=False)  # a block and a part of one
    with torch.no_grad():
        model.weight.zero_()[-1, -1] = 1
        assert not inspect_parameters(model).tensors[0].all_zero
        model.weight[0, 0], model.weight[-1, -2:] = torch.nan, torch.inf
    [tensor] = inspect_parameters(model).tensors
    assert (tensor.nan, tensor.inf, tensor.all_zero) == (1, 2, False)
    nn.init.zeros_(model.weight)
    assert inspect_parameters(model).tensors[0].all_zero


def test_a_part_on_another_device_is_told() -> None:
    model = faulty.sound()
    model.spare = nn.Linear(2, 2, device="meta")
    [finding] = parameter_findings(inspect_parameters(model), weights_from_file=False)
    assert (finding.level, finding.check, finding.layer) == ("warning", "devices", "spare")
    model.hf_device_map = {"spare": "meta"}
    [finding] = parameter_findings(inspect_parameters(model), weights_from_file=False)
    assert finding.level == "note"


def test_checks_are_chosen_by_name() -> None:
    assert worst(checked("dead_relu", only="dead")) == [("warning", "dead", "2.1")]
    assert worst(checked("dead_relu", skip=["dead"])) == [("warning", "vanishing", "2.0")]
    with pytest.raises(RequestError, match="'dedd'"):
        checked("sound", only="dedd")
    with pytest.raises(RequestError, match="dead"):
        checked("sound", dead=2)


def test_without_a_backward_pass_its_checks_are_told_to_be_unmade() -> None:
    health = checked("dead_relu", forward_only=True)
    assert worst(health) == [("warning", "dead", "2.1")]
    assert list(health.unmade) == ["vanishing", "exploding", "unused"]
    assert not set(health.unmade) & set(health.checks)


def test_an_output_without_a_gradient_is_no_error_unless_a_loss_was_chosen() -> None:
    model = faulty.function(lambda x: x > 0)
    health = hookscope.check(model, input=torch.ones(2, 3))
    assert health.ok
    assert "unused" in health.unmade
    with pytest.raises(LossError):
        hookscope.check(model, input=torch.ones(2, 3), loss="sum")
    empty = hookscope.check(faulty.function(lambda x: x[:0]), input=torch.ones(2, 3))
    assert "empty" in empty.unmade["vanishing"]


def test_the_loss_by_default_has_a_gradient_of_norm_one_whatever_the_output() -> None:
    for last in (nn.Softmax(-1), nn.LayerNorm(64), nn.Identity()):
        model = nn.Sequential(nn.Linear(8, 64), last)
        health = hookscope.check(model, input=faulty.example_input())
        assert health.ok
        assert health.metadata["loss"]["name"] == "projection"


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_language_model_with_masks_and_tied_weights_is_sound(attention: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=99)
    config.bos_token_id = config.eos_token_id = 0
    config._attn_implementation = attention
    model = transformers.GPT2LMHeadModel(config)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    ids = torch.randint(0, 99, (2, 12), generator=torch.Generator().manual_seed(0))
    health = hookscope.check(model, input={"input_ids": ids, "attention_mask": mask})
    assert health.ok
    assert only(health, "tied").others == ("lm_head",)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    [
        *("alexnet", "vgg11", "resnet18", "resnet50", "squeezenet1_0", "densenet121", "googlenet"),
        *("inception_v3", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x0_5", "mnasnet0_5"),
        *("efficientnet_b0", "regnet_y_400mf", "convnext_tiny", "swin_t", "vit_b_16", "maxvit_t"),
        *("lraspp_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn", "r3d_18"),
        *("raft_small",),
    ],
)
def test_a_network_as_built_has_no_warning(name: str) -> None:
    health = hookscope.check(name)
    assert health.ok, health.findings


def test_a_scripted_and_a_live_exported_model_are_checked_alike(repo: Path) -> None:
    for word in FORMS:
        assert worst(hookscope.check(f"{repo}/sample_models/{word}")) == []
    torch.manual_seed(0)
    with pytest.warns((FutureWarning, DeprecationWarning), match="deprecated"):
        scripted = torch.jit.trace(faulty.dead_relu(), faulty.example_input())
    found = worst(hookscope.check(scripted, input=faulty.example_input()))
    assert ("warning", "dead", "2.1") in found


def test_no_activation_is_held() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    counts: list[int] = []

    def watched(self: Module, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        alive.append(weakref.ref(y))
        counts.append(sum(ref() is not None for ref in alive))
        return y

    model = nn.Sequential(*(Module(watched, linear=nn.Linear(8, 8)) for _ in range(12)))
    hookscope.check(model, input=faulty.example_input(), forward_only=True)
    assert len(alive) == 24  # and once more without hooks
    assert max(counts) <= 3  # what goes in, what comes out, and what a frame above still names


def chained(*functions: object) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), *(faulty.function(function) for function in functions))


@pytest.mark.parametrize("forward_only", [False, True])
def test_nan_that_comes_from_an_infinity_is_found_by_nan_alone(forward_only: bool) -> None:
    model = chained(lambda x: x / 0.0, lambda x: x - x, lambda x: x + 1)
    whole = hookscope.check(model, input=torch.ones(2, 4), forward_only=forward_only)
    assert worst(whole)[0] == ("error", "inf", "1")
    for choice in ({"only": "nan"}, {"skip": "inf"}):
        health = hookscope.check(model, input=torch.ones(2, 4), forward_only=forward_only, **choice)
        finding = only(health, "nan")
        assert (finding.layer, finding.measured) == ("2", 8)
        assert "at 1" in finding.hint
        assert not health.ok


def test_infinities_behind_nan_are_found_by_inf_alone() -> None:
    x = torch.ones(2, 4)
    x[0, 0] = NAN
    model = nn.Sequential(faulty.function(lambda x: x), faulty.function(lambda x: x / 0.0))
    assert worst(hookscope.check(model, input=x, forward_only=True)) == [("error", "nan", ".")]
    finding = only(hookscope.check(model, input=x, forward_only=True, only="inf"), "inf")
    assert (finding.layer, finding.measured) == ("1", 7)


def test_an_input_with_both_is_found_by_each_check_alone() -> None:
    x = torch.tensor([[NAN, INF, 1.0, 2.0]])
    for check in ("nan", "inf"):
        finding = only(hookscope.check(chained(), input=x, only=check), check)
        assert (finding.layer, finding.measured) == (".", 1)


def test_nan_made_by_an_infinite_parameter_is_found_by_nan_alone() -> None:
    model = chained(lambda x: x - x)
    with torch.no_grad():
        model[0].bias[0] = INF
    health = hookscope.check(model, input=torch.ones(2, 4), only="nan")
    assert only(health, "nan").layer == "1"
    assert not health.ok


def test_gradients_that_are_not_finite_behind_an_infinite_output_are_found_by_nan_alone() -> None:
    # Forward there are infinities alone; going back, inf * 0 is NaN.
    model = chained(lambda x: torch.exp(x.abs() * 1e4), lambda x: x.clamp(max=1.0))
    health = hookscope.check(model, input=torch.ones(2, 4), only="nan", loss="sum")
    assert only(health, "nan").level == "error"


def test_nan_gradients_of_a_model_that_hands_on_a_mask_are_found() -> None:
    """It hands on -inf as a mask; its result is finite, and its gradient is not."""
    model = chained(
        lambda x: x.masked_fill(torch.arange(4) < 2, -INF),
        lambda x: torch.sqrt((x.exp() * 0).sum(1)),
    )
    health = hookscope.check(model, input=torch.ones(2, 4))
    [error] = [f for f in health.findings if f.level == "error"]
    assert "backward" in error.message


@pytest.mark.parametrize("check", ["exploding", "vanishing"])
def test_sizes_of_gradients_that_are_not_finite_are_not_called_sound(check: str) -> None:
    model = chained(lambda x: torch.sqrt(x * 0))
    health = hookscope.check(model, input=torch.ones(2, 4), only=check)
    assert list(health.unmade) == [check]


def test_infinite_gradients_explode_where_inf_is_not_looked_for() -> None:
    model = chained(lambda x: (x - x.detach()).sqrt())  # d sqrt at 0: infinite, and not NaN
    health = hookscope.check(model, input=torch.ones(2, 4), only="exploding", loss="sum")
    finding = only(health, "exploding")
    assert "infinite" in finding.message
    assert not health.ok
    assert not health.unmade


def test_fewer_dead_units_than_the_threshold_are_a_note_if_dead_is_the_only_check() -> None:
    model, x = kill_units([0, 1, 2], 8), faulty.example_input()
    health = hookscope.check(model, input=x, forward_only=True, only="dead")
    finding = only(health, "dead")
    assert (finding.level, finding.units, health.ok) == ("note", (0, 1, 2), True)
    assert "50%" in finding.message and finding.message.endswith(": 0-2")
    assert not hookscope.check(model, input=x, forward_only=True, only="dead,nan").of("dead")


def test_a_model_that_exits_ends_the_check() -> None:
    def forward(self: Module, x: torch.Tensor) -> torch.Tensor:
        raise SystemExit(3)

    with pytest.raises(ForwardError, match="SystemExit: 3"):
        hookscope.check(Module(forward, a=nn.Linear(3, 2)), input=torch.ones(2, 3))


class Packed(torch.Tensor):
    """A weight of integers with a scale, of which few operators are known, as torchao's."""

    @staticmethod
    def __new__(cls, numbers: Tensor, scale: Tensor) -> Packed:
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype)

    def __init__(self, numbers: Tensor, scale: Tensor) -> None:
        self.numbers, self.scale = numbers, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride) -> Packed:
        return cls(inner["numbers"], inner["scale"])

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is nn.functional.linear:
            x, weight, bias = args
            return nn.functional.linear(x, weight.numbers * weight.scale, bias)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            packed = cls(func(args[0].numbers), func(args[0].scale))
            return return_and_correct_aliasing(func, args, kwargs or {}, packed)
        raise NotImplementedError(f"no {func}")


def test_a_weight_that_cannot_be_read_is_named_and_the_rest_is_checked() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    numbers = (net[0].weight.detach() * 100).round().to(torch.int8)
    weight = Packed(numbers, torch.tensor(0.01))
    net[0].weight = nn.Parameter(weight, requires_grad=False)
    with torch.no_grad():
        net[2].bias[0] = torch.nan
    health = hookscope.check(net, input=torch.randn(4, 8))
    found = {(finding.check, finding.layer) for finding in health.findings}
    assert found >= {("unread", "0"), ("nan", "2")}
    [unread] = [finding for finding in health.findings if finding.check == "unread"]
    assert unread.level == "note"
    assert "weight" in unread.message and "Packed" in unread.message
