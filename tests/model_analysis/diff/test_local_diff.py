"""``diff --local`` names the module in which a difference arises, and none if there is no fault."""

from __future__ import annotations

import copy
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import RequestError
from hookscope.model_analysis.diff import local_comparison
from hookscope.model_analysis.diff.tensor_errors import relative_error
from hookscope.results.diff_result import Diff
from hookscope.results.local_diff import FAULT_LIMIT, ROUNDING_LIMIT, LocalDiff
from hookscope.views import display
from hookscope.views.text.text_table import TextOptions
from tests.model_analysis.diff.planted_faults import FAULTS, KINDS, Fault, build
from tests.model_analysis.diff.test_onnx_files import set_attribute
from tests.views.error_results import local_diff
from tests.zoo import Module

SAMPLES = Path(__file__).resolve().parents[3] / "sample_models"
DIGITS = f"{SAMPLES}/digits.py:trained"
_QUICK = ("unet", "tagger", "vit")  # whose faults are planted in each run of the tests


def compare(a: nn.Module, b: Any, inputs: Any, floor: str = "float64", **options: Any) -> LocalDiff:
    found = hookscope.diff(a, b, input=inputs, floor=floor, **options)
    assert isinstance(found, LocalDiff)
    return found


def pair(kind: str) -> tuple[Any, Any, Any]:
    """Two equal models, and their input."""
    a, inputs = build(kind)
    return a, build(kind)[0], inputs


def faults(*args: Any, **options: Any) -> list[tuple[str, str]]:
    """The module and the tensor of each fault."""
    return [(e.module, e.tensor) for e in compare(*args, **options).faults]


def _copied(a: nn.Module, **attributes: Any) -> Any:
    b = copy.deepcopy(a)
    for name, value in attributes.items():
        setattr(b, name, value)
    return b


def _case(fault: Fault) -> Any:
    marks = [] if fault.kind in _QUICK else [pytest.mark.exhaustive]
    return pytest.param(fault, marks=marks, id=f"{fault.kind}-{fault.what.replace(' ', '-')}")


@pytest.mark.parametrize("fault", [_case(fault) for fault in FAULTS])
def test_the_module_with_a_planted_fault_comes_first(fault: Fault) -> None:
    a, b, inputs = pair(fault.kind)
    fault.plant(b)
    found = compare(a, b, inputs)
    first = found.faults[0].module
    assert any(first == name or first.startswith(name) for name in fault.blamed if name != ".") or (
        "." in fault.blamed and first == "."
    )
    assert not found.same


def _with_eps(eps: float, width: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width, eps=eps), nn.Linear(width, 2))


def test_the_floor_is_measured_by_default_and_names_the_origin_in_row_and_sentence() -> None:
    a, b = _with_eps(1e-5), _with_eps(1.2e-5)  # less than the tolerance, more than rounding
    found = hookscope.diff(a, b, input=torch.ones(2, 4), local=True)
    assert isinstance(found, LocalDiff)
    assert (found.floor, found.same, found.faults) == ("float64", True, ())
    assert [error.key for error in found.errors if found.verdict(error) == "between"] == ["1"]
    said = " ".join(line.plain for line in display.text(found, TextOptions(width=200)))
    assert "rounding floor, in 1." in said
    assert found.errors == compare(a, b, torch.ones(2, 4)).errors


@pytest.mark.parametrize(
    "options", [{"rtol": 1e-3}, {"atol": 1e-3}, {"floor": "none"}, {"dtype": "float64"}], ids=str
)
def test_there_is_no_floor_with_a_tolerance_or_in_float64(options: dict[str, Any]) -> None:
    a, b = _with_eps(1e-5), _with_eps(1e-4)
    found = hookscope.diff(a, b, input=torch.ones(2, 4), local=True, **options)
    assert isinstance(found, LocalDiff)
    assert found.floor == ""
    sure = {error.unit for error in found.errors}
    assert sure == {options.get("rtol", min(sure))}


def test_a_copy_that_nobody_asked_for_is_made_of_small_models_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_comparison, "_LARGEST_COPY", 300)
    with caplog.at_level("INFO", "hookscope"):
        found = hookscope.diff(_with_eps(1e-5), _with_eps(1e-5), input=torch.ones(2, 4), local=True)
    assert isinstance(found, LocalDiff)
    assert found.floor == "" and "float64" in caplog.text
    assert compare(_with_eps(1e-5), _with_eps(1e-5), torch.ones(2, 4)).floor == "float64"


