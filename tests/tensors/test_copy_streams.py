"""Copies on streams of their own come in an order in which no value is read too soon.

There is no CUDA device in the usual suite, so the streams are stand-ins that note what they are
given; ``make test-gpu`` compares values on a real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from hookscope.tensors.copy_streams import CopyStreams

DEVICE = torch.device("cuda", 0)


class Stream:
    """A stream by its name."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> str:
        return f"event of {self.name}"

    def synchronize(self) -> None:
        self.log.append(f"the host waits for {self.name}")


class DeviceTensor:
    """A tensor that notes on which stream it is copied and used."""

    device = DEVICE

    def __init__(self, log: list[str], now: list[str]) -> None:
        self.log, self.now = log, now

    def is_pinned(self) -> bool:
        return True

    def to(self, device: Any, dtype: Any, *, non_blocking: bool) -> DeviceTensor:
        assert non_blocking
        self.log.append(f"copied on {self.now[-1]}")
        return self

    copy_ = to

    def record_stream(self, stream: Stream) -> None:
        self.log.append(f"kept for {stream.name}")


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], DeviceTensor]:
    """What happens, in order, and a tensor."""
    log: list[str] = []
    now = ["compute"]
    tensor = DeviceTensor(log, now)

    class Host:
        def copy_(self, source: DeviceTensor, non_blocking: bool) -> None:
            source.copy_(None, None, non_blocking=non_blocking)

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        now.append(stream.name)
        yield
        now.pop()

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("copies", log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("compute", log))
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch, "empty_like", lambda *_, **options: Host())
    return log, tensor


def test_a_copy_to_the_host_begins_when_the_value_is_there_and_keeps_its_memory(noted) -> None:
    log, tensor = noted
    streams = CopyStreams()
    streams.to_host(tensor)
    assert log == ["copies waits for compute", "copied on copies", "kept for copies"]
    assert streams.events() == ["event of copies"]
    streams.wait()
    assert log[-1] == "the host waits for copies"


def test_the_device_computes_with_a_copy_when_it_is_there(noted) -> None:
    log, tensor = noted
    CopyStreams().to_device(tensor, DEVICE, None)
    assert log == ["copied on copies", "compute waits for copies", "kept for compute"]


def test_what_is_not_in_pinned_memory_is_moved_as_usual() -> None:
    tensor = torch.randn(3, dtype=torch.float64)
    moved = CopyStreams().to_device(tensor, torch.device("cpu"), torch.float32)
    assert torch.equal(moved, tensor.to(torch.float32))
