"""An edit of weights is a run with weights rounded by hand, and leaves the model as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import EditError
from hookscope.hooks.edits.edited_weights import round_weight
from tests.digits_forms import FORMS
from tests.hooks.edits.by_hand import rounded_weight
from tests.oracle.by_hand import outputs, same_bits

MODELS = FORMS
X = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(5))


class Net(nn.Module):
    """A chain with a block of two layers and a weight that two modules share."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
        self.head = nn.Linear(4, 4)
        self.head.weight = self.block[0].weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x))


def by_hand(net: nn.Module, names: dict[str, int], x: Tensor) -> dict[str, Tensor]:
    """All outputs of a model after rounding the weights of some layers, by name and bits."""
    for name, bits in names.items():
        layer = net.get_submodule(name)
        layer.weight = nn.Parameter(rounded_weight(layer.weight, bits))
    return outputs(net, x)


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_runs_with_weights_rounded_by_hand(repo: Path, name: str) -> None:
    word = str(repo / "sample_models" / name)
    shot = hookscope.capture(word, input=X, edits="conv*=quantize-weights:4", verify=True)
    net = hookscope.load_model(str(repo / "sample_models/digits.py:trained")).module.eval()
    wanted = by_hand(net, {"conv1": 4, "conv2": 4}, X)
    assert set(shot) == set(wanted)
    assert all(same_bits(shot[key], wanted[key]) for key in wanted)
    [edit] = shot.metadata["edits"]
    assert edit["changed"] == ["conv1/weight", "conv2/weight"]
    assert shot.metadata["effect"]["output"][0]["largest"] > 0


def test_a_block_has_all_its_weights_rounded_once_and_a_tied_one_only_there() -> None:
    net, x = Net().eval(), torch.randn(3, 4)
    shared = net.head.weight
    shot = hookscope.capture(net, input=x, edits=["block*=quantize-weights:3"], compare=True)
    assert net.head.weight is net.block[0].weight is shared
    wanted = by_hand(net, {"block.0": 3, "block.2": 3}, x)
    assert all(same_bits(shot[key], wanted[key]) for key in wanted)
    changed = shot.metadata["edits"][0]["changed"]
    assert changed == ["block.0/weight", "block.2/weight"]
    first, *_ = shot.metadata["effect"]["drift"]
    assert first["key"] == "block.0/output"


def test_edits_of_weights_and_of_values_are_combined_in_order() -> None:
    net, x = Net().eval(), torch.randn(3, 4)
    edits = [f"block.2=quantize-weights:{bits}" for bits in (5, 2)] + ["block.2=scale:2"]
    shot = hookscope.capture(net, input=x, edits=edits)
    net.block[2].register_forward_hook(lambda module, args, output: output * 2)
    net.block[2].weight = nn.Parameter(rounded_weight(net.block[2].weight, 5))
    wanted = by_hand(net, {"block.2": 2}, x)
    assert all(same_bits(shot[key], wanted[key]) for key in wanted)


def test_gradients_are_those_at_the_rounded_weights() -> None:
    net, x = Net().eval(), torch.randn(3, 4)
    found = hookscope.grads(net, input=x, loss="sum", edits="block.2=quantize-weights:3")
    net.block[2].weight = nn.Parameter(rounded_weight(net.block[2].weight, 3))
    net(x).sum().backward()
    for name in ("block.2", "block.1"):
        key = f"{name}/weight.grad"
        assert same_bits(found[key], net.get_submodule(name).weight.grad)


def test_a_weight_without_entries_stays_as_it_is() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    net[1].weight, net[1].bias = nn.Parameter(torch.empty(0, 3)), None
    shot = hookscope.capture(net, input=torch.randn(2, 4), edits=".=quantize-weights:3")
    assert shot.metadata["edits"][0]["changed"] == ["0/weight"]


def test_weights_are_restored_after_an_error() -> None:
    net = Net().eval()
    before = dict(net.named_parameters())
    wrong = torch.randn(3, 5)
    with pytest.raises(hookscope.HookscopeError):
        hookscope.capture(net, input=wrong, edits=".=quantize-weights:3")
    assert all(parameter is before[name] for name, parameter in net.named_parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda net: net.head.weight.data.fill_(float("nan")), "NaN"),
        (lambda net: setattr(net, "head", nn.Identity()), "dimensions"),
        (
            lambda net: torch.nn.utils.parametrizations.weight_norm(net.head),
            "computed",
        ),
        (lambda net: torch.nn.utils.weight_norm(net.head), "computed"),
        (lambda net: torch.nn.utils.spectral_norm(net.head), "computed"),
        (lambda net: net.head.to("meta"), "meta"),
    ],
)
def test_weights_that_cannot_be_rounded_are_refused(spoil, reason: str) -> None:
    net = Net().eval()
    spoil(net)
    with pytest.raises(EditError, match=reason) as caught:
        hookscope.capture(net, input=torch.randn(3, 4), edits="head=quantize-weights:3")
    assert "layer head" in caught.value.message


def test_rounding_uses_the_output_channels_of_each_kind_of_layer() -> None:
    weight = torch.tensor([[1.0, 10.0], [0.4, 4.0]])
    assert round_weight(weight, 2).tolist() == [[0.0, 10.0], [0.0, 4.0]]
    assert round_weight(weight, 2, 1).tolist() == [[1.0, 10.0], [0.0, 0.0]]


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_rounding_agrees_with_the_kernel_of_torch(bits: int) -> None:
    weight = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(bits))
    top = 2 ** (bits - 1) - 1
    for dim in (0, 1):
        scale = weight.abs().amax([d for d in range(3) if d != dim]) / top
        zero = torch.zeros(weight.shape[dim], dtype=torch.int32)
        kernel = torch.fake_quantize_per_channel_affine(weight, scale, zero, dim, -top, top)
        torch.testing.assert_close(round_weight(weight, bits, dim), kernel, rtol=1e-6, atol=1e-7)
