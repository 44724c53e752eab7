"""Wherever Ctrl-C comes, the model and the process are then as they were before the run."""

from __future__ import annotations

import copy
import inspect
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.execution.isolation import preserve_model_state
from hookscope.files.signal_safety import (
    is_signal_safe,
    signal_safe,
    signal_safe_contextmanager,
    uninterrupted,
)
from hookscope.hooks.torch_state import _REMOVED_FOR_A_CALL
from tests.hooks.recordings import hooks_left
from tests.oracle.by_hand import same_bits
from tests.zoo import Interrupted

Within = Callable[[FrameType, str], bool]

PACKAGE = os.path.dirname(hookscope.__file__)
X = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))


class Net(nn.Module):
    """One of everything that a run puts back."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.act, self.fc = nn.ReLU(), nn.Linear(4, 3)
        self.fc.bias.requires_grad_(False)
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += float(x.amax() > -9)  # so that it cannot run on the meta device
        hidden = self.act(self.norm(self.conv(x)))
        return self.fc(torch.nn.functional.dropout(hidden.mean((2, 3)), training=self.training))


TWIN = Net().train()


def made() -> Net:
    net = Net().train()
    net.act.eval()
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)
    return net


class State:
    """All of a model and of the process that a run changes for a while."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.values = copy.deepcopy(net.state_dict())
        self.own = {name: id(tensor) for name, tensor in net.state_dict(keep_vars=True).items()}
        self.grads = {name: (p.grad, p.requires_grad) for name, p in net.named_parameters()}
        self.copies = {name: copy.deepcopy(p.grad) for name, p in net.named_parameters()}
        self.modes = [module.training for module in net.modules()]
        self.drawn = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
        self.process = self._process()

    def _process(self) -> tuple[Any, ...]:
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.backends.mha.get_fastpath_enabled(),
            torch.overrides._len_torch_function_stack(),
            torch.utils._python_dispatch._len_torch_dispatch_stack(),
            threading.Thread.start,
            signal.getsignal(signal.SIGINT),
        )

    def assert_as_before(self) -> None:
        net = self.net
        assert hooks_left(net) == hooks_left(TWIN) == 0
        assert [module.training for module in net.modules()] == self.modes
        for name, tensor in net.state_dict(keep_vars=True).items():
            assert id(tensor) == self.own[name]
            assert same_bits(tensor.detach(), self.values[name]), name
        for name, parameter in net.named_parameters():
            grad, requires_grad = self.grads[name]
            assert parameter.grad is grad and parameter.requires_grad is requires_grad
            expected = self.copies[name]
            assert grad is None or (expected is not None and same_bits(grad, expected))
        assert torch.equal(torch.get_rng_state(), self.drawn[0])
        assert np.array_equal(np.random.get_state()[1], self.drawn[1])
        assert random.getstate() == self.drawn[2]
        assert self._process() == self.process
        for module in net.modules():
            assert not vars(module._forward_hooks) and not vars(module._forward_pre_hooks)


def recorded(net: nn.Module) -> None:
    with hookscope.record(net, grads=True, ops=True):
        net(X).sum().backward()
    net.zero_grad()


RUNS: dict[str, Callable[[nn.Module], Any]] = {
    "capture": lambda net: hookscope.capture(
        net, input=X, ops=True, edits="conv=zero", verify=True
    ),
    "grads": lambda net: hookscope.grads(net, input=X, train=True, grad_edits="act=zero"),
    "step": lambda net: hookscope.step(net, input=X, target=1, hooks=lambda *_: None),
    "trace": lambda net: hookscope.trace(net, input=X),
    "cam": lambda net: hookscope.cam(net, input=X),
    "guided": lambda net: hookscope.cam(net, input=X, by="guided"),
    "check": lambda net: hookscope.check(net, input=X),
    "tree": lambda net: hookscope.tree(net, shapes=True, shape=(2, 3, 8, 8)),
    "ablate": lambda net: hookscope.ablate(net, input=X, layers="act"),
    "sweep": lambda net: hookscope.sweep(net, input=X, layers="act"),
    "diff": lambda net: hookscope.diff(net, TWIN, input=X),
    "gradcheck": lambda net: hookscope.gradcheck(net, shape=(1, 3, 3, 3)),
}


