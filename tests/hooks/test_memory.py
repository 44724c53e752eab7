"""What hundreds of recordings leave behind in a model and in the process: nothing."""

from __future__ import annotations

import gc
import logging
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from tests.zoo import Module

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(3))
TIMES = 400


def network() -> Module:
    parts = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 2), "act": nn.ReLU(inplace=True)}
    return Module(lambda self, x: self.b(self.act(self.a(x))), **parts)


def record(net: nn.Module) -> None:
    with hookscope.record(net, what=["input", "output"], grads=True, ops=True):
        net(X).sum().backward()
    net.zero_grad()


def record_a_failure(net: nn.Module) -> None:
    with pytest.raises(RuntimeError), hookscope.record(net, grads=True, ops=True):
        net(torch.ones(2, 5))


def record_in_a_thread(net: nn.Module) -> None:
    thread = threading.Thread(target=record, args=(net,))
    thread.start()
    thread.join()


def nothing(*arguments: Any) -> None:
    pass


USES: dict[str, tuple[int, Callable[[nn.Module], Any]]] = {
    "record": (TIMES, record),
    "a failure": (TIMES, record_a_failure),
    "a thread": (TIMES, record_in_a_thread),
    "capture": (50, lambda net: hookscope.capture(net, input=X, ops=True)),
    "an edit": (50, lambda net: hookscope.capture(net, input=X, edits="a=zero", hooks=nothing)),
    "grads": (50, lambda net: hookscope.grads(net, input=X, loss="sum", grad_edits="a=scale:2")),
    "step": (50, lambda net: hookscope.step(net, input=X, loss="sum")),
    "trace": (50, lambda net: hookscope.trace(net, input=X, loss="sum")),
    "check": (12, lambda net: hookscope.check(net, input=X, loss="sum")),
}


def sizes(net: nn.Module) -> list[Any]:
    """How much each module and each of its tensors holds."""
    found: list[Any] = []
    for name, module in net.named_modules():
        for key, value in vars(module).items():
            found.append((name, key, len(value) if isinstance(value, dict) else None))
            found.append(sorted(vars(value)) if hasattr(value, "__dict__") else None)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            found.append((len(tensor._backward_hooks or ()), sorted(vars(tensor))))
    return found


@pytest.mark.sampled(8)
@pytest.mark.parametrize("use", USES)
def test_recordings_leave_nothing_in_the_model_and_in_the_process(
    use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("hookscope"), "propagate", False)  # pytest keeps all logs
    net = network()
    times, run = USES[use]

    def look(number: int) -> tuple[Counter[str], str]:
        for _ in range(number):
            run(net)
        gc.collect()
        objects = Counter(type(one).__qualname__ for one in gc.get_objects())
        return objects, repr((sizes(net), tensors(), threading.active_count()))

    look(3)  # what is made once, by torch or by looking, is there after these
    look(3)
    before, after = look(3), look(times)
    assert after[1] == before[1]
    more = after[0] - before[0]
    assert more.total() < times / 2, more.most_common(5)  # less than one for each recording
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def tensors() -> int:
    return sum(type(one) in (Tensor, nn.Parameter) for one in gc.get_objects())


@pytest.mark.parametrize("use", ["record", "a failure", "capture", "an edit"])
def test_a_recording_is_freed_without_the_collector_of_garbage(use: str) -> None:
    """Nothing refers to itself: tensors would stay until the collector came by, on a GPU too."""
    net, (_, run) = network(), USES[use]
    run(net)
    gc.collect()
    gc.disable()
    try:
        before = tensors()
        for _ in range(20):
            run(net)
        assert tensors() - before < 10
    finally:
        gc.enable()