def test_outputs_beyond_the_tolerance_count_where_the_floor_was_not_asked_for() -> None:
    diff = hookscope.diff(nn.Linear(4, 2), nn.Linear(4, 2), input=torch.ones(2, 4))
    assert isinstance(diff, Diff) and not diff.same
    healthy = replace(local_diff([("fc", 1e-3, 1e-7)], floor="float64"), diff=diff)
    assert healthy.same and not replace(healthy, all_count=True).same


# Healthy pairs


def _dtypes(a: str, b: str) -> Callable[..., LocalDiff]:
    return lambda *models_and_inputs: compare(*models_and_inputs, dtype=[a, b])


def _attention(a: Any, b: Any, inputs: Any) -> LocalDiff:
    a.set_attn_implementation("sdpa")
    b.set_attn_implementation("eager")
    return compare(a, b, inputs)


def _traced(a: nn.Module, b: nn.Module, inputs: Any) -> LocalDiff:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and a trace has constants
        return compare(a, torch.jit.trace(b, inputs), inputs)


_CAUSES = {
    "bfloat16": _dtypes("float32", "bfloat16"),
    "float16": _dtypes("float32", "float16"),
    "from-bfloat16": _dtypes("bfloat16", "float32"),
    "both-bfloat16": _dtypes("bfloat16", "bfloat16"),
    "attention": _attention,
    "traced": _traced,
    "exported": lambda a, b, x: compare(a, torch.export.export(b, (x,)), x),
    # a port whose sums have another order
    "channels-last": lambda a, b, x: compare(a, b.to(memory_format=torch.channels_last), x),
}
_HEALTHY = [
    *((kind, "bfloat16") for kind in KINDS),
    *(("resnet", cause) for cause in ("float16", "traced", "exported", "channels-last")),
    *(("llama", cause) for cause in ("float16", "from-bfloat16", "both-bfloat16", "attention")),
    *(("bert", "attention"), ("gpt2", "attention"), ("unet", "traced"), ("vit", "exported")),
]


def _quick(kind: str, cause: str) -> bool:
    return kind in _QUICK or (kind, cause) == ("bert", "attention")


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        pytest.param(*case, marks=[] if _quick(*case) else [pytest.mark.exhaustive])
        for case in _HEALTHY
    ],
)
def test_two_healthy_models_have_no_fault(kind: str, cause: str) -> None:
    found = _CAUSES[cause](*pair(kind))
    assert found.same and found.faults == ()
    assert len(found.errors) > 3


# Own errors against hooks written by hand


