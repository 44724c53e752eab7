"""``diff --local`` names the module in which a difference arises, and none if there is no fault."""

from __future__ import annotations

import copy
import json
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
from tests.views.error_results import local_diff

SAMPLES = Path(__file__).resolve().parents[3] / "sample_models"
_QUICK = ("unet", "tagger", "vit")  # whose faults are planted in each run of the tests


def compare(a: nn.Module, b: nn.Module, inputs: Any, **options: Any) -> LocalDiff:
    found = hookscope.diff(a, b, input=inputs, floor="float64", **options)
    assert isinstance(found, LocalDiff)
    return found


def _case(fault: Fault) -> Any:
    marks = [] if fault.kind in _QUICK else [pytest.mark.exhaustive]
    return pytest.param(fault, marks=marks, id=f"{fault.kind}-{fault.what.replace(' ', '-')}")


@pytest.mark.parametrize("fault", [_case(fault) for fault in FAULTS])
def test_the_module_with_a_planted_fault_comes_first(fault: Fault) -> None:
    a, inputs = build(fault.kind)
    b, _ = build(fault.kind)
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
    assert "times the rounding floor, in 1." in said
    assert found.errors == compare(a, b, torch.ones(2, 4)).errors
    # Without a floor the sentence names what the row shows, too.
    [healthy] = sentences(a, b)
    assert healthy.endswith(" of 1.30e-06, in 1.")


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
    assert found.floor == "" and "a copy of A in float64 would have" in caplog.text
    assert compare(_with_eps(1e-5), _with_eps(1e-5), torch.ones(2, 4)).floor == "float64"


def test_outputs_beyond_the_tolerance_count_where_the_floor_was_not_asked_for() -> None:
    diff = hookscope.diff(nn.Linear(4, 2), nn.Linear(4, 2), input=torch.ones(2, 4))
    assert isinstance(diff, Diff) and not diff.same
    healthy = replace(local_diff([("fc", 1e-3, 1e-7)], floor="float64"), diff=diff)
    assert healthy.same and not replace(healthy, all_count=True).same


# Healthy pairs


def _dtypes(a: str, b: str) -> Callable[..., LocalDiff]:
    return lambda a_model, b_model, inputs: compare(a_model, b_model, inputs, dtype=[a, b])


def _attention(a: nn.Module, b: nn.Module, inputs: Any) -> LocalDiff:
    a.set_attn_implementation("sdpa")
    b.set_attn_implementation("eager")
    return compare(a, b, inputs)


def _traced(a: nn.Module, b: nn.Module, inputs: Any) -> LocalDiff:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and a trace has constants
        return compare(a, torch.jit.trace(b, inputs), inputs)


def _exported(a: nn.Module, b: nn.Module, inputs: Any) -> LocalDiff:
    return compare(a, torch.export.export(b, (inputs,)), inputs)  # type: ignore[arg-type]


def _rounded_otherwise(a: nn.Module, b: nn.Module, inputs: Any) -> LocalDiff:
    """A port whose sums have another order: channels last."""
    return compare(a, b.to(memory_format=torch.channels_last), inputs)


_CAUSES = {
    "bfloat16": _dtypes("float32", "bfloat16"),
    "float16": _dtypes("float32", "float16"),
    "from-bfloat16": _dtypes("bfloat16", "float32"),
    "both-bfloat16": _dtypes("bfloat16", "bfloat16"),
    "attention": _attention,
    "traced": _traced,
    "exported": _exported,
    "channels-last": _rounded_otherwise,
}
_HEALTHY = [
    *((kind, "bfloat16") for kind in KINDS),
    *(("resnet", cause) for cause in ("float16", "traced", "exported", "channels-last")),
    *(("llama", cause) for cause in ("float16", "from-bfloat16", "both-bfloat16", "attention")),
    *(("bert", "attention"), ("gpt2", "attention"), ("unet", "traced"), ("vit", "exported")),
]


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        pytest.param(
            *pair,
            marks=[]
            if pair[0] in _QUICK or pair == ("bert", "attention")
            else [pytest.mark.exhaustive],
            id="-".join(pair),
        )
        for pair in _HEALTHY
    ],
)
def test_two_healthy_models_have_no_fault(kind: str, cause: str) -> None:
    a, inputs = build(kind)
    b, _ = build(kind)
    found = _CAUSES[cause](a, b, inputs)
    assert found.same and found.faults == ()
    assert len(found.errors) > 3


