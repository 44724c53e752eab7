"""The shapes and FLOPs of ``tree --shapes`` where tensors are nested or calls differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import ForwardError
from hookscope.results.module_tree import LayerRun
from tests.views.text.test_tree import plain
from tests.zoo import Module

EMBEDDED, HIDDEN, HEADS = 16, 32, 4
MASK = torch.tensor([[False] * 4, [False, False, True, True]])


def runs(net: nn.Module, *shape: int) -> dict[str, LayerRun]:
    tree = hookscope.tree(net, shapes=True, shape=shape)
    return {node.name: node.run for node in tree.modules if node.run is not None}


def encoder() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(EMBEDDED, HEADS, HIDDEN, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval()


def nested(layout: Any) -> Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        rows = torch.nested.nested_tensor([x[0, :2], x[1]], layout=layout)
        out: Tensor = self.lin(rows).to_padded_tensor(0.0)
        return out

    return Module(forward, lin=nn.Linear(EMBEDDED, 3)).eval()


def test_an_encoder_with_a_padding_mask_has_the_shapes_and_flops_of_one_without() -> None:
    masked = Module(lambda self, x: self.enc(x, src_key_padding_mask=MASK), enc=encoder()).eval()
    whole = Module(lambda self, x: self.enc(x), enc=encoder()).eval()
    found = runs(masked, 2, 4, EMBEDDED)
    assert found == runs(whole, 2, 4, EMBEDDED)
    tokens = 2 * 4
    projections = 2 * tokens * EMBEDDED * 4 * EMBEDDED
    attention = 2 * 2 * tokens * 4 * EMBEDDED
    feed_forward = 2 * 2 * tokens * EMBEDDED * HIDDEN
    assert found["."].flops == 2 * (projections + attention + feed_forward)
    assert found["enc.layers.1.linear1"].outputs == ("2x4x32",)
    assert torch.backends.mha.get_fastpath_enabled()  # as before


def test_attention_of_a_real_run_counts_as_on_the_meta_device() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        if self.reads_values:
            assert x.max().item() < 100  # which the meta device cannot
        return nn.functional.scaled_dot_product_attention(x[:, :, :3], x, x)

    for reads_values in (False, True):
        net = Module(forward)
        net.reads_values = reads_values
        assert runs(net, 2, 4, 5, 8)["."] == LayerRun(1, ("2x4x3x8",), 2 * 2 * 4 * 3 * 5 * (8 + 8))


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_have_the_shapes_of_their_parts(layout: Any) -> None:
    found = runs(nested(layout), 2, 4, EMBEDDED)
    assert found["lin"] == LayerRun(1, ("2x3", "4x3"), None)  # PyTorch cannot count these
    assert found["."] == LayerRun(1, ("2x4x3",), None)


def test_a_model_that_fails_on_nested_tensors_is_explained() -> None:
    net = nested(torch.strided)
    net.lin = nn.Linear(EMBEDDED + 1, 3)
    with pytest.raises(ForwardError, match="in layer lin") as caught:
        runs(net, 2, 4, EMBEDDED)
    assert caught.value.failure is not None
    variables = [(v.name, v.shape) for v in caught.value.failure.variables]
    assert variables == [("rows.0", (2, EMBEDDED)), ("rows.1", (4, EMBEDDED))]


def test_shapes_of_later_calls_that_differ_are_noted() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        for _ in range(4):
            x = self.pool(x)
        return self.same(self.same(x))

    net = Module(forward, pool=nn.MaxPool2d(2), same=nn.ReLU())
    found = runs(net, 1, 3, 32, 32)
    assert found["pool"].outputs == ("1x3x16x16",)
    assert found["pool"].other_outputs == ("1x3x8x8", "1x3x4x4", "1x3x2x2")
    assert found["same"] == LayerRun(2, ("1x3x2x2",), 0)
    tree = hookscope.tree(net, shapes=True, shape=(1, 3, 32, 32))
    lines = plain(tree, None)
    assert "later calls: 1x3x8x8, 1x3x4x4 and 1 other shape" in lines[2]
    assert "later calls" not in lines[1] + lines[3]


def test_a_shape_asks_for_shapes() -> None:
    net = nn.Linear(4, 2)
    [with_shape, with_shapes, without] = [
        hookscope.tree(net, **options).modules[0].run
        for options in ({"shape": (3, 4)}, {"shape": (3, 4), "shapes": True}, {})
    ]
    assert with_shape == with_shapes is not None
    assert without is None
