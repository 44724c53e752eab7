"""Threads that run one model: a recording holds its own thread's calls, and changes no other."""

from __future__ import annotations

import copy
import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookscope
from hookscope.errors import RequestError
from hookscope.execution.isolation import preserve_model_state
from hookscope.hooks import hook_set as hooks
from hookscope.tensors import threads
from tests.hooks.recordings import BOTH, hooks_left, recorded
from tests.oracle.by_hand import same_bits
from tests.processes import run_python
from tests.zoo import Fails, Module

SECONDS = 60  # after which a wait that should have ended fails the test; nothing is timed


@pytest.fixture(autouse=True)
def _threads_change_often() -> Iterator[None]:
    """Let Python change between threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Run functions on a thread each, and return what they return, in their order."""
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(SECONDS) for future in [pool.submit(work) for work in works]]


class Net(nn.Module):
    """Random numbers, buffers that change and a module that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.drop(torch.relu(self.a(x))))
        return self.c(self.b(self.b(hidden)))


def assert_same(found: hookscope.Capture, expected: hookscope.Capture) -> None:
    assert found.keys() == expected.keys()
    assert all(same_bits(found[key], expected[key]) for key in expected)


RUNS: dict[str, Callable[[nn.Module, Tensor], hookscope.Capture]] = {
    "capture": lambda net, x: hookscope.capture(net, input=x, train=True),
    "capture, ops": lambda net, x: hookscope.capture(net, input=x, ops=True),
    "grads": lambda net, x: hookscope.grads(net, input=x, loss="sum", train=True),
    "step": lambda net, x: hookscope.step(net, input=x, loss="sum", lr=0.5, train=True),
    "an edit": lambda net, x: hookscope.capture(net, input=x, edits="b=scale:2"),
}


@pytest.mark.parametrize(("first", "second"), list(combinations_with_replacement(RUNS, 2)))
def test_two_threads_that_run_one_model_get_what_each_gets_alone(first: str, second: str) -> None:
    net = Net().train()
    state = copy.deepcopy(net.state_dict())
    inputs = torch.randn(5, 4), torch.randn(7, 4)
    runs = RUNS[first], RUNS[second]
    expected = [run(net, x) for run, x in zip(runs, inputs, strict=True)]
    together = threading.Barrier(2)

    def work(n: int) -> list[hookscope.Capture]:
        together.wait(SECONDS)
        return [runs[n](net, inputs[n]) for _ in range(5)]

    found = at_once(lambda: work(0), lambda: work(1))
    for n in (0, 1):
        for capture in found[n]:
            assert_same(capture, expected[n])
    assert all(same_bits(value, state[name]) for name, value in net.state_dict().items())
    assert hooks_left(net) == 0 and net.training
    assert all(parameter.grad is None for parameter in net.parameters())


def test_two_threads_that_run_two_models_draw_what_each_draws_alone() -> None:
    nets, x = [Net(), Net()], torch.randn(6, 4)
    expected = [hookscope.capture(net, input=x, train=True) for net in nets]
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    together = threading.Barrier(2)

    def work(n: int) -> list[hookscope.Capture]:
        together.wait(SECONDS)
        return [hookscope.capture(nets[n], input=x, train=True) for _ in range(10)]

    for captures, alone in zip(at_once(lambda: work(0), lambda: work(1)), expected, strict=True):
        for capture in captures:
            assert_same(capture, alone)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])


def test_two_threads_that_load_one_model_build_the_same_weights() -> None:
    expected = hookscope.load_model("squeezenet1_1").module.state_dict()
    together = threading.Barrier(2)

    def work() -> dict[str, Tensor]:
        together.wait(SECONDS)
        return hookscope.load_model("squeezenet1_1").module.state_dict()

    for state in at_once(work, work):
        assert all(same_bits(state[name], value) for name, value in expected.items())


class Meeting(nn.Module):
    """A model in whose first call threads wait for each other, so that they are in it at once."""

    def __init__(self, threads: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)
        self.met = threading.Barrier(threads)

    def forward(self, x: Tensor) -> Tensor:
        self.met.wait(SECONDS)
        hidden = self.a(x).relu()
        self.met.wait(SECONDS)
        return self.b(hidden)


@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize("ops", [False, True])
def test_blocks_in_several_threads_record_their_own_calls_alone(grads: bool, ops: bool) -> None:
    count = 4
    net = Meeting(count)
    inputs = [torch.randn(n + 1, 4) for n in range(count)]

    def by_hand(x: Tensor) -> dict[str, Tensor]:
        a = torch.nn.functional.linear(x, net.a.weight, net.a.bias)
        return {"a/output": a, "./relu": a.relu(), "b/output": net.b(a.relu())}

    expected = [by_hand(x) for x in inputs]

    def work(n: int) -> tuple[Tensor, hookscope.Capture]:
        with hookscope.record(net, grads=grads, ops=ops) as capture:
            output = net(inputs[n])
            if grads:
                (output * (n + 1)).sum().backward()
        return output, capture

    for n, (output, capture) in enumerate(at_once(*[lambda n=n: work(n) for n in range(count)])):
        wanted = expected[n] if ops else {k: v for k, v in expected[n].items() if k != "./relu"}
        assert {k for k in capture if not k.endswith("grad")} == {*wanted, "./output"}
        assert all(same_bits(capture[key], value.detach()) for key, value in wanted.items())
        assert same_bits(output.detach(), expected[n]["b/output"].detach())
        if grads:
            ones = torch.full_like(output, n + 1)
            assert same_bits(capture["b/output.grad"], ones)
            assert same_bits(capture["b/bias.grad"], ones.sum(0))
            assert "b:2/bias.grad" not in capture
    assert hooks_left(net) == 0


def test_a_call_by_another_thread_is_not_recorded_and_gets_its_own_output() -> None:
    net = Meeting(2)
    mine, theirs = torch.randn(2, 4), torch.randn(3, 4)
    expected = net.b(net.a(theirs).relu())
    with ThreadPoolExecutor(1) as other, hookscope.record(net, grads=True) as capture:
        called = other.submit(net, theirs)
        net(mine).sum().backward()
        assert same_bits(called.result(SECONDS).detach(), expected.detach())
    keys = [record.key for record in capture.records if record.kind == "output"]
    assert keys == ["a/output", "b/output", "./output"]
    assert capture["a/output"].shape == (2, 8)
    assert capture.coverage.not_executed == ()


def test_a_thread_started_in_the_block_is_another_one() -> None:
    net, outputs = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), []
    with hookscope.record(net) as capture:
        thread = threading.Thread(target=lambda: outputs.append(net(torch.ones(3, 2))))
        thread.start()
        thread.join()
    assert list(capture) == []
    assert same_bits(outputs[0], net(torch.ones(3, 2)))
    assert all("threads" in silent.reason for silent in capture.coverage.not_executed)
    assert len(capture.coverage.not_executed) == 3


CHANGES: dict[str, dict[str, Any]] = {
    "an edit": {"edits": "a=zero"},
    "a hook": {"hooks": lambda module, args, output: output * 0 if output.ndim else None},
    "a hook before": {"hooks": lambda module, args: (args[0] * 0,), "hook_kind": "forward_pre"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_run_changes_is_not_changed_for_another_thread(change: str) -> None:
    net = Meeting(2).eval()
    x = torch.randn(3, 4)
    expected = net.b(net.a(x).relu()).detach()
    with ThreadPoolExecutor(1) as other:
        # The edited run, which a run without edits follows.
        called = [other.submit(net, x) for _ in range(2 if "edits" in CHANGES[change] else 1)]
        shot = hookscope.capture(net, input=x, **CHANGES[change])
        assert all(same_bits(one.result(SECONDS).detach(), expected) for one in called)
    assert not same_bits(shot.output, expected)


@pytest.mark.parametrize(
    "hook",
    [
        ("backward", lambda module, into, out: tuple(g if g is None else g * 0 for g in into)),
        ("backward_pre", lambda module, out: tuple(g * 0 for g in out)),
        ("tensor", lambda grad: grad * 0),
    ],
    ids=lambda hook: hook[0],
)
def test_gradients_of_another_thread_pass_hooks_and_edits_unchanged(hook: Any) -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).eval(), torch.randn(3, 4)
    expected = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    found: list[tuple[Tensor, ...]] = []

    def elsewhere(output: Tensor) -> Tensor:
        """A loss that lets another thread run the model, and a backward pass, too."""

        def work() -> None:
            found.append(torch.autograd.grad(net(x).sum(), list(net.parameters())))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return output.sum()

    kind, function = hook
    options = {"loss": elsewhere, "input": x, "layers": ["1"]}
    changed = hookscope.grads(net, hooks=function, hook_kind=kind, **options)
    hookscope.grads(net, grad_edits="1=zero", **options)
    assert len(found) == 2
    for gradients in found:
        assert all(same_bits(a, b) for a, b in zip(gradients, expected, strict=True))
    assert kind == "tensor" or changed is not None


def test_a_backward_pass_of_another_thread_is_not_recorded() -> None:
    before, inner, x = nn.Linear(2, 2), nn.Linear(2, 2), torch.ones(3, 2)
    net = Module(lambda self, x: self.inner(y := self.before(x)) + y, before=before, inner=inner)
    with (
        hookscope.record(net, what=BOTH, grads=True) as capture,
        ThreadPoolExecutor(1) as other,
    ):
        output = net(x)
        other.submit((output * 5).sum().backward, retain_graph=True).result(SECONDS)
        assert not [key for key in capture if key.endswith("grad")]
        output.sum().backward()
    assert capture["inner/bias.grad"].tolist() == [3.0, 3.0]
    assert inner.bias.grad is not None and inner.bias.grad.tolist() == [18.0, 18.0]
    assert capture["./output.grad"].tolist() == [[1.0, 1.0]] * 3
    assert same_bits(capture["inner/input.0.grad"], x @ inner.weight.detach())


def test_gradients_that_autograd_computes_in_a_thread_of_its_own_are_recorded() -> None:
    """A backward pass within 60 others is handed to a pool of threads, as one on a GPU is."""
    net, threads = nn.Linear(2, 2), set()

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, depth: int) -> Tensor:
            ctx.depth = depth
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
            with torch.enable_grad():
                inner = torch.ones(2, 2, requires_grad=True)
                if ctx.depth:
                    Nested.apply(inner, ctx.depth - 1).sum().backward()
                else:
                    threads.add(threading.get_ident())
                    output.backward(torch.ones(2, 2))
            return grads[0], None

    with hookscope.record(net, grads=True) as capture:
        output = net(torch.ones(2, 2))
        Nested.apply(torch.ones(2, 2, requires_grad=True), 80).sum().backward()
    assert threads != {threading.get_ident()}
    assert capture["./output.grad"].tolist() == [[1.0, 1.0]] * 2
    assert capture["./bias.grad"].tolist() == [2.0, 2.0]


def test_modules_that_run_again_for_a_backward_pass_are_those_of_its_thread() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    net = Module(lambda self, x: checkpoint(self.inner, x, use_reentrant=False), inner=inner)
    inputs = torch.randn(2, 4), torch.randn(3, 4)
    together = threading.Barrier(2)

    def work(x: Tensor) -> hookscope.Capture:
        with hookscope.record(net, grads=True) as capture:
            output = net(x)
            together.wait(SECONDS)
            output.sum().backward()
        return capture

    for x, capture in zip(inputs, at_once(*[lambda x=x: work(x) for x in inputs]), strict=True):
        slopes = 1 - inner(x).detach() ** 2
        torch.testing.assert_close(capture["inner.0/output.grad"], slopes)
        torch.testing.assert_close(capture["inner.0/bias.grad"], slopes.sum(0))
        assert not [key for key in capture if ":2" in key]


def replicas(net: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    """Run a copy of the model for each input on a thread each, as ``nn.DataParallel`` does.

    It needs GPUs for that; the copies and the threads are the same here.
    """
    outputs: dict[int, Tensor] = {}

    def replica_of(module: nn.Module) -> nn.Module:
        replica = module._replicate_for_data_parallel()
        for name, child in module._modules.items():
            assert child is not None
            replica._modules[name] = replica_of(child)
        for name, parameter in module._parameters.items():
            setattr(replica, name, parameter)
        return replica

    def run(n: int, replica: nn.Module) -> None:
        outputs[n] = replica(inputs[n])

    threads = [threading.Thread(target=run, args=(n, replica_of(net))) for n in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outputs[n] for n in range(len(inputs))]


def parallel(module: nn.Module) -> Module:
    """Runs its one child as ``nn.DataParallel`` does."""
    return Module(lambda self, x: torch.cat(replicas(self.module, list(x.chunk(3)))), module=module)


def test_replicas_are_recorded_as_calls_of_the_model() -> None:
    inner = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    net, x = parallel(inner), torch.randn(6, 4)
    capture = recorded(net, x, grads=True, ops=True)
    calls = ["module.0/output", "module.0:2/output", "module.0:3/output"]
    found = sorted((capture[key] for key in calls), key=lambda value: value.tolist())
    expected = sorted(inner[0](x).detach().split(2), key=lambda value: value.tolist())
    assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True))
    assert "module:4/output" not in capture
    assert sum(key.endswith("output.grad") for key in capture) == 13


def test_replicas_that_another_thread_runs_are_not_recorded() -> None:
    net = parallel(nn.Linear(4, 2))
    mine, theirs = torch.randn(3, 4), torch.randn(6, 4)
    with ThreadPoolExecutor(1) as other, hookscope.record(net) as capture:
        output = other.submit(net, theirs).result(SECONDS)
        net(mine)
    calls = ["module/output", "module:2/output", "module:3/output"]
    assert sorted(capture) == ["./output", *calls]
    assert all(capture[key].shape == (1, 2) for key in capture if key != "./output")
    torch.testing.assert_close(output, net.module(theirs))


def test_a_trace_tells_calls_of_replicas_apart() -> None:
    net = parallel(nn.Sequential(nn.Linear(4, 2), nn.Tanh()))
    events = hookscope.trace(net, input=torch.randn(3, 4), loss="sum").events
    calls = Counter((e.module, e.depth) for e in events if e.direction == "forward")
    inner = {("module", 1): 3, ("module.0", 2): 3, ("module.1", 2): 3}
    assert calls == {(".", 0): 1, **inner}


def test_hooks_come_and_go_while_other_threads_are_in_the_model() -> None:
    """A hook that is taken off during a call is called without keyword arguments, or not at all."""
    net, x = Net().eval(), torch.randn(3, 4)
    expected = net(x).detach()
    stop = threading.Event()
    together = threading.Barrier(4)

    def call() -> int:
        together.wait(SECONDS)
        count = 0
        while not stop.is_set() or not count:
            assert same_bits(net(x).detach(), expected)
            count += 1
        return count

    def record() -> None:
        together.wait(SECONDS)
        try:
            for _ in range(40):
                with hookscope.record(net, grads=True, what=["output", "input"]) as capture:
                    net(x)
                assert len([key for key in capture if key.endswith("output")]) == 7
        finally:
            stop.set()

    at_once(call, call, call, record)
    assert hooks_left(net) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_process_forked_while_another_thread_adds_hooks_can_add_its_own() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with hooks._registering, hooks.EAGER._lock, threads._marked_threads._lock:
            held.set()
            done.wait(SECONDS)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(SECONDS)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        net = torch.compile(nn.Linear(2, 2))
        with hooks.HookSet(net) as added:
            added.before(net, lambda *_: None)
        os._exit(7)
    done.set()
    other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_compiled_code_stays_off_until_the_last_recording_ends() -> None:
    net = torch.compile(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), backend="eager")
    x = torch.ones(1, 2)
    entered, left = threading.Event(), threading.Event()

    def first() -> None:
        with hookscope.record(net):
            entered.set()
            assert second_open.wait(SECONDS)
        left.set()

    second_open = threading.Event()

    def second() -> hookscope.Capture:
        assert entered.wait(SECONDS)
        with hookscope.record(net) as capture:
            second_open.set()
            assert left.wait(SECONDS)
            net(x)
        return capture

    _, capture = at_once(first, second)
    assert list(capture) == ["0/output", "1/output", "./output"]
    from torch._dynamo.eval_frame import _stance

    assert _stance.stance == "default"


def test_a_run_within_a_run_goes_on() -> None:
    inner = nn.Linear(2, 2)
    net = Module(
        lambda self, x: self.inner(x) + hookscope.capture(inner, input=x).output, inner=inner
    )
    shot = hookscope.capture(net, input=torch.ones(1, 2))
    assert same_bits(shot.output, (inner(torch.ones(1, 2)) * 2).detach())


def test_a_run_in_a_thread_that_the_model_of_a_run_waits_for_is_refused() -> None:
    inner, errors = nn.Linear(2, 2), []

    def capture() -> None:
        try:
            hookscope.capture(inner, input=torch.ones(1, 2))
        except RequestError as error:
            errors.append(error)

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        thread = threading.Thread(target=capture, name="inner")
        thread.start()
        thread.join(SECONDS)
        assert not thread.is_alive()
        return x

    hookscope.capture(Module(forward), input=torch.ones(1, 2))
    [error] = errors
    assert "'inner'" in error.message and error.hint


def test_a_thread_whose_run_fails_lets_the_next_one_go_on() -> None:
    net, together = Net(), threading.Barrier(2)

    def failing() -> None:
        together.wait(SECONDS)
        for _ in range(8):
            with pytest.raises(hookscope.HookscopeError):
                hookscope.capture(Fails(ValueError("no")), input=torch.ones(1, 4))

    def running() -> None:
        together.wait(SECONDS)
        for _ in range(8):
            hookscope.capture(net, input=torch.ones(2, 4))

    at_once(failing, running)


def test_a_recording_in_a_thread_of_the_model_leaves_the_thread_with_the_outer_one() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        def work() -> None:
            with hookscope.record(nn.Linear(2, 2)):
                pass
            found.append(self.inner(x))

        found: list[Tensor] = []
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return found[0]

    with hookscope.record(net := Module(forward, inner=nn.Linear(2, 2))) as capture:
        net(torch.ones(1, 2))
    assert "inner/output" in capture


IN_A_THREAD = """
import threading, torch, hookscope

