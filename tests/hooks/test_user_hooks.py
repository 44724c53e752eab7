"""The user's own hooks do exactly what the same hooks do when they are registered by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import CheckFailed, HookError, HookscopeError, RequestError
from hookscope.hooks.layers import layers_of
from hookscope.hooks.registry import CallRegistry
from hookscope.hooks.user_hooks import UserHook, attach_user_hooks
from tests.conftest import REPO
from tests.digits_forms import FORMS
from tests.hooks.edits.by_hand import at_gradient
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


def halve(module: nn.Module, input: Any, output: Tensor) -> Tensor:
    return output * 0.5


def shift(module: nn.Module, input: tuple[Tensor, ...]) -> Tensor:
    return input[0] + 0.25


def double(module: nn.Module, grad_output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (grad_output[0] * 2,)


def reverse(module: nn.Module, grad_input: Any, grad_output: Any) -> tuple[Tensor, ...]:
    return (-grad_input[0] + grad_output[0].mean(),)


def clip(grad: Tensor) -> Tensor:
    return grad.clamp(-0.01, 0.01)


BY_HAND: dict[str, tuple[str, Callable[..., Any]]] = {
    "forward": ("register_forward_hook", halve),
    "forward_pre": ("register_forward_pre_hook", shift),
    "backward": ("register_full_backward_hook", reverse),
    "backward_pre": ("register_full_backward_pre_hook", double),
    "tensor": ("register_forward_hook", at_gradient(lambda grad, value: clip(grad))),
}


@pytest.mark.parametrize("kind", BY_HAND)
def test_a_hook_does_what_it_does_when_it_is_registered_by_hand(word: str, kind: str) -> None:
    register, function = BY_HAND[kind]
    model = hookscope.load_model(word).module
    getattr(model.conv2, register)(function)
    output = model(FIVE)
    output.sum().backward()
    hooks = {"conv2": clip if kind == "tensor" else function}
    options = {"input": FIVE, "hooks": hooks, "hook_kind": kind, "verify": True}
    found = hookscope.grads(word, loss="sum", **options)
    assert same_bits(found.output, output.detach())
    assert len(list(model.parameters())) == 6
    for name, parameter in model.named_parameters():
        layer, _, own = name.rpartition(".")
        assert same_bits(found[f"{layer}/{own}.grad"], parameter.grad)
    plain = hookscope.grads(word, input=FIVE, loss="sum")
    assert not same_bits(found["conv1/weight.grad"], plain["conv1/weight.grad"])
    assert kind != "tensor" or found["conv2/output.grad"].abs().max() <= 0.01
    if kind.startswith("forward"):  # what is recorded is what went on
        both = {"layers": "conv2", "what": "input,output"}
        before = hookscope.capture(word, input=FIVE, **both)
        shot = hookscope.capture(word, **options, **both)
        key = "conv2/output" if kind == "forward" else "conv2/input.0"
        given = (None, (before[key],), before[key])
        assert same_bits(shot[key], function(*given[: 3 if kind == "forward" else 2]))
        assert same_bits(shot.output, output.detach())


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


@pytest.mark.parametrize("kind", ["backward", "backward_pre"])
def test_gradient_hooks_of_one_kind_run_in_the_order_given(kind: str) -> None:
    def mul(module: nn.Module, *grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(grad * 3 for grad in grads[0])

    def clamp(module: nn.Module, *grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(grad.clamp(-0.1, 0.1) for grad in grads[0])

    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    x, options = torch.randn(2, 3), {"loss": "sum", "layers": "1", "hook_kind": kind}
    found = hookscope.grads(net, input=x, hooks=[mul, clamp], **options)
    for function in (mul, clamp):
        getattr(net[1], BY_HAND[kind][0])(function)
    x = x.requires_grad_()
    net(x).sum().backward()
    assert x.grad is not None and same_bits(found["./input.0.grad"], x.grad)


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


X = torch.rand(3, 2, generator=torch.Generator().manual_seed(1))


def stepped(hook: Callable[..., Any], kind: str) -> hookscope.Capture:
    net = nn.Linear(2, 2)
    return hookscope.step(net, input=X, loss="sum", hooks=hook, hook_kind=kind)


def test_a_hook_before_the_step_may_return_its_arguments_and_what_one_after_it_returns_is_unused():
    found = []
    for hook, kind in (
        (lambda *_: None, "step_pre"),
        (lambda optimizer, args, kwargs: (args, kwargs), "step_pre"),
        (lambda *_: "anything", "step_post"),
    ):
        torch.manual_seed(0)
        found.append(stepped(hook, kind))
    for one in found[1:]:
        assert list(one) == list(found[0])
        assert all(same_bits(one[key], found[0][key]) for key in one)


def test_a_hook_that_fails_at_the_step_is_told_on_which_side_of_it() -> None:
    def fewer(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        return (), kwargs

    def fails(*_: Any) -> Any:
        raise ValueError("mine")

    with pytest.raises(HookError, match=r"fewer .*before .*step"):
        stepped(fewer, "step_pre")
    for kind, side in (("step_pre", "before"), ("step_post", "after")):
        with pytest.raises(HookError, match=rf"{side} .*step"):
            stepped(fails, kind)


@pytest.mark.parametrize("kind", ["backward", "backward_pre", "tensor"])
def test_a_gradient_that_arrives_after_the_block_passes_unchanged(kind: str) -> None:
    net, runs = nn.Sequential(nn.Linear(2, 2), nn.Tanh()), []

    def zero(*arguments: Any) -> Any:
        runs.append(kind)
        grads = arguments[1] if kind == "backward" else arguments[-1]
        return grads * 0 if isinstance(grads, Tensor) else tuple(grad * 0 for grad in grads)

    expected = torch.autograd.grad(net(X).sum(), list(net.parameters()))
    hook = UserHook("zero", kind, zero, __file__, None, layers_of(net)[-1:])
    with attach_user_hooks(CallRegistry(net), [hook]):
        within, after = net(X).sum(), net(X).sum()
        assert not torch.autograd.grad(within, net[0].weight)[0].any()
    found = torch.autograd.grad(after, list(net.parameters()))
    assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True))
    assert len(runs) == 1


def test_an_error_of_hookscope_in_a_hook_is_quoted_without_its_hint() -> None:
    def fail(module: nn.Module, input: Any, output: Tensor) -> None:
        raise HookscopeError("It is too dark.", "Switch on the light.")

    with pytest.raises(HookError) as caught:
        hookscope.capture(nn.Linear(2, 2), input=X, hooks=fail)
    assert caught.value.message.endswith("HookscopeError: It is too dark.")
    assert "light" not in caught.value.hint


def after(module: nn.Module, grad_input: Any, grad_output: Any) -> None: ...


def before(module: nn.Module, grad_output: Any) -> None: ...


def on_tensor(grad: Tensor) -> None: ...


@pytest.mark.parametrize(
    ("hook", "kind"), [(after, "backward"), (before, "backward_pre"), (on_tensor, "tensor")]
)
def test_a_gradient_hook_without_a_kind_is_refused_with_the_kind_that_it_needs(
    hook: Callable[..., Any], kind: str
) -> None:
    hints = {"grads": f'hook_kind="{kind}"', "capture": f"grads with --hook-kind {kind}."}
    for verb, hint in hints.items():
        with pytest.raises(RequestError, match="hook_kind") as caught:
            getattr(hookscope, verb)(nn.Linear(2, 2), input=X, hooks=hook)
        assert hint in caught.value.hint and "module, input, output" in caught.value.hint


def test_tensor_hooks_run_in_the_order_given() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    hooks = [lambda grad: grad * 3, lambda grad: grad.clamp(-0.1, 0.1)]
    x = torch.randn(2, 3)
    found = hookscope.grads(net, input=x, loss="sum", layers="0", hooks=hooks, hook_kind="tensor")
    assert found["0/output.grad"].abs().max() <= 0.1