def test_the_own_error_of_a_leaf_is_that_of_a_call_on_the_inputs_of_the_other_model() -> None:
    a, b, inputs = pair("resnet")
    generator = torch.Generator().manual_seed(3)
    for parameter in b.parameters():
        parameter.data += 1e-3 * torch.randn(parameter.shape, generator=generator)
    expected: dict[tuple[str, int], float] = {}
    names = {module: name for name, module in a.named_modules()}

    def measure(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        name = names[module]
        with torch.no_grad():
            other = b.get_submodule(name).forward(args[0].clone())
        error = np.linalg.norm((output.double() - other.double()).numpy())
        number = 1 + sum(known == name for known, _ in expected)
        expected[name, number] = float(error / np.linalg.norm(output.double().numpy()))

    kinds = (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.Linear)
    handles = [m.register_forward_hook(measure) for m in a.modules() if isinstance(m, kinds)]
    with torch.no_grad():
        a(inputs)
    for handle in handles:
        handle.remove()
    found = {(e.module, e.call): e for e in compare(a, b, inputs).errors}
    assert len(expected) == 43
    for call, error in expected.items():
        assert found[call].own == pytest.approx(error, rel=1e-9)
    # What has no weights has no error of its own, whatever differs before it.
    for (_name, _), error in found.items():
        if error.type in ("ReLU", "MaxPool2d", "BasicBlock", "Sequential", "ResNet"):
            assert error.own == 0.0 and (error.accumulated or _name == ".")


def test_modules_that_change_their_input_or_draw_random_numbers_have_no_error() -> None:
    def three_times(self: Any, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.linear(x)
            self.relu(x)
            x = self.drop(self.scale * x)
        return x

    parts = {"linear": nn.Linear(6, 6), "relu": nn.ReLU(inplace=True), "drop": nn.Dropout(0.5)}
    a = _copied(Module(three_times, **parts), scale=1.0)
    found = compare(a, copy.deepcopy(a), torch.randn(4, 6), train=True)
    assert [error.own for error in found.errors] == [0.0] * 10
    found = compare(a, _copied(a, scale=2.0), torch.randn(4, 6), train=True)
    [fault] = found.faults
    assert (fault.module, fault.own) == (".", 1.0)
    assert fault.tensor in ("drop/input.0", "drop:2/input.0", "drop:3/input.0")


def test_a_residual_that_one_of_two_changes_in_place_is_an_error_around_it() -> None:
    def skip(self: Any, x: Tensor) -> Tensor:
        y = self.linear(x)
        return self.relu(y) + y

    a = Module(skip, linear=nn.Linear(6, 6), relu=nn.ReLU())
    b = _copied(a, relu=nn.ReLU(inplace=True))
    x = torch.randn(4, 6)
    for models in ((a, b), (b, a)):
        assert faults(*models, x) == [(".", "./output")]
    assert compare(b, copy.deepcopy(b), x).same


def test_a_tensor_that_is_passed_twice_is_compared_at_each_place() -> None:
    def attend(self: Any, x: Tensor) -> Tensor:
        y = x + 1.0
        return self.attn(y, y, x if self.value else y, need_weights=False)[0]

    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    a = _copied(Module(attend, attn=attention), value=True)
    b = _copied(a, value=False)
    x = torch.randn(2, 3, 8)
    assert faults(a, b, x) == [(".", "attn/input.2")]
    assert compare(b, copy.deepcopy(b), x).same


def _pooled(padding: int) -> nn.Module:
    torch.manual_seed(0)
    convs = nn.Conv2d(3, 4, 3, padding=padding), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)
    return nn.Sequential(*convs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()


def test_an_output_of_another_shape_is_a_fault() -> None:
    found = compare(_pooled(1), _pooled(0), torch.randn(2, 3, 8, 8))
    assert [(e.module, e.own) for e in found.faults] == [("0", math.inf)]
    assert [e.module for e in found.errors if "shape in B" in e.reason] == ["1", "2", "3"]
    assert not found.same


def test_a_mask_of_the_least_number_is_compared_as_infinite() -> None:
    a, b, inputs = pair("llama")
    for model in (a, b):
        model.set_attn_implementation("eager")
    assert compare(a, b, inputs).same
    layer = b.get_submodule("model.layers.1")
    forward = layer.forward
    layer.forward = lambda *args, attention_mask, **kwargs: forward(
        *args, attention_mask=attention_mask.roll(1, -1), **kwargs
    )
    [fault] = compare(a, b, inputs).faults
    assert (fault.module, fault.own) == ("model.layers.1", math.inf)
    assert fault.tensor == "model.layers.1.self_attn/input.attention_mask"


class Scaled(nn.Module):
    """Takes two tensors."""

    def forward(self, values: Tensor, factor: Tensor) -> Tensor:
        return values * factor


class ScaledOtherwise(nn.Module):
    """Takes the same tensors under other names."""

    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return x * by


def original() -> Any:
    """A linear layer and a factor."""
    return Module(
        lambda self, x: self.scale(self.linear(x), torch.tensor(2.0)),
        linear=nn.Linear(6, 8),
        scale=ScaledOtherwise(),
    )


def port(a: Any) -> Any:
    """The same with other names of modules and arguments, and one module more."""
    return Module(
        lambda self, x: self.second(factor=torch.tensor(2.0), values=self.flat(self.first(x))),
        first=copy.deepcopy(a.linear),
        second=Scaled(),
        flat=nn.Identity(),
    )


PORTED = {"map": {"linear": "first", "scale": "second"}}


def test_a_port_with_other_names_is_compared_by_order() -> None:
    a = original()
    b = port(a)
    assert [e.own for e in compare(a, b, torch.ones(2, 6), **PORTED).errors] == [0.0] * 3
    assert not compare(a, b, torch.ones(2, 6), strict=True, **PORTED).same  # with its own module
    b.first.weight.data[0, 0] += 1
    found = compare(a, b, torch.ones(2, 6), **PORTED)
    assert [e.module for e in found.faults] == ["linear"]


def test_the_note_names_what_one_of_the_two_does_not_get() -> None:
    a = original()
    b = _copied(a, function=lambda self, x: self.scale(self.linear(x)))
    b.scale.forward = lambda x: 2.0 * x
    [error] = [e for e in compare(a, b, torch.ones(2, 6)).errors if e.module == "scale"]
    assert (error.unmatched, error.own) == (("scale/input.1",), 0.0)


def test_a_tolerance_of_zero_calls_every_difference_a_fault() -> None:
    a, b, inputs = pair("unet")
    exact: dict[str, Any] = {"floor": "none", "rtol": 0.0, "atol": 0.0}
    assert compare(a, b, inputs, **exact).same
    b.out.weight.data *= 1 + 1e-6
    found = compare(a, b, inputs, **exact)
    assert [e.module for e in found.faults] == ["out"]
    assert [e.module for e in found.echoes] == ["."]


def test_what_is_outside_every_matched_module_belongs_to_the_model() -> None:
    a = original()
    b = _copied(a, function=lambda self, x: a.function(self, x + 0.01))
    assert faults(a, b, torch.ones(2, 6)) == [(".", "linear/input.0")]


def test_a_module_that_does_not_run_in_float64_keeps_its_dtype() -> None:
    def single_only(self: Any, x: Tensor) -> Tensor:
        assert x.dtype is self.scale.weight.dtype is torch.float32, "only float32"
        return x * self.scale.weight

    def single() -> Module:
        return Module(single_only, scale=nn.PReLU(4))

    a = nn.Sequential(nn.Linear(4, 4), single(), nn.Linear(4, 4), single())
    found = compare(a, copy.deepcopy(a), torch.randn(3, 4))
    assert found.same and {e.module for e in found.errors} >= {".", "0", "1", "2", "3"}
    b: Any = copy.deepcopy(a)
    b[3].scale.weight.data *= 1.001
    assert [e.module for e in compare(a, b, torch.randn(3, 4)).faults] == ["3"]


@pytest.mark.parametrize(
    ("a", "b", "error"),
    [
        ([3.0, 4.0], [3.0, 4.5], 0.1),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.0, 0.0], [0.0, 1e-30], math.inf),
        ([math.inf, 1.0], [math.inf, 1.0], 0.0),
        ([math.inf, 1.0], [math.inf, 2.0], 1.0),
        ([math.nan, 1.0], [math.nan, 1.0], 0.0),
        ([math.nan, 1.0], [1.0, 1.0], math.inf),
        ([1e200, 0.0], [0.0, 0.0], 1.0),
        ([3 + 4j], [3 + 5j], 0.2),
        ([True, False], [True, True], 1.0),
        ([], [], 0.0),
    ],
)
def test_the_relative_error(a: list[Any], b: list[Any], error: float) -> None:
    kind = torch.complex128 if any(isinstance(x, complex) for x in a) else None
    kind = torch.float64 if kind is None and not any(x is True for x in a) else kind
    found = relative_error(torch.tensor(a, dtype=kind), torch.tensor(b, dtype=kind))
    assert found == pytest.approx(error, rel=1e-15)


