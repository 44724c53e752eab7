"""Faults planted in models, each found where it is; sound models, of which nothing is said."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
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
FACTS = {"measured", "threshold", "units", "others"}
ONES = torch.ones(2, 4)


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


def kill_units(units: Iterable[int], of: int, *more: nn.Module) -> nn.Sequential:
    """A layer whose listed units are below zero for any input, and a ReLU."""
    linear = nn.Linear(8, of)
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.fill_(1)
        linear.bias[list(units)] = -1
    return nn.Sequential(linear, *more, nn.ReLU())


def chained(*functions: Callable[[Tensor], Tensor]) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), *map(faulty.function, functions))


def changed(model: nn.Module, **places: Any) -> Any:
    """A model with other values: ``changed(model, **{"0.bias": (slice(1, 3), NAN)})``."""
    state = model.state_dict()
    for name, (where, value) in places.items():
        state[name][where] = value
    return model


def expect(model: nn.Module, found: str, **more: Any) -> None:
    """Demand findings, as "level check layer", and facts of the first; the rest are options."""
    facts = {name: more.pop(name) for name in FACTS & more.keys()}
    if not {"input", "shape"} & more.keys():
        more["input"] = faulty.example_input()
    health = hookscope.check(model, **more)
    assert ", ".join(map(" ".join, worst(health))) == found
    assert health.ok is not any(word in found for word in ("error", "warning"))
    assert {name: getattr(health.findings[0], name) for name in facts} == facts


def over(x: Tensor) -> Tensor:
    return x / 0.0


@pytest.mark.parametrize(("bad", "check"), [(NAN, "nan"), (INF, "inf")])
def test_what_comes_in_is_no_fault_of_a_layer(bad: float, check: str) -> None:
    x = faulty.example_input()
    x[3, 4] = bad
    expect(faulty.sound(), f"error {check} .", measured=1, input=x)
    both = torch.tensor([[NAN, INF, 1.0, 2.0]])
    expect(chained(), f"error {check} .", measured=1, input=both, only=check)


def test_where_values_that_are_not_finite_arose_is_named() -> None:
    branches = {"a": faulty.function(torch.log), "b": faulty.function(torch.sqrt)}
    births = Module(lambda self, x: self.a(-x.abs()) + self.b(-x.abs() - 1), **branches)
    expect(births, "error nan a, error nan b")
    bad = {"0.bias": (slice(1, 3), NAN), "1.running_mean": (0, INF)}
    norm = changed(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)), **bad)
    expect(norm, "error nan 0, error inf 1", measured=2)
    log = nn.Sequential(faulty.function(lambda x: torch.log(x * 0)), nn.Softmax(-1))
    expect(log, "error inf 0", only="inf", forward_only=True)
    expect(Module(lambda self, x: self.a(x[:0]), a=nn.Linear(8, 2)), "warning run .")


def test_one_of_nan_and_inf_is_found_without_the_other() -> None:
    model = chained(over, lambda x: x - x, lambda x: x + 1)
    for options in ({"only": "nan"}, {"only": "nan", "forward_only": True}, {"skip": "inf"}):
        expect(model, "error nan 2", measured=8, input=ONES, **options)
    expect(model, "error inf 1", input=ONES, only="nan,inf")
    behind = nn.Sequential(faulty.function(lambda x: x), faulty.function(over))
    x = changed(nn.Linear(4, 2), weight=((0, 0), NAN)).weight.detach().abs()
    expect(behind, "error nan .", input=x, forward_only=True)
    expect(behind, "error inf 1", measured=7, input=x, forward_only=True, only="inf")
    infinite = changed(chained(lambda x: x - x), **{"0.bias": (0, INF)})
    expect(infinite, "error nan 1", input=ONES, only="nan")


def test_gradients_that_are_not_finite_are_found() -> None:
    # Forward there are infinities alone; going back, inf * 0 is NaN.
    steep = chained(lambda x: torch.exp(x.abs() * 1e4), lambda x: x.clamp(max=1.0))
    expect(steep, "error nan 1", input=ONES, only="nan", loss="sum")
    # It hands on -inf as a mask; its result is finite, and its gradient is not.
    masked = chained(
        lambda x: x.masked_fill(torch.arange(4) < 2, -INF),
        lambda x: torch.sqrt((x.exp() * 0).sum(1)),
    )
    expect(masked, "error nan 2", input=ONES, only="nan")
    root = chained(lambda x: (x - x.detach()).sqrt())  # infinite, and not NaN
    expect(root, "warning exploding 0", input=ONES, only="exploding", loss="sum")


def test_dead_units_are_a_finding_from_half_on() -> None:
    forward: dict[str, Any] = {"forward_only": True}
    half, fewer = kill_units([0, 1, 2, 7], 8), kill_units([0, 1, 2], 8)
    facts = {"measured": 0.5, "threshold": 0.5, "units": (0, 1, 2, 7)}
    expect(half, "warning dead 1", **facts, **forward)
    expect(fewer, "", **forward)
    expect(fewer, "note dead 1", units=(0, 1, 2), only="dead", **forward)
    expect(fewer, "", only="dead,nan", **forward)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True))
    image = changed(model, **{"0.bias": (slice(5), -100)})  # the units of an image are channels
    expect(image, "warning dead 1", measured=5 / 8, units=(0, 1, 2, 3, 4), shape=(1, 3, 8, 8))
    single = nn.Sequential(nn.Linear(8, 64), nn.ReLU())  # zeros of a single row are no evidence
    expect(single, "", shape=(1, 8), dead=0.1)
    options = {"only": "dead,nan", **forward}
    normed = kill_units(range(4), 8, nn.BatchNorm1d(8))  # without statistics
    expect(normed, "note dead 2", units=(0, 1, 2, 3), **options)
    expect(changed(normed, **{"1.running_var": (slice(8), 2)}), "warning dead 2", **options)
    expect(kill_units(range(8), 8, nn.BatchNorm1d(8)), "warning dead 2", **options)


def test_what_is_no_fault_or_a_small_one() -> None:
    torch.manual_seed(0)
    expect(changed(faulty.sound(), **{"3.weight": (slice(4), 0)}), "note vanishing 2")
    scaled = Module(lambda self, x: x + 1e-7 * self.inner(x), inner=nn.Linear(16, 16))
    expect(faulty.within(scaled), "note vanishing 2.inner")
    norms = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.BatchNorm1d(16))
    expect(norms, "note batchnorm 1", measured=2, others=("2",), only="batchnorm")
    expect(norms, "", train=True, only="vanishing")  # the bias before a norm has no gradient
    expect(faulty.sound().requires_grad_(False), "note frozen .")
    expect(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), "", shape=(2, 5, 16))
    sharp = {"input": torch.eye(16) * 1000}
    expect(nn.Softmax(-1), "warning saturated .", measured=1, **sharp, only="saturated")
    expect(nn.Softmax(-1), "", input=torch.eye(16))
    for last in (nn.Softmax(-1), nn.LayerNorm(64), nn.Identity()):
        expect(nn.Sequential(nn.Linear(8, 64), last), "")
    expect(faulty.sigmoids(), "", vanishing=1e-30, floor=1e-30)
    expect(faulty.exploding(), "", exploding=1e20, ceiling=1e20)


def test_a_lower_threshold_finds_more_in_a_sound_model() -> None:
    assert not checked("sound", vanishing=0.999).ok and not checked("sound", ceiling=1e-6).ok


def test_the_function_in_which_nan_arose_is_named_and_counted() -> None:
    torch.manual_seed(0)
    model = faulty.log_of_negative()
    x = faulty.example_input()
    by_hand = torch.log(model[2].first(model[1](model[0](x))))
    finding = only(hookscope.check(model, input=x), "nan")
    assert finding.measured == int(by_hand.isnan().sum())
    assert "in log()" in finding.message


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


def test_an_output_without_a_gradient_is_no_error_unless_a_loss_was_chosen() -> None:
    model = faulty.function(lambda x: x > 0)
    health = hookscope.check(model, input=torch.ones(2, 3))
    assert health.ok
    assert "unused" in health.unmade
    with pytest.raises(LossError):
        hookscope.check(model, input=torch.ones(2, 3), loss="sum")
    forward = checked("dead_relu", forward_only=True)
    assert list(forward.unmade) == ["vanishing", "exploding", "unused"]
    assert not set(forward.unmade) & set(forward.checks)
    empty = hookscope.check(faulty.function(lambda x: x[:0]), input=torch.ones(2, 3))
    assert "empty" in empty.unmade["vanishing"]


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


@pytest.mark.parametrize("check", ["exploding", "vanishing"])
def test_sizes_of_gradients_that_are_not_finite_are_not_called_sound(check: str) -> None:
    model = chained(lambda x: torch.sqrt(x * 0))
    health = hookscope.check(model, input=torch.ones(2, 4), only=check)
    assert list(health.unmade) == [check]


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
