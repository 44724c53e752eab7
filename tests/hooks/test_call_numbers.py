"""Whatever watches a run gives each call of a module the same number.

The models are random nestings of modules that are called repeatedly, by themselves, in a
checkpoint, as replicas in threads, or fail. They count their own calls, without any hook.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookscope
from hookscope.errors import EditError
from hookscope.execution.failures.frames import CallObserver
from hookscope.hooks.capture import Capture
from hookscope.hooks.early_stop import EarlyStop
from hookscope.hooks.edits.bound_edit import bind_edits
from hookscope.hooks.edits.editor import Editor
from hookscope.hooks.interventions import (
    BoundInterventions,
    backward_interventions,
    forward_interventions,
)
from hookscope.hooks.layers import layers_of, select
from hookscope.hooks.module_call import CallSubscriber, ModuleCall
from hookscope.hooks.op_recorder import record_ops
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.registry import CallRegistry
from hookscope.hooks.tracer import TraceClock, Tracer
from hookscope.hooks.user_hooks import bind_user_hooks, load_user_hooks
from hookscope.model_analysis.cams.layer_scan import LayerScan
from hookscope.results.records import key_of
from hookscope.specs.edit import parse_edits
from hookscope.specs.tensor_key import OP, OUTPUT
from tests.oracle.by_hand import same_bits
from tests.zoo import Module

pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")

CallKey = tuple[str, int]  # a module's name and the number of its call


class Interrupt(BaseException):
    """As KeyboardInterrupt: PyTorch calls no hook after it."""


class Recomputing(threading.local):
    on = False


@dataclass
class Log:
    """What the modules of one run tell of themselves."""

    begun: list[CallKey] = field(default_factory=list)
    returned: list[CallKey] = field(default_factory=list)
    recomputed: set[str] = field(default_factory=set)
    inputs: dict[CallKey, Tensor] = field(default_factory=dict)
    sines: dict[CallKey, Tensor] = field(default_factory=dict)
    outputs: dict[CallKey, Tensor] = field(default_factory=dict)
    gradients: dict[CallKey, Tensor] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    here: Recomputing = field(default_factory=Recomputing)


class Node(nn.Module):
    """Calls its children in the ways that ``steps`` names: (child, way) each."""

    def __init__(self, children: list[Node], steps: list[tuple[int, str]]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(children)
        self.steps = steps
        self.name = ""
        self.log = Log()

    def forward(self, x: Tensor, depth: int = 0, error: BaseException | None = None) -> Tensor:
        log, key = self.log, None
        if log.here.on:
            log.recomputed.add(self.name)
        else:
            log.counts[self.name] += 1
            key = (self.name, log.counts[self.name])
            log.begun.append(key)
        sine = x.sin()
        if key is not None:
            log.inputs[key], log.sines[key] = x.detach().clone(), sine.detach().clone()
        y = sine + len(log.begun) if key else sine
        if depth:
            y = self(y, depth - 1)
        for index, way in self.steps:
            y = self.run_part(self.parts[index], way, y)
        if error is not None:
            raise error
        z = y * 1.5
        if key is not None:
            log.returned.append(key)
            log.outputs[key] = z.detach().clone()
            if z.requires_grad:
                z.register_hook(partial(log.gradients.__setitem__, key))
        return z

    def run_part(self, part: nn.Module, way: str, x: Tensor) -> Tensor:
        if way == "plain":
            return part(x)
        if way == "recursive":
            return part(x, depth=2)
        if way == "replicas":
            return in_threads(part, x)
        if way in ("reentrant", "checkpoint"):
            return checkpoint(self.twice(part), x, use_reentrant=way == "reentrant")
        error = ValueError("failed") if way == "failing" else Interrupt()
        try:
            return part(x, error=error)
        except (ValueError, Interrupt):
            return x

    def twice(self, part: nn.Module) -> Any:
        """What checkpointing is to run: the second time is for the backward pass."""
        runs: list[None] = []

        def run(x: Tensor) -> Tensor:
            before, self.log.here.on = self.log.here.on, self.log.here.on or bool(runs)
            runs.append(None)
            try:
                return part(x)
            finally:
                self.log.here.on = before

        return run


def in_threads(module: nn.Module, x: Tensor) -> Tensor:
    """Run replicas as ``nn.DataParallel`` makes them, in a thread each, one after the other."""

    def replica_of(original: nn.Module) -> nn.Module:
        replica = original._replicate_for_data_parallel()
        for name, child in original._modules.items():
            replica._modules[name] = replica_of(child)  # type: ignore[arg-type]
        return replica

    outputs: list[Tensor] = []
    for _ in range(2):
        replica = replica_of(module)
        thread = threading.Thread(target=lambda r=replica: outputs.append(r(x)))
        thread.start()
        thread.join()
    return outputs[0] + outputs[1]


WAYS = ("plain", "recursive", "failing", "interrupted", "replicas", "checkpoint", "reentrant")


def nodes(depth: int, ways: tuple[str, ...]) -> st.SearchStrategy[Node]:
    """Nestings of modules; a child may be called several times and in several ways.

    A thread that is started in a second run for a backward pass does not know that it is one, so
    there are no replicas in checkpoints.
    """
    if depth == 0:
        return st.builds(Node, st.just([]), st.just([]))

    def with_steps(children: list[Node]) -> st.SearchStrategy[Node]:
        step = st.tuples(st.integers(0, len(children) - 1), st.sampled_from(ways))
        return st.builds(Node, st.just(children), st.lists(step, max_size=3))

    return st.lists(nodes(depth - 1, ways), min_size=1, max_size=2).flatmap(with_steps)


IN_ONE_THREAD = nodes(3, tuple(way for way in WAYS if way != "replicas"))
MODELS = IN_ONE_THREAD | nodes(3, WAYS[:5])


def fresh(net: Node) -> Log:
    """Give the modules of ``net`` their names and an empty log."""
    log = Log()
    for layer in layers_of(net):
        if isinstance(layer.module, Node):
            layer.module.name, layer.module.log = layer.name, log
    return log


def run(net: Node) -> Log:
    log = fresh(net)
    net(torch.ones(1, 2, requires_grad=True)).sum().backward()
    return log


def seen(module: nn.Module, input: Any, output: Tensor) -> None:
    hookscope.emit("seen", output)


def given_input(module: nn.Module, input: Any) -> None:
    hookscope.emit("given", input[0])


def arrived(grad: Tensor) -> None:
    hookscope.emit("arrived", grad)


def watch(net: Node, edited: list[str]) -> tuple[Log, Capture, Tracer, Editor]:
    """Run ``net`` with recorder, editor, user hooks, tracer and operators, forward and back."""
    layers = select(net, ["!*parts"])
    kinds = ["forward", "forward_pre", "tensor"]
    found = load_user_hooks([seen, given_input, arrived], kinds, {}, verb="grads")
    edits = bind_edits(net, parse_edits([f"{name}=scale:1" for name in edited]))
    hooks = bind_user_hooks(found, net, layers, "NET")
    plan = BoundInterventions(values=edits, hooks=hooks)
    recorder = Recorder(net, layers, [OUTPUT, OP])
    tracer = Tracer(net, layers, TraceClock(torch.device("cpu")), backward=False)
    with (
        tracer,
        forward_interventions(plan, net, 0, recorder, keep=True) as editor,
        recorder as capture,
        record_ops(recorder),
        backward_interventions(plan, net, 0, recorder),
    ):
        log = run(net)
    return log, capture, tracer, editor


def tensors(capture: Capture, what: str) -> dict[CallKey, Tensor]:
    return {(x.module, x.call): capture[x.key] for x in capture.records if x.what == what}


def assert_same(found: dict[CallKey, Tensor], expected: dict[CallKey, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(same_bits(found[key], expected[key]) for key in expected)


@settings(max_examples=40)
@given(net=MODELS)
def test_whatever_watches_a_run_numbers_calls_alike(net: Node) -> None:
    bare = run(net)
    # Checkpointing does not tell which of several calls it runs again, and edits depend on it.
    edited = [name for name in bare.counts if name not in bare.recomputed]
    log, capture, tracer, editor = watch(net, edited)
    assert log.begun == bare.begun
    events = tracer.trace({}, None).events
    assert [(event.module, event.call) for event in events] == log.begun
    assert_same(tensors(capture, "output"), log.outputs)
    assert_same(tensors(capture, "sin"), log.sines)
    assert_same(tensors(capture, "seen"), log.outputs)
    assert_same(tensors(capture, "given"), log.inputs)
    assert_same(tensors(capture, "arrived"), log.gradients)
    unedited = {key: value for key, value in log.outputs.items() if key[0] in edited}
    assert_same(tensors(capture, "output.unedited"), unedited)
    changed = {key for keys in editor.changed.values() for key in keys}
    assert changed == {key_of(name, call, OUTPUT) for name, call in unedited}
    counts = {layer.module: layer.calls for layer in capture.coverage.executed}
    assert counts == dict(log.counts)


@settings(max_examples=20)
@given(net=IN_ONE_THREAD, pick=st.integers(0, 100))
def test_runs_for_an_analysis_number_calls_alike(net: Node, pick: int) -> None:
    with LayerScan(net, 1, (1, 1), clones=False) as scan:
        log = run(net)
    assert [(x.layer.name, x.call) for x in scan.candidates] == log.returned
    with CallObserver(net) as observer:
        log = fresh(net)
        net(torch.ones(1, 2))
    assert [(x.layer, x.call) for x in observer.ran] == log.returned
    name, number = log.returned[pick % len(log.returned)]
    log = fresh(net)
    last = next(layer for layer in layers_of(net) if layer.name == name)
    with EarlyStop(net, {last: number}).passing():
        net(torch.ones(1, 2))
    assert log.returned[-1] == (name, number)


class Events(CallSubscriber):
    """Notes what a registry tells of calls."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int, bool]] = []

    def before_call(self, call: ModuleCall) -> None:
        self.seen.append(("before", call.layer.name, call.number, call.recomputed))

    def after_call(self, call: ModuleCall, state: None) -> None:
        self.seen.append(("after", call.layer.name, call.number, call.failed))

    def abandon_call(self, call: ModuleCall, state: None) -> None:
        self.seen.append(("abandoned", call.layer.name, call.number, call.failed))


