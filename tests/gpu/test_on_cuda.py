"""What only cuda has: the peak of its memory, and graphs of kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hookscope
from tests.gpu.test_on_a_device import images, resnet
from tests.oracle.by_hand import outputs


def test_recording_takes_no_more_memory_than_hooks_by_hand(device: str) -> None:
    model, x = resnet(device), images(device, 16)

    def peak(act: Any) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        act()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    def by_hookscope() -> None:
        with hookscope.record(model), torch.no_grad():
            model(x)

    def by_hand() -> None:
        with torch.no_grad():
            outputs(model, x)

    by_hand()
    assert peak(by_hookscope) < 1.05 * peak(by_hand)


def test_a_replayed_graph_calls_no_hooks_and_this_is_said(
    device: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = resnet(device), images(device)
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            model(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(x)
        with hookscope.record(model) as capture:
            graph.replay()
    assert list(capture) == [] and "nothing was recorded" in caplog.text


def test_the_predicted_peak_is_that_of_the_device(device: str) -> None:
    model, x = resnet(device).train(), images(device, 32)
    optimizer = torch.optim.AdamW(model.parameters())
    target = torch.zeros(32, dtype=torch.int64, device=device)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()

    step()
    torch.cuda.reset_peak_memory_stats()
    step()
    measured = torch.cuda.max_memory_allocated()
    predicted = hookscope.memory(resnet("cpu"), shape="32x3x96x96", optimizer="adamw").peak
    assert abs(predicted - measured) < 0.1 * measured