def test_a_fault_of_a_port_in_a_file_has_echoes(tmp_path: Path) -> None:
    (tmp_path / "port.py").write_text(
        f"import sys; sys.path.insert(0, {str(SAMPLES)!r}); import digits\n"
        "def net():\n"
        "    model = digits.trained()\n"
        "    model.conv2.weight.data *= 1.001\n"
        "    return model\n"
    )
    sides, five = (DIGITS, f"{tmp_path}/port.py:net"), f"{SAMPLES}/five.png"
    found = compare(*sides, five)
    [fault] = found.faults
    assert (fault.module, fault.own) == ("conv2", pytest.approx(0.001, rel=1e-3))
    assert len(found.echoes) == 4 and not found.same
    # The floor is measured unless it is not wanted; then the tolerance decides.
    usual = hookscope.diff(*sides, input=five, local=True)
    assert (usual.errors, usual.floor) == (found.errors, "float64")
    assert [e.module for e in compare(*sides, five, "none").faults] == ["conv2"]
    assert hookscope.diff(*sides, input=five, local=True, rtol=0.01, atol=0.1).same


def _calls(first: nn.Module, factor: float = 1.0) -> Module:
    """A model that calls a module for what it does to a tensor, and passes the tensor on."""

    def forward(self: Any, x: Tensor) -> Tensor:
        x = x * factor
        self.first(x)
        return factor * self.last(x)

    return Module(forward, first=first, last=nn.Identity())