def test_a_second_run_for_a_checkpoint_has_no_number_and_is_known_as_one() -> None:
    part = nn.Linear(2, 2)
    calls, events = CallRegistry(part), Events()
    with calls.subscribed(events, layers_of(part)):
        checkpoint(part, torch.ones(1, 2), use_reentrant=False).sum().backward()
        part(torch.ones(1, 2))
    assert [x for x in events.seen if x[0] == "before"] == [
        ("before", ".", 1, False),
        ("before", ".", 0, True),
        ("before", ".", 2, False),
    ]
    assert calls.counts == {part: 2}


@pytest.mark.parametrize("own_hook", [False, True])
def test_a_call_that_its_own_hook_or_an_interrupt_ends_does_not_end_the_one_around_it(
    own_hook: bool,
) -> None:
    """The module calls itself; the inner call ends before it runs, and the outer one continues."""

    def forward(self: Module, x: Tensor, depth: int = 1) -> Tensor:
        if depth == 0:
            raise Interrupt
        with suppress(ValueError, Interrupt):
            self(x, depth=0)
        return x * 2

    net = Module(forward)

    def fail(module: nn.Module, args: Any, kwargs: Any) -> None:
        if own_hook and kwargs.get("depth") == 0:
            raise ValueError

    net.register_forward_pre_hook(fail, with_kwargs=True)
    calls, events = CallRegistry(net), Events()
    with calls.subscribed(events, layers_of(net)):
        net(torch.ones(1))
    inner = [] if own_hook else [("before", ".", 2, False), ("abandoned", ".", 2, False)]
    assert sorted(events.seen) == sorted(
        [("before", ".", 1, False), *inner, ("after", ".", 1, False)]
    )