def run():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    with hookscope.record(net, grads=True):
        net(torch.ones(1, 2)).sum().backward()
    hookscope.capture(net, input=torch.ones(1, 2))
    hookscope.diff(net, net, input=torch.ones(1, 2))
    assert not torch._C._is_key_in_tls("hookscope")

thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


@pytest.mark.slow
def test_a_process_whose_last_thread_used_hookscope_ends_normally() -> None:
    assert run_python("-c", IN_A_THREAD, status=0).stderr == ""


def test_thread_start_is_as_before_once_no_recording_is_open() -> None:
    plain = threading.Thread.start
    net = nn.Linear(1, 1)
    with hookscope.record(net), hookscope.record(net):
        pass
    assert threading.Thread.start is plain


def test_a_model_is_put_back_to_what_it_was_before_the_first_of_two_threads() -> None:
    net = Net().train()
    inside, ended = threading.Event(), threading.Event()

    def first() -> None:
        with preserve_model_state(net, train=False, seed=0):
            inside.set()
            assert not ended.wait(0)

    def second() -> bool:
        assert inside.wait(SECONDS)
        with preserve_model_state(net, train=False, seed=0):
            ended.set()
        return net.training

    _, mode = at_once(first, second)
    assert mode and net.training


@pytest.mark.parametrize("verb", ["capture", "grads", "step"])
@pytest.mark.parametrize("training", [True, False])
def test_a_call_by_another_thread_of_a_model_that_is_changed_meanwhile_is_an_error(
    verb: str, training: bool
) -> None:
    """In another mode, or with parameters that a step changes, it may return something else."""
    net, x = nn.Sequential(nn.Linear(4, 2)).train(training), torch.randn(3, 4)
    kinds = {"capture": "forward", "grads": "tensor", "step": "step_pre"}
    with ThreadPoolExecutor(1) as other:
        other.submit(int).result(SECONDS)  # its thread is there before the run

        def call(*arguments: Any) -> None:
            other.submit(net, x).result(SECONDS)

        options = {"input": x, "hooks": call, "hook_kind": kinds[verb]}
        options |= {} if verb == "capture" else {"loss": "sum"}
        if training or verb == "step":
            with pytest.raises(hookscope.HookscopeError, match="thread"):
                getattr(hookscope, verb)(net, **options)
        else:
            assert getattr(hookscope, verb)(net, **options).keys()
    assert net.training is training and hooks_left(net) == 0