@pytest.mark.parametrize("returns", [True, False])
def test_a_module_that_changes_its_argument_in_place_passes_nothing_on(returns: bool) -> None:
    def multiplies(factor: float) -> Module:
        def forward(self: Module, x: Tensor) -> Tensor:
            x.mul_(factor)
            return x if returns else torch.zeros(1)

        return Module(forward)

    [fault] = compare(_calls(multiplies(2.0)), _calls(multiplies(3.0)), torch.ones(2, 4)).faults
    assert (fault.module, fault.own) == ("first", pytest.approx(0.5))
    assert fault.tensor == ("first/output" if returns else "first/input.0")


@pytest.mark.parametrize(("change", "modules"), [(0.0, ["."]), (9.0, ["first", "."])])
def test_what_the_model_passes_on_is_its_own_fault(change: float, modules: list[str]) -> None:
    first: Any = nn.Linear(4, 4)
    models = [_calls(copy.deepcopy(first), factor) for factor in (1.0, 2.0)]
    models[1].first.weight.data += change
    assert [e.module for e in compare(*models, torch.ones(2, 4)).faults] == modules


def test_a_call_of_another_shape_is_not_compared() -> None:
    a = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    b = nn.Sequential(OrderedDict(out=nn.Linear(4, 2)))
    errors = compare(a, b, torch.ones(2, 4)).errors
    assert [error.own is None for error in errors].count(False) == 1


@pytest.mark.parametrize(
    ("in_a", "in_b", "reason"), [(0.0, 1.0, "exactly zero"), (1.0, math.nan, "NaN or infinite")]
)
def test_an_infinite_error_has_a_reason_in_place_of_a_size(
    in_a: float, in_b: float, reason: str
) -> None:
    a: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    b = copy.deepcopy(a)
    for model, factor in ((a, in_a), (b, in_b)):
        model[1].weight.data *= factor
        model[1].bias.data *= factor
    found = compare(a, b, torch.ones(2, 4))
    [fault] = found.faults
    assert (fault.own, fault.accumulated, fault.a_is_zero) == (math.inf, math.inf, in_a == 0)
    lines = [line.plain for line in display.text(found, TextOptions())]
    assert any(line.startswith("1 (Linear): ") and reason in line for line in lines)
    assert found.to_json()["errors"][1]["own"] == math.inf  # "Infinity" in a file, as everywhere


def test_a_fault_between_the_limits_is_said_to_be_between() -> None:
    a, b, inputs = pair("unet")
    for size, verdict in ((2e-6, "between"), (1e-3, "fault")):
        b.out.weight.data = a.out.weight.data * (1 + size)
        found = compare(a, b, inputs)
        [error] = [e for e in found.errors if e.module == "out"]
        assert found.verdict(error) == verdict
        assert found.same == (verdict == "between")
    assert ROUNDING_LIMIT < FAULT_LIMIT


@pytest.fixture
def wrong_file(tmp_path: Path) -> str:
    """The sample with another padding in its first convolution."""
    proto = onnx.load(f"{SAMPLES}/digits.onnx")
    set_attribute("Conv", "pads", [2, 2, 0, 0])(proto)
    onnx.save(proto, tmp_path / "wrong.onnx")
    return str(tmp_path / "wrong.onnx")


@pytest.mark.parametrize("options", [{"floor": "float64"}, {"local": True}], ids=["floor", "local"])
def test_a_broken_node_of_an_onnx_file_is_named(wrong_file: str, options: dict[str, Any]) -> None:
    good = hookscope.diff(DIGITS, f"{SAMPLES}/digits.onnx", **options)
    found = hookscope.diff(DIGITS, wrong_file, **options)
    assert isinstance(good, LocalDiff) and isinstance(found, LocalDiff)
    assert good.same and good.faults == ()
    assert [(e.module, e.tensor) for e in found.faults] == [("conv1", "conv1/output")]
    assert {e.module for e in found.echoes} == {"relu1", "conv2", "relu2", "pool", "fc", "."}


def test_an_onnx_file_is_b_and_has_outputs_to_compare() -> None:
    with pytest.raises(RequestError, match="No module"):
        hookscope.diff(DIGITS, f"{SAMPLES}/digits.onnx", floor="float64", what="input")
    with pytest.raises(RequestError, match=r"^A "):
        hookscope.diff(f"{SAMPLES}/digits.onnx", f"{SAMPLES}/digits.onnx", local=True)