def test_a_subscriber_that_raises_ends_the_call_as_a_failure_for_those_after_it() -> None:
    class Raising(CallSubscriber):
        def after_call(self, call: ModuleCall, state: None) -> None:
            raise EditError("no", "")

    net, events = nn.Linear(2, 2), Events()
    calls = CallRegistry(net)
    raising = calls.subscribed(Raising(), layers_of(net))
    with raising, calls.subscribed(events, layers_of(net)), pytest.raises(EditError):
        net(torch.ones(1, 2))
    assert events.seen == [("before", ".", 1, False), ("after", ".", 1, True)]
    assert not net._forward_hooks and not net._forward_pre_hooks


def test_calls_in_a_pause_have_no_number() -> None:
    net, events = nn.Linear(2, 2), Events()
    calls = CallRegistry(net)
    with calls.subscribed(events, layers_of(net)):
        net(torch.ones(1, 2))
        for block in (calls.paused(), nullcontext()):
            with block:
                net(torch.ones(1, 2))
    assert [number for what, _, number, _ in events.seen if what == "before"] == [1, 0, 2]


def test_a_subscriber_may_begin_before_the_models_own_hooks() -> None:
    class Named(CallSubscriber):
        def __init__(self, name: str) -> None:
            self.name = name

        def before_call(self, call: ModuleCall) -> None:
            order.append(self.name)

    net, order = nn.Linear(2, 2), []
    net.register_forward_pre_hook(lambda *_: order.append("own"))
    calls, first, later = CallRegistry(net), Named("first"), Named("later")
    with calls.subscribed(later, layers_of(net)):
        calls.subscribe(first, layers_of(net), first=True)
        net(torch.ones(1, 2))
        calls.unsubscribe(first)
    assert order == ["first", "own", "later"]
    assert calls.counts == {net: 1}
