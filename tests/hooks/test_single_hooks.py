"""A module that calls no other gets one hook where two are not needed, and loses nothing by it."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.hooks.capture import Capture
from hookscope.hooks.layers import Layer, layers_of
from hookscope.hooks.module_call import CallSubscriber, ModuleCall, RecordKey
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.registry import calls_no_module
from tests.hooks.recordings import recorded
from tests.oracle.by_hand import same_bits
from tests.zoo import Module


def hooks_of(module: nn.Module) -> tuple[int, int]:
    return len(module._forward_pre_hooks), len(module._forward_hooks)


class Numbers(CallSubscriber):
    """Notes the numbers of calls as they begin."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []

    def before_call(self, call: ModuleCall) -> None:
        self.begun.append((call.layer.name, call.number))


class OwnLinear(nn.Linear):
    """Calls itself once more, which the class that it is based on does not."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 1e6 else self(x + 1e7) - 1e7


def test_a_layer_of_pytorch_has_one_hook_while_its_output_is_recorded() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with hookscope.record(model, what="output", grads=True):
        assert [hooks_of(module) for module in model] == [(0, 1), (0, 1)]
        assert hooks_of(model) == (1, 1)
    with hookscope.record(model, what="input"):
        assert [hooks_of(module) for module in model] == [(1, 1), (1, 1)]
    assert {hooks_of(module) for module in model.modules()} == {(0, 0)}


def patched() -> nn.Module:
    module = nn.Linear(2, 2)
    module.forward = module.forward  # type: ignore[method-assign]
    return module


def hooked(register: Callable[[nn.Module], object]) -> nn.Module:
    module = nn.Linear(2, 2)
    register(module)
    return module


@pytest.mark.parametrize(
    "module",
    [
        OwnLinear(2, 2),
        patched(),
        hooked(lambda module: module.register_forward_pre_hook(lambda *_: None)),
        hooked(lambda module: module.register_forward_hook(lambda *_: None)),
        nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
        nn.LazyLinear(2),
        nn.Sequential(),
        nn.MultiheadAttention(2, 1),
    ],
    ids=["own class", "patched", "pre-hook", "hook", "parametrized", "lazy", "empty", "attention"],
)
def test_a_module_that_may_run_other_code_has_two_hooks(module: nn.Module) -> None:
    assert not calls_no_module(module)


@pytest.mark.parametrize("grads", [False, True])
def test_a_layer_that_fails_counts_as_a_call_without_an_output(grads: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with hookscope.record(model, grads=grads) as capture:
        model(torch.ones(1, 3))
        with pytest.raises(RuntimeError):
            model[0](torch.ones(1, 4))
        model[0](torch.zeros(1, 3))
    assert [a.call for a in capture.absent if a.what == "output"] == [2]
    assert same_bits(capture["0:3/output"], model[0].bias.detach()[None])
    assert [(x.module, x.calls) for x in capture.coverage.executed][1] == ("0", 3)


def test_a_subscriber_that_comes_later_sees_the_calls_begin_under_the_same_numbers() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    recorder, numbers = Recorder(model, layers_of(model), ["output"]), Numbers()
    x = torch.ones(1, 3)
    with recorder as capture:
        model(x)
        recorder.calls.subscribe(numbers, layers_of(model))
        model(x)
        recorder.calls.unsubscribe(numbers)
    assert numbers.begun == [(".", 2), ("0", 2), ("1", 2)]
    assert list(capture)[3:] == ["0:2/output", "1:2/output", ".:2/output"]
    assert {hooks_of(module) for module in model.modules()} == {(0, 0)}


def uses_before_and_after(self: Module, x: Tensor) -> Tensor:
    before = x * 2
    use = before.sin()
    after = self.layer(before)
    return use + after * after.exp()


CHANGES = [nn.ReLU(), nn.Tanh(), nn.Hardtanh()]
PASSES_ON = [nn.Identity(), nn.Dropout(0.5).eval(), nn.Flatten(0)]


@pytest.mark.parametrize(
    ("layer", "alone"),
    [(layer, False) for layer in CHANGES + PASSES_ON] + [(layer, True) for layer in CHANGES],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_the_gradient_at_an_output_is_that_of_its_uses_after_the_call(
    layer: nn.Module, alone: bool
) -> None:
    model = Module(uses_before_and_after, layer=layer)
    x = torch.linspace(-1, 1, 5, requires_grad=True)
    # By hand: a clone after the layer, which only later uses lead to.
    before = x * 2
    use = before.sin()
    after = layer(before).clone()
    (expected,) = torch.autograd.grad((use + after * after.exp()).sum(), after)
    with hookscope.record(layer if alone else model, what="output", grads=True) as capture:
        model(x).sum().backward()
    assert same_bits(capture["./output.grad" if alone else "layer/output.grad"], expected)


def test_records_are_made_in_the_order_in_which_layers_returned() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with hookscope.record(model) as capture:
        model(torch.ones(1, 3))
        assert [record.key for record in capture.records] == list(capture)
        model(torch.ones(1, 3))
    keys = ["0/output", "1/output", "./output", "0:2/output", "1:2/output", ".:2/output"]
    assert [record.key for record in capture.records] == list(dict(capture)) == keys


def test_a_layer_that_failed_before_and_is_called_again_has_not_failed_again() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with hookscope.record(model) as capture:
        try:
            model[0](torch.ones(1, 4))
        except RuntimeError:
            model[0](torch.ones(1, 3))
    assert list(capture) == ["0:2/output"]
    assert [a.call for a in capture.absent] == [1]


def test_a_hook_of_all_modules_that_raises_leaves_no_output() -> None:
    model = nn.ReLU()

    def fail(module: nn.Module, args: object, output: object) -> None:
        raise ValueError("no")

    with hookscope.record(model) as capture:
        handle = nn.modules.module.register_module_forward_hook(fail)
        try:
            with pytest.raises(ValueError, match="no"):
                model(torch.ones(1))
        finally:
            handle.remove()
    assert list(capture) == []
    assert [a.what for a in capture.absent] == ["output"]


def test_a_capture_that_was_not_read_is_copied_and_does_not_hold_the_model() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    capture = recorded(model, torch.ones(1, 3))
    copied, alive = copy.copy(capture), weakref.ref(model[0])
    del model
    gc.collect()
    assert alive() is None
    assert list(copied) == list(capture) == ["0/output", "./output"]
    assert list(pickle.loads(pickle.dumps(capture))) == list(capture)


def test_records_that_several_threads_make_are_whole() -> None:
    capture, layer = Capture(), Layer("a", nn.ReLU())
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(thread: int) -> None:
        for i in range(60):
            capture.add(RecordKey(layer, 100 * thread + i, "output", "output"), torch.zeros(1))
            len(capture)

    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(capture) == len(set(capture)) == 240