# Own errors against hooks written by hand


def test_the_own_error_of_a_leaf_is_that_of_a_call_on_the_inputs_of_the_other_model() -> None:
    a, inputs = build("resnet")
    b, _ = build("resnet")
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


class Repeated(nn.Module):
    """Calls one module three times, on a tensor that it changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.relu, self.drop = nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Dropout(0.5)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.linear(x)
            self.relu(x)
            x = self.drop(self.scale * x)
        return x


def test_modules_that_change_their_input_or_draw_random_numbers_have_no_error() -> None:
    torch.manual_seed(0)
    a = Repeated()
    found = compare(a, copy.deepcopy(a), torch.randn(4, 6), train=True)
    assert [error.own for error in found.errors] == [0.0] * 10
    b = copy.deepcopy(a)
    b.scale = 2.0
    found = compare(a, b, torch.randn(4, 6), train=True)
    [fault] = found.faults
    assert (fault.module, fault.own) == (".", 1.0)
    assert fault.tensor in ("drop/input.0", "drop:2/input.0", "drop:3/input.0")


class Skip(nn.Module):
    """A residual after an activation, which may change the residual too."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.linear, self.relu = nn.Linear(6, 6), nn.ReLU(inplace)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return self.relu(y) + y  # type: ignore[no-any-return]


def test_a_residual_that_one_of_two_changes_in_place_is_an_error_around_it() -> None:
    torch.manual_seed(0)
    a, b = Skip(False), Skip(True)
    b.load_state_dict(a.state_dict())
    x = torch.randn(4, 6)
    for pair in ((a, b), (b, a)):
        assert [(e.module, e.tensor) for e in compare(*pair, x).faults] == [(".", "./output")]
    assert compare(b, copy.deepcopy(b), x).same


class Attention(nn.Module):
    """Passes a query, a key, and a value that may be another tensor."""

    def __init__(self, value: bool) -> None:
        super().__init__()
        self.attn, self.value = nn.MultiheadAttention(8, 2, batch_first=True), value

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1.0
        return self.attn(y, y, x if self.value else y, need_weights=False)[0]  # type: ignore[no-any-return]


def test_a_tensor_that_is_passed_twice_is_compared_at_each_place() -> None:
    torch.manual_seed(0)
    a, b = Attention(True), Attention(False)
    b.load_state_dict(a.state_dict())
    x = torch.randn(2, 3, 8)
    assert [(e.module, e.tensor) for e in compare(a, b, x).faults] == [(".", "attn/input.2")]
    assert compare(b, copy.deepcopy(b), x).same


