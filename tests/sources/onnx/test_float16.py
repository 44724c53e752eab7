"""Values of float16 graphs, most of whose operators onnxruntime computes in float32.

It rounds to float16 only where a value leaves a region of such operators. A recorded value must not
move the borders of these regions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import helper
from torch import Tensor, nn

import hookscope
from hookscope.errors import CheckFailed
from hookscope.sources.onnx import value_shapes
from tests.sources.onnx.conftest import built, export, images
from tests.sources.onnx.handmade import FLOAT, model, saved, session_values


class Block(nn.Module):
    """Operators of regions of several lengths, with a norm that computes in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU()
        self.down, self.mix = nn.Linear(64, 16), nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(self.act(self.up(self.norm(x))))
        x = x + self.mix(x, x, x, need_weights=False)[0]
        return torch.softmax(x, -1) * torch.tanh(x) + torch.exp(-(x.float() ** 2)).half()


def blocks(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(Block(), Block()).half().eval()
        x = torch.randn(2, 4, 16).half()
    path = export(net, (x,), folder / "blocks.onnx")
    return path, {onnxruntime.InferenceSession(path).get_inputs()[0].name: x}


def convolutions(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    left, right = (image.half() for image in images())
    path = export(built().half(), (left, right), folder / "convolutions.onnx", dynamo=False)
    names = [value.name for value in onnxruntime.InferenceSession(path).get_inputs()]
    return path, dict(zip(names, (left, right), strict=True))


@pytest.fixture(scope="module", params=[blocks, convolutions])
def half(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Tensor]]:
    """A float16 file and its inputs."""
    found: tuple[Path, dict[str, Tensor]] = request.param(tmp_path_factory.mktemp("half"))
    return found


def outputs_alone(path: Path, feeds: dict[str, Tensor], level: str) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(path, options)
    outputs: list[Any] = session.run(None, {name: x.numpy() for name, x in feeds.items()})
    return outputs


def test_recording_every_value_leaves_the_output_as_a_bare_session_computes_it(
    half: tuple[Path, dict[str, Tensor]],
) -> None:
    path, feeds = half
    shot = hookscope.capture(str(path), input=feeds, verify=True)
    got = shot.output.values() if isinstance(shot.output, dict) else [shot.output]
    expected = outputs_alone(path, feeds, "ORT_DISABLE_ALL")
    assert all(map(np.array_equal, (value.numpy() for value in got), expected))
    # The fixture shows the fault: outputs of the graph in place of the recorded values change it.
    names = [value.name for value in onnxruntime.InferenceSession(path).get_outputs()]
    with_outputs = session_values(
        path,
        {name: x.numpy() for name, x in feeds.items()},
        [*names, *values_within(path)],
    )
    assert not all(np.array_equal(with_outputs[n], x) for n, x in zip(names, expected, strict=True))


def values_within(path: Path) -> list[str]:
    """The results of all nodes."""
    model = hookscope.load_model(str(path)).module
    return list(model._onnx_program.graph.producers)


def test_a_value_has_the_same_bits_whatever_else_is_recorded(
    half: tuple[Path, dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, feeds = half
    every = hookscope.capture(str(path), input=feeds)
    halves = [key for key, value in every.items() if value.dtype == torch.float16]
    assert len(halves) > 10
    for key in halves[::4]:
        module = key.partition("/")[0].partition(":")[0]
        alone = hookscope.capture(str(path), input=feeds, layers=[module])
        assert torch.equal(alone[key], every[key]), key
    monkeypatch.setattr(value_shapes, "WINDOW", 2000)
    windows = hookscope.capture(str(path), input=feeds)
    assert all(torch.equal(windows[key], every[key]) for key in every)


def test_verify_names_the_optimization_that_depends_on_what_is_recorded(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {"w": rng.standard_normal((4, 3, 3, 3), np.float32)}
    tensors |= {name: np.abs(rng.standard_normal(4, np.float32)) for name in ("s", "b", "m", "v")}
    proto = model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
            helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["y"], name="bn"),
        ],
        [("x", FLOAT, [1, 3, 8, 8])],
        [("y", FLOAT, [1, 4, 6, 6])],
        tensors,
    )
    path = saved(proto, tmp_path / "net.onnx")
    hookscope.capture(path, verify=True)
    with pytest.raises(CheckFailed) as caught:
        hookscope.capture(path, verify=True, onnx_optimize="basic")
    assert 'With onnx_optimize="basic", onnxruntime joins nodes' in caught.value.hint
    assert "not deterministic" not in caught.value.hint
