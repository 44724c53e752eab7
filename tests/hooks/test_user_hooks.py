"""The user's own hooks do exactly what the same hooks do when they are registered by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import CheckFailed, HookError, RequestError
from tests.conftest import REPO
from tests.digits_forms import FORMS
from tests.hooks.recordings import hooks_left
from tests.oracle.by_hand import same_bits
from tests.zoo import Module

SAMPLES = REPO / "sample_models"
FILE = str(SAMPLES / "own_hook.py")
FIVE = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(5))


@pytest.fixture(params=FORMS)
def word(request: pytest.FixtureRequest) -> str:
    """The same trained model as Python, as a scripted file, as an exported one."""
    return f"{SAMPLES}/{request.param}"


def by_hand(word: str, layer: str, register: str, function: Callable[..., Any]) -> nn.Module:
    model = hookscope.load_model(word).module
    getattr(model.get_submodule(layer), register)(function)
    return model


def halve(module: nn.Module, input: Any, output: Tensor) -> Tensor:
    return output * 0.5


def shift(module: nn.Module, input: tuple[Tensor, ...]) -> Tensor:
    return input[0] + 0.25


@pytest.mark.parametrize(
    ("kind", "register", "function"),
    [
        ("forward", "register_forward_hook", halve),
        ("forward_pre", "register_forward_pre_hook", shift),
    ],
)
def test_a_changed_value_is_that_of_the_hook_by_hand(
    word: str, kind: str, register: str, function: Callable[..., Any]
) -> None:
    with torch.no_grad():
        expected = by_hand(word, "relu1", register, function)(FIVE)
    shot = hookscope.capture(
        word,
        input=FIVE,
        layers="relu1",
        what="input,output",
        hooks=function,
        hook_kind=kind,
        verify=True,
    )
    assert same_bits(shot.output, expected)
    plain = hookscope.capture(word, input=FIVE, layers="relu1", what="input,output")
    changed = "relu1/output" if kind == "forward" else "relu1/input.0"
    now = function(nn.ReLU(), (plain["relu1/input.0"],), *([plain[changed]] * (kind == "forward")))
    assert same_bits(shot[changed], now)  # what is recorded is what went on
    assert not same_bits(shot.output, plain.output)


def clip(grad: Tensor) -> Tensor:
    return grad.clamp(-0.01, 0.01)


def double(module: nn.Module, grad_output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (grad_output[0] * 2,)


def reverse(module: nn.Module, grad_input: Any, grad_output: Any) -> tuple[Tensor, ...]:
    return (-grad_input[0] + grad_output[0].mean(),)


def parameter_gradients(model: nn.Module) -> dict[str, Tensor]:
    model(FIVE.clone().requires_grad_()).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("kind", "register", "function"),
    [
        ("backward_pre", "register_full_backward_pre_hook", double),
        ("backward", "register_full_backward_hook", reverse),
    ],
)
def test_a_changed_gradient_is_that_of_the_hook_by_hand(
    word: str, kind: str, register: str, function: Callable[..., Any]
) -> None:
    expected = parameter_gradients(by_hand(word, "conv2", register, function))
    found = hookscope.grads(
        word,
        input=FIVE,
        loss="sum",
        what="param",
        hooks={"conv2": function},
        hook_kind=kind,
        verify=True,
    )
    assert len(expected) == 6
    for name, grad in expected.items():
        module, _, parameter = name.rpartition(".")
        assert same_bits(found[f"{module}/{parameter}.grad"], grad)


def test_a_gradient_hook_on_a_tensor_is_that_of_the_hook_by_hand(word: str) -> None:
    def on_output(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output.register_hook(clip)
        return output

    expected = parameter_gradients(by_hand(word, "conv2", "register_forward_hook", on_output))
    found = hookscope.grads(word, input=FIVE, loss="sum", hooks={"conv2": clip}, hook_kind="tensor")
    assert same_bits(found["conv1/weight.grad"], expected["conv1.weight"])
    assert found["conv2/output.grad"].abs().max() <= 0.01  # recorded as it goes on


def test_a_backward_hook_works_beside_operations_in_place() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 1)).eval()
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    seen = []

    def look(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        seen.append((type(module).__name__, grad_input[0].shape, grad_output[0].shape))

    plain = hookscope.grads(net, input=x, loss="sum")
    found = hookscope.grads(net, input=x, loss="sum", layers="*", hooks=look, hook_kind="backward")
    assert [name for name, _, _ in seen] == ["Linear", "ReLU", "Linear", "Sequential"]
    assert all(same_bits(found[key], plain[key]) for key in plain)


@pytest.mark.parametrize(
    ("kind", "register"),
    [
        ("backward", "register_full_backward_hook"),
        ("backward_pre", "register_full_backward_pre_hook"),
    ],
)
def test_gradient_hooks_of_one_kind_run_in_the_order_given(kind: str, register: str) -> None:
    def mul(module: nn.Module, *grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(grad * 3 for grad in grads[0])

    def clamp(module: nn.Module, *grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(grad.clamp(-0.1, 0.1) for grad in grads[0])

    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    x = torch.randn(2, 3)
    found = hookscope.grads(
        net, input=x, loss="sum", layers="1", hooks=[mul, clamp], hook_kind=kind
    )
    for function in (mul, clamp):
        getattr(net[1], register)(function)
    x = x.requires_grad_()
    net(x).sum().backward()
    assert x.grad is not None
    assert same_bits(found["./input.0.grad"], x.grad)


def test_hooks_of_several_kinds_run_in_the_order_given() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    order = []
    hooks = [lambda m, i: order.append("pre"), lambda m, i, o: order.append("post")]
    kinds = ["forward_pre", "forward"]
    hookscope.capture(net, input=torch.ones(1, 2), layers=["1"], hooks=hooks, hook_kind=kinds)
    assert order == ["pre", "post"]


def test_emitted_values_stand_beside_the_rest_and_in_the_file(word: str, tmp_path: Path) -> None:
    def look(module: nn.Module, input: Any, output: Tensor) -> None:
        hookscope.emit("largest", output.max())
        hookscope.emit("count", 3)
        hookscope.emit("share", 0.1)

    shot = hookscope.capture(word, layers="relu?", hooks=look, verify=True)
    assert list(shot)[:4] == ["relu1/largest", "relu1/count", "relu1/share", "relu1/output"]
    assert len(shot) == 8  # the run that verifies keeps nothing
    assert {r.kind for r in shot.records if "/output" not in r.key} == {"emitted"}
    shot.save(tmp_path / "x.safetensors")
    again = hookscope.load(tmp_path / "x.safetensors")
    assert same_bits(again["relu1/largest"], shot["relu1/output"].max())
    assert again["relu2/share"].item() == 0.1 and again["relu2/count"].item() == 3


def test_each_call_of_a_module_emits_under_its_own_number() -> None:
    net = Module(lambda self, x: self.step(self.step(x)), step=nn.Linear(2, 2))
    shot = hookscope.capture(
        net,
        input=torch.ones(1, 2),
        hooks={"step": lambda m, i, o: hookscope.emit("sum", o.sum())},
        layers="step",
    )
    assert list(shot) == ["step/sum", "step/output", "step:2/sum", "step:2/output"]


def test_a_hook_on_the_way_back_emits_too() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    found = hookscope.grads(
        net,
        input=torch.ones(1, 2),
        loss="sum",
        hooks={"0": lambda m, into, out: hookscope.emit("norm", out[0].norm())},
        hook_kind="backward",
    )
    assert found["0/norm"].item() == pytest.approx(2**0.5)


def test_emit_outside_a_hook_says_so() -> None:
    with pytest.raises(RequestError, match="emit"):
        hookscope.emit("x", 1)


def fail(module: nn.Module, input: Any, output: Any) -> None:
    raise ValueError("not today")


def test_an_error_names_the_line_and_the_layer_and_keeps_what_was_recorded(word: str) -> None:
    clean = hookscope.capture(word, input=FIVE, layers="*")
    model = hookscope.load_model(word).module
    with pytest.raises(HookError) as caught:
        hookscope.capture(model, input=FIVE, layers="*", hooks={"relu2": fail})
    line = fail.__code__.co_firstlineno + 1
    for subject in ("fail", f"line {line} of {__file__}", "relu2 (ReLU): ValueError"):
        assert subject in caught.value.message
    capture = caught.value.capture
    assert list(capture) == ["conv1/output", "relu1/output", "conv2/output"]
    assert "relu2" in {absent.module for absent in capture.absent}
    assert all(same_bits(capture[key], clean[key]) for key in capture)
    assert {s.module for s in capture.coverage.not_executed} == {"pool", "fc"}
    assert capture.metadata["failed"] == caught.value.message
    assert hooks_left(model) == 0


@pytest.mark.parametrize("kind", ["backward", "backward_pre", "tensor"])
def test_an_error_on_the_way_back_keeps_what_had_arrived(word: str, kind: str) -> None:
    model = hookscope.load_model(word).module
    clean = hookscope.grads(model, input=FIVE, loss="sum")

    def bad(*given: Any) -> None:
        raise KeyError("gone")

    with pytest.raises(HookError, match=r"relu2 \(ReLU\): KeyError: 'gone'") as caught:
        hookscope.grads(model, input=FIVE, loss="sum", hooks={"relu2": bad}, hook_kind=kind)
    capture = caught.value.capture
    assert "fc/output.grad" in capture and "conv1/output.grad" not in capture
    assert all(same_bits(capture[key], clean[key]) for key in capture)
    assert hooks_left(model) == 0
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, i, o: o[:, :3], r"1x3x8x8 .* 1x16x8x8 .*conv1"),
        (lambda m, i, o: (o,), r"tuple\(0=1x16x8x8\)"),
        (lambda m, i, o: 3, r"returned int "),
    ],
)
def test_another_shape_or_structure_is_refused(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(HookError, match=message):
        hookscope.capture(f"{SAMPLES}/digits.py:trained", hooks={"conv1": function})


def test_a_hook_in_a_module_that_can_be_imported_is_found() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    shot = hookscope.capture(
        net, input=-torch.ones(1, 2), layers="0", hooks="tests.hooks.test_user_hooks:halve"
    )
    assert same_bits(shot.output, net(-torch.ones(1, 2)).detach() * 0.5)


@pytest.mark.parametrize(
    ("given", "subject"),
    [
        ({"hooks": "nowhere.py:f"}, "'nowhere.py'"),
        ({"hooks": "halve"}, "'halve'"),
        ({"hooks": f"!fc={FILE}:mute"}, "!fc"),
        ({"hooks": f"{FILE}:mut"}, "'mut'"),
        ({"hooks": f"{FILE}:Tensor"}, "class"),
        ({"hooks": f"{FILE}:mute", "hook_args": {"chanel": 1}}, "'chanel'"),
        ({"hooks": halve, "hook_kind": "forwrd"}, "(?s)hook_kind: 'forwrd'.*mean forward"),
        ({"hooks": halve, "hook_kind": ["forward", "forward"]}, "2 kinds .* 1 hook"),
        ({"hooks": [halve] * 3, "hook_kind": ["forward"] * 2}, "2 kinds .* 3 hooks"),
        ({"hooks": [3]}, "int"),
        ({"hooks": {"nope*": halve}}, r"nope\*"),
        ({"hook_kind": "forward"}, "hook_kind"),
        ({"hook_args": {"a": 1}}, "hook_args"),
    ],
)
def test_what_cannot_be_a_hook_is_refused(given: dict[str, Any], subject: str) -> None:
    with pytest.raises(RequestError, match=subject):
        hookscope.capture(f"{SAMPLES}/two_steps.py:TwoSteps", **given)


def test_emitted_values_count_against_the_limit() -> None:
    def look(module: nn.Module, input: Any, output: Tensor) -> None:
        hookscope.emit("much", torch.zeros(100, 100))

    with pytest.raises(CheckFailed, match="1,000"):
        hookscope.capture(
            nn.Sequential(nn.Identity()), input=torch.ones(1), hooks=look, max_bytes=1000
        )