def _pooled(padding: int) -> nn.Module:
    torch.manual_seed(0)
    convs = nn.Conv2d(3, 4, 3, padding=padding), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)
    return nn.Sequential(*convs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()


def test_an_output_of_another_shape_is_a_fault() -> None:
    found = compare(_pooled(1), _pooled(0), torch.randn(2, 3, 8, 8))
    assert [(e.module, e.own) for e in found.faults] == [("0", math.inf)]
    reason = "its input has another shape in B"
    assert [e.module for e in found.errors if e.reason == reason] == ["1", "2", "3"]
    assert not found.same


def test_a_mask_of_the_least_number_is_compared_as_infinite() -> None:
    a, inputs = build("llama")
    b, _ = build("llama")
    for model in (a, b):
        model.set_attn_implementation("eager")
    assert compare(a, b, inputs).same
    layer = b.get_submodule("model.layers.1")
    forward = layer.forward

    def masked(*args: Any, **kwargs: Any) -> Any:
        mask = kwargs["attention_mask"].roll(1, -1)
        return forward(*args, **{**kwargs, "attention_mask": mask})

    layer.forward = masked  # type: ignore[method-assign]
    [fault] = compare(a, b, inputs).faults
    assert (fault.module, fault.own) == ("model.layers.1", math.inf)
    assert fault.tensor == "model.layers.1.self_attn/input.attention_mask"


def test_the_note_names_what_one_of_the_two_does_not_get() -> None:
    a, b = Original(), Original()
    b.load_state_dict(a.state_dict())
    b.scale.forward = lambda x: 2.0 * x  # type: ignore[method-assign, assignment]
    b.forward = lambda x: b.scale(b.linear(x))  # type: ignore[method-assign]
    [error] = [e for e in compare(a, b, torch.ones(2, 6)).errors if e.module == "scale"]
    assert (error.unmatched, error.own) == (("scale/input.1",), 0.0)


def test_a_tolerance_of_zero_calls_every_difference_a_fault() -> None:
    a, inputs = build("unet")
    b, _ = build("unet")
    assert hookscope.diff(a, b, input=inputs, local=True, rtol=0.0, atol=0.0).same
    b.get_submodule("out").weight.data *= 1 + 1e-6  # type: ignore[operator]
    found = hookscope.diff(a, b, input=inputs, local=True, rtol=0.0, atol=0.0)
    assert isinstance(found, LocalDiff) and [e.module for e in found.faults] == ["out"]
    assert [e.module for e in found.echoes] == ["."]


def test_unmatched_tensors_are_a_difference_with_strict() -> None:
    a, b = Original(), Port()
    b.first.load_state_dict(a.linear.state_dict())
    options = {"map": {"linear": "first", "scale": "second"}}
    assert compare(a, b, torch.ones(2, 6), **options).same
    assert not compare(a, b, torch.ones(2, 6), strict=True, **options).same


class Port(nn.Module):
    """``Original`` with other names of modules and arguments, and one module more."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.flat = nn.Linear(6, 8), Scaled(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(factor=torch.tensor(2.0), values=self.flat(self.first(x)))  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """Takes two tensors."""

    def forward(self, values: Tensor, factor: Tensor) -> Tensor:
        return values * factor


class Original(nn.Module):
    """A linear layer and a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(6, 8), ScaledOtherwise()

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(self.linear(x), torch.tensor(2.0))  # type: ignore[no-any-return]


class ScaledOtherwise(nn.Module):
    """Takes the same tensors under other names."""

    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return x * by


def test_a_port_with_other_names_is_compared_by_order() -> None:
    torch.manual_seed(0)
    a, b = Original(), Port()
    b.first.load_state_dict(a.linear.state_dict())
    options = {"map": {"linear": "first", "scale": "second"}}
    assert [e.own for e in compare(a, b, torch.ones(2, 6), **options).errors] == [0.0] * 3
    b.first.weight.data[0, 0] += 1
    assert [e.module for e in compare(a, b, torch.ones(2, 6), **options).faults] == ["linear"]


def test_what_is_outside_every_matched_module_belongs_to_the_model() -> None:
    torch.manual_seed(0)
    a = Original()
    b = copy.deepcopy(a)
    forward = b.forward
    b.forward = lambda x: forward(x + 0.01)  # type: ignore[method-assign]
    found = compare(a, b, torch.ones(2, 6))
    assert [(e.module, e.tensor) for e in found.faults] == [(".", "linear/input.0")]


class SingleOnly(nn.Module):
    """An operation that does not exist in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.weight = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype is self.weight.dtype is torch.float32, "only float32"
        return x * self.weight


def test_a_module_that_does_not_run_in_float64_keeps_its_dtype() -> None:
    a = nn.Sequential(nn.Linear(4, 4), SingleOnly(), nn.Linear(4, 4), SingleOnly())
    found = compare(a, copy.deepcopy(a), torch.randn(3, 4))
    assert found.same and {e.module for e in found.errors} == {".", "0", "1", "2", "3"}
    b = copy.deepcopy(a)
    b[3].weight.data *= 1.001  # type: ignore[operator, union-attr]
    assert [e.module for e in compare(a, b, torch.randn(3, 4)).faults] == ["3"]


def test_both_models_are_left_as_they_were() -> None:
    a, inputs = build("resnet")
    b, _ = build("resnet")
    before = [{k: v.clone() for k, v in m.state_dict().items()} for m in (a, b)]
    state = torch.get_rng_state()
    compare(a, b, inputs, train=True)
    assert torch.equal(torch.get_rng_state(), state)
    for model, values in zip((a, b), before, strict=True):
        assert all(torch.equal(values[k], v) for k, v in model.state_dict().items())
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        assert not any(m.training for m in model.modules())


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


# The command


def _net_with_a_fault(tmp_path: Path) -> str:
    path = tmp_path / "port.py"
    path.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(SAMPLES)!r})\n"
        "import digits\n"
        "def net():\n"
        "    model = digits.trained()\n"
        "    model.conv2.weight.data *= 1.001\n"
        "    return model\n"
    )
    return f"{path}:net"


def test_the_command_names_the_module_and_its_echo(run: Any, tmp_path: Path) -> None:
    words = ("diff", f"{SAMPLES}/digits.py:trained", _net_with_a_fault(tmp_path))
    words = (*words, "--input", f"{SAMPLES}/five.png")
    done = run(*words, "--local", "--floor", "float64")
    assert done.rc == 1
    first, echo = done.stdout.splitlines()[-2:]
    assert first.startswith("conv2 (Conv2d): own error 0.00100, ")
    assert first.endswith("times its rounding floor.")
    assert echo == "The outputs of 4 later calls differ only because of it."
    document = json.loads(run(*words, "--floor", "float64", "--json").stdout)
    [fault] = [e for e in document["errors"] if e["verdict"] == "fault"]
    assert (document["faults"], fault["module"], document["same"]) == (["conv2"], "conv2", False)
    # It is measured unless it is not wanted; then the tolerance decides.
    assert run(*words, "--local").stdout == run(*words, "--floor", "float64").stdout
    done = run(*words, "--floor", "none")
    assert done.rc == 1 and "floor" not in done.stdout
    assert run(*words, "--local", "--rtol", 0.01, "--atol", 0.1).rc == 0


def test_the_command_writes_a_page_a_picture_and_a_table(
    run: Any, refused: Any, tmp_path: Path
) -> None:
    words = ("diff", f"{SAMPLES}/digits.py:trained", _net_with_a_fault(tmp_path))
    words = (*words, "--input", f"{SAMPLES}/five.png", "--local", "--floor", "float64", "-o")
    for name in ("a.html", "b.html", "a.svg"):
        done = run(*words, tmp_path / name)
        assert done.rc == 1 and f"wrote {tmp_path}/{name}" in done.stderr, done.stderr
        text = (tmp_path / name).read_text()
        assert "conv2" in text and "own error" in text
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    weights = f"{SAMPLES}/digits.safetensors"
    said = refused("diff", weights, weights, "-o", "a.html")
    assert "a.html: a comparison of weights has no page or picture." in said
    assert run("diff", weights, weights, "-o", tmp_path / "b.csv").rc == 0
    assert "is an input of this command" in refused("diff", weights, weights, "-o", weights)


def sentences(a: nn.Module, b: nn.Module, **options: Any) -> list[str]:
    """What is said under the table of a comparison of two models on two rows of four numbers."""
    found = hookscope.diff(a, b, input=torch.ones(2, 4), floor="none", **options)
    lines = [line.plain for line in display.text(found, TextOptions(width=200))]
    return [line for line in lines if line.endswith(".")]


class InPlace(nn.Module):
    """Multiplies its argument in place, and returns it or another tensor."""

    def __init__(self, factor: float, returns: bool) -> None:
        super().__init__()
        self.factor, self.returns = factor, returns

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(self.factor)
        return x if self.returns else torch.zeros(1)


class Calls(nn.Module):
    """Calls a module for what it does to a tensor, and passes the tensor on."""

    def __init__(self, first: nn.Module, last: nn.Module, factor: float = 1.0) -> None:
        super().__init__()
        self.first, self.last, self.factor = first, last, factor

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.factor
        self.first(x)
        return self.factor * self.last(x)


def test_a_module_that_changes_its_argument_in_place_passes_nothing_on() -> None:
    for returns in (True, False):
        models = [Calls(InPlace(factor, returns), nn.Identity()) for factor in (2.0, 3.0)]
        first, *_ = sentences(*models)
        written = "" if returns else ", in what it writes into its argument (first/input.0)"
        assert first == f"first (InPlace): own error 0.500{written}."


def test_the_model_itself_has_a_name_in_sentences() -> None:
    for change, sentence in (
        (0.0, "(model) (Calls): own error 1.00, in what it passes on (first/input.0)."),
        (9.0, "Other modules with a fault of their own: (model)."),
    ):
        first = nn.Linear(4, 4)
        models = [Calls(copy.deepcopy(first), nn.Identity(), factor) for factor in (1.0, 2.0)]
        models[1].first.weight.data += change
        assert sentence in sentences(*models)


def test_calls_that_get_another_shape_are_not_said_to_be_compared() -> None:
    a = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    first, *_ = sentences(a, nn.Sequential(OrderedDict(out=nn.Linear(4, 2))))
    assert first == (
        "1 call compared: no module has an error of its own beyond the tolerance. Not compared on"
        " equal inputs: 1 call."
    )


def test_equal_models_differ_by_nothing(run: Any) -> None:
    sides = (f"{SAMPLES}/digits.py:trained", f"{SAMPLES}/digits_scripted.pt")
    done = run("diff", *sides, "--floor", "float64", "--input", f"{SAMPLES}/five.png")
    assert done.rc == 0
    assert "no module has a fault of its own" in done.stdout


# Of each fault without a size: what the last linear layer gives in A and in B, and the sentence.
_INFINITE = {
    "zero": (0.0, 1.0, "1 (Linear): its output is exactly zero in A and not in B."),
    "nan": (
        1.0,
        math.nan,
        "1 (Linear): its output has NaN or infinite entries in A or B alone.",
    ),
}


@pytest.mark.parametrize("name", _INFINITE)
def test_an_infinite_error_has_a_reason_in_place_of_a_size(name: str) -> None:
    in_a, in_b, sentence = _INFINITE[name]
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    b = copy.deepcopy(a)
    for model, factor in ((a, in_a), (b, in_b)):
        model[1].weight.data *= factor  # type: ignore[operator]
        model[1].bias.data *= factor  # type: ignore[operator]
    found = compare(a, b, torch.ones(2, 4))
    [fault] = found.faults
    assert (fault.own, fault.accumulated, fault.a_is_zero) == (math.inf, math.inf, name == "zero")
    lines = [line.plain for line in display.text(found, TextOptions())]
    assert sentence in lines
    assert found.to_json()["errors"][1]["own"] == math.inf  # "Infinity" in a file, as everywhere


def test_a_fault_between_the_limits_is_said_to_be_between() -> None:
    a, inputs = build("unet")
    b, _ = build("unet")
    for size, verdict in ((2e-6, "between"), (1e-3, "fault")):
        b.get_submodule("out").weight.data = a.get_submodule("out").weight.data * (1 + size)
        found = compare(a, b, inputs)
        [error] = [e for e in found.errors if e.module == "out"]
        assert found.verdict(error) == verdict
        assert found.same == (verdict == "between")
    assert ROUNDING_LIMIT < FAULT_LIMIT


@pytest.fixture
def wrong_file(tmp_path: Path) -> str:
    """The sample with another padding in its second convolution."""
    proto = onnx.load(f"{SAMPLES}/digits.onnx")
    second = [node for node in proto.graph.node if node.op_type == "Conv"][1]
    for attribute in second.attribute:
        if attribute.name == "pads":
            attribute.ints[:] = [2, 2, 0, 0]
    onnx.save(proto, tmp_path / "wrong.onnx")
    return str(tmp_path / "wrong.onnx")


@pytest.mark.parametrize("options", [{"floor": "float64"}, {"local": True}], ids=["floor", "local"])
def test_a_broken_node_of_an_onnx_file_is_named(wrong_file: str, options: dict[str, Any]) -> None:
    model = f"{SAMPLES}/digits.py:trained"
    good = hookscope.diff(model, f"{SAMPLES}/digits.onnx", **options)
    found = hookscope.diff(model, wrong_file, **options)
    assert isinstance(good, LocalDiff) and isinstance(found, LocalDiff)
    assert good.same and good.faults == ()
    assert [(e.module, e.tensor) for e in found.faults] == [("conv2", "conv2/output")]
    assert {e.module for e in found.echoes} == {"relu2", "pool", "fc", "."}


def test_an_onnx_file_whose_outputs_are_not_compared_is_refused() -> None:
    model, file = f"{SAMPLES}/digits.py:trained", f"{SAMPLES}/digits.onnx"
    with pytest.raises(RequestError, match="No module could be compared"):
        hookscope.diff(model, file, floor="float64", what="input")


def test_an_onnx_file_is_b(wrong_file: str) -> None:
    with pytest.raises(RequestError, match="A is an ONNX file") as caught:
        hookscope.diff(wrong_file, f"{SAMPLES}/digits.onnx", local=True)
    assert caught.value.hint.startswith("Name the model that was exported first")