@contextmanager
def interrupted_at(wanted: Within, send: Within) -> Iterator[None]:
    """Of the calls that are ``wanted``, and their lines, send SIGINT at the first for ``send``."""
    sent = False

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal sent
        if event not in ("call", "line") or sent or not wanted(frame, event):
            return trace if event == "line" else None
        if send(frame, event):
            sent = True
            signal.raise_signal(signal.SIGINT)  # the handler runs in here
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def places(run: Callable[[], Any], within: Within) -> list[Any]:
    """Each distinct line or call of a run for which ``within`` is true."""
    found: dict[Any, None] = {}

    def look(frame: FrameType, event: str) -> bool:
        found[frame.f_code, frame.f_lineno, event] = None
        return False

    with interrupted_at(within, look):
        run()
    return list(found)


def goes_on(code: CodeType, line: int, event: str) -> bool:
    """Whether a generator goes on where it stood, perhaps only to be closed."""
    is_generator = bool(code.co_flags & inspect.CO_GENERATOR)
    return is_generator and event == "call" and line != code.co_firstlineno


def assert_restored_at(name: str, some: slice, within: Within) -> None:
    """Interrupt a run at each of some of its places in turn."""
    net = made()
    run = RUNS[name]
    run(net)  # what is imported or cached with the first run is there in all others
    state = State(net)
    every = places(lambda: run(net), within)
    # Weak dictionaries and sets have callbacks there, and Python swallows what a callback raises;
    # so it does with what a generator raises that is closed where it stands.
    callbacks = (
        "_dynamo",
        os.path.join("torch", "utils", "weak.py"),
        "_weakrefset.py",
        os.sep + "weakref.py",
        "hypothesis",
    )
    found = [place for place in every if not any(x in place[0].co_filename for x in callbacks)]
    found = [place for place in found if not goes_on(*place)]
    assert len(found) > 50
    for place in found[some]:
        reached = []

        def here(frame: FrameType, event: str, place: Any = place, reached: Any = reached) -> bool:
            if (frame.f_code, frame.f_lineno, event) == place:
                reached.append(place)
            return bool(reached)

        interrupts = 0
        try:
            with interrupted_at(within, here):
                run(net)
        except KeyboardInterrupt:
            interrupts += 1  # not kept: what its frames refer to ends before the state is looked at
        # What the collector of garbage calls is not called in each run.
        assert interrupts == len(reached), place
        state.assert_as_before()


def in_restoration(frame: FrameType, event: str) -> bool:
    return is_signal_safe(frame)


def is_call(frame: FrameType, event: str) -> bool:
    """A call of a function within a verb: Python itself handles signals there."""
    above: FrameType | None = frame if event == "call" else None
    while above is not None and not above.f_code.co_filename.startswith(PACKAGE):
        above = above.f_back
    return above is not None


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", RUNS)
def test_an_interrupt_within_a_restoration_comes_after_it(name: str) -> None:
    assert_restored_at(name, slice(None, None, 97), in_restoration)


@pytest.mark.parametrize("name", RUNS)
def test_an_interrupt_at_a_call_leaves_nothing_behind(name: str) -> None:
    assert_restored_at(name, slice(None, None, 83), is_call)


def test_an_interrupt_as_pytorch_enables_a_function_mode_again_leaves_nothing_behind() -> None:
    net, run = made(), RUNS["capture"]
    run(net)
    state = State(net)

    def enables_again(frame: FrameType, event: str) -> bool:
        generator = getattr(frame.f_locals.get("self"), "gen", None)
        code = getattr(generator, "gi_code", None)
        return frame.f_code.co_name == "__exit__" and code is _REMOVED_FOR_A_CALL

    with pytest.raises(KeyboardInterrupt), interrupted_at(lambda *_: True, enables_again):
        run(net)
    state.assert_as_before()


@pytest.mark.exhaustive
@pytest.mark.parametrize("within", [in_restoration, is_call])
@pytest.mark.parametrize("name", RUNS)
def test_an_interrupt_anywhere_leaves_nothing_behind(name: str, within: Within) -> None:
    assert_restored_at(name, slice(None), within)


