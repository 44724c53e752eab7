"""A model for exports to ONNX, and the faults that the tests plant in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn


class Share(nn.Module):
    """Divides by three."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 3


class Net(nn.Module):
    """A module for each fault: a padding, an epsilon, a division, a square weight.

    ``last`` is a module whose last convolution is followed by a norm that is not in it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.act = nn.ReLU()
        self.norm = nn.BatchNorm2d(4)
        self.body = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4), nn.Dropout())
        self.last = nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 1))
        self.outside = nn.BatchNorm2d(4)
        self.share = Share()
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.act(self.conv(x)))
        x = self.share(self.outside(self.last(self.body(x) * 10)))
        return self.head(x.mean((2, 3)))


def net(seed: int = 5, epsilon: float = 1e-5) -> Net:
    """The net in eval mode; ``epsilon`` is that of the batch norm after the second convolution."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = Net().eval()
        for module in made.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_mean, -0.5, 0.5)
                nn.init.uniform_(module.running_var, 0.5, 2)
    made.body[1].eps = epsilon
    return made


def image() -> Tensor:
    return torch.randn(1, 1, 6, 6, generator=torch.Generator().manual_seed(1))


def set_attribute(op: str, attribute: str, value: Any) -> Callable[[onnx.ModelProto], None]:
    """A fault: the first node of an operator has another attribute."""

    def plant(proto: onnx.ModelProto) -> None:
        node = next(node for node in proto.graph.node if node.op_type == op)
        kept = [entry for entry in node.attribute if entry.name != attribute]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(attribute, value)])

    return plant


def transpose_weight(proto: onnx.ModelProto) -> None:
    """A fault: the weight of the last layer is transposed."""
    [last] = [node for node in proto.graph.node if node.op_type in ("Gemm", "MatMul")]
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == last.input[1])
    array = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array.T), tensor.name))


def divide_integers(proto: onnx.ModelProto) -> None:
    """A fault: the quotient has no fraction, as that of integers."""
    at, node = next((n, x) for n, x in enumerate(proto.graph.node) if x.op_type == "Div")
    result, node.output[0] = node.output[0], "quotient"
    scopes = list(node.metadata_props)
    casts = [
        helper.make_node("Cast", ["quotient"], ["whole"], f"{node.name}_1", to=TensorProto.INT64),
        helper.make_node("Cast", ["whole"], [result], f"{node.name}_2", to=TensorProto.FLOAT),
    ]
    for offset, cast in enumerate(casts, 1):
        cast.metadata_props.extend(scopes)
        proto.graph.node.insert(at + offset, cast)