@pytest.mark.exhaustive
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no such timer")
# Python drops what is raised in a weak reference's callback.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("sender", ["SIGINT", "SIGALRM"])
@pytest.mark.parametrize("name", RUNS)
def test_an_interrupt_by_a_timer_leaves_nothing_behind(name: str, sender: str) -> None:
    """A timer interrupts 500 runs at a random moment: by Ctrl-C, or by a handler of its own."""
    net, run = made(), RUNS[name]
    run(net)
    state = State(net)

    def fire(number: int, frame: FrameType | None) -> None:
        if sender == "SIGALRM":
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    def interrupted(seed: int) -> bool:
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, random.Random(seed).uniform(1e-4, longest))
                run(net)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            return True
        return False

    before = signal.signal(signal.SIGALRM, fire)
    try:
        started = time.perf_counter()
        run(net)
        longest = time.perf_counter() - started  # how long a run takes; no outcome depends on it
        count = 0
        for seed in range(500):
            count += interrupted(seed)
            state.assert_as_before()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert count > 100


def test_a_second_interrupt_within_a_restoration_is_the_first() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, signal_safe(interrupting(3)):
        pass
    assert caught.value.__context__ is None


@contextmanager
def interrupting(times: int) -> Iterator[None]:
    yield
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_on_the_way_into_a_block_leaves_it_first() -> None:
    steps = []

    @signal_safe_contextmanager
    def change() -> Iterator[None]:
        steps.append("made")
        signal.raise_signal(signal.SIGINT)
        steps.append("ready")
        try:
            yield
        finally:
            steps.append("undone")

    with pytest.raises(KeyboardInterrupt), change():
        steps.append("never")
    assert steps == ["made", "ready", "undone"]
    with pytest.raises(KeyboardInterrupt), signal_safe(interrupting(0)):
        signal.raise_signal(signal.SIGINT)  # the block itself is interrupted at once
        steps.append("never")
    assert len(steps) == 3


def test_a_recording_that_goes_on_after_an_interrupt_records_what_comes_then() -> None:
    net = nn.Sequential(nn.Linear(4, 4), Interrupted(), nn.Linear(4, 1))
    with hookscope.record(net, what=["input", "output"], grads=True) as capture:
        with pytest.raises(KeyboardInterrupt):
            net(torch.ones(3, 4))
        net(torch.ones(3, 4)).sum().backward()
    assert capture["2/bias.grad"].tolist() == [3.0]
    assert capture["0:2/output.grad"].shape == (3, 4)
    assert same_bits(capture["1:2/input.0.grad"], capture["0:2/output.grad"])
    assert "2/output.grad" in capture


def test_an_interrupt_within_one_restoration_of_several_comes_after_the_outer_one_too() -> None:
    steps = []

    @signal_safe_contextmanager
    def outer() -> Iterator[None]:
        yield
        with signal_safe(interrupting(1)):
            pass
        steps.append("outer")

    with pytest.raises(KeyboardInterrupt), outer():
        pass
    assert steps == ["outer"]


def test_a_handler_that_does_not_raise_is_called_and_the_run_goes_on() -> None:
    called: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: called.append(number))
    try:
        with signal_safe(interrupting(1)):
            assert called == []
            signal.raise_signal(signal.SIGINT)
            assert called == [signal.SIGINT]
        assert called == [signal.SIGINT] * 2
        uninterrupted(lambda: signal.raise_signal(signal.SIGINT))()
        assert called == [signal.SIGINT] * 3
    finally:
        assert signal.signal(signal.SIGINT, before) is not before


def test_a_handler_set_within_the_block_stays() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with hookscope.record(nn.Linear(1, 1)):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_signals_that_are_ignored_stay_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signal_safe(interrupting(1)):
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_than_the_main_one_set_no_handler() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with hookscope.record(nn.Linear(1, 1)):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_thread_that_waits_for_its_turn_can_be_interrupted() -> None:
    """The main thread waits for the run of another one; Ctrl-C ends that wait."""
    net, inside, go_on = made(), threading.Event(), threading.Event()

    def work() -> None:
        with preserve_model_state(net, train=False, seed=0):
            inside.set()
            go_on.wait()

    def interrupt_a_wait(frame: FrameType, event: str) -> bool:
        return frame.f_code.co_name == "_wait"

    def line(frame: FrameType, event: str) -> bool:
        return event == "line"

    thread = threading.Thread(target=work)
    thread.start()
    try:
        inside.wait()
        with pytest.raises(KeyboardInterrupt), interrupted_at(interrupt_a_wait, line):
            hookscope.capture(net, input=X)
    finally:
        go_on.set()
        thread.join()
    assert hookscope.capture(net, input=X).keys()
    assert net.training and hooks_left(net) == 0
