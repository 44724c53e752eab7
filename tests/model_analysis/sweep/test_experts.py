"""A sweep over experts equals models in which one expert is left out or scaled by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hookscope
from hookscope.errors import CheckFailed, RequestError
from tests.model_analysis.language_models import IDS, built
from tests.model_analysis.sweep.test_sweep import CLEAN, A, B, metrics_by_hand
from tests.zoo import Module

HEADS: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, **HEADS, **IDS}


def mixtral() -> Any:
    return _eager("Mixtral", intermediate_size=24, num_local_experts=4)


def qwen() -> Any:
    return _eager("Qwen3Moe", moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2)


def _eager(name: str, **sizes: int) -> Any:
    import transformers

    config = getattr(transformers, f"{name}Config")(**SIZES, **sizes)
    config._experts_implementation = "eager"
    return getattr(transformers, f"{name}ForCausalLM")(config)


def experts_by_hand(left_out: int) -> Any:
    """The forward of a module of experts, added up expert by expert without one of them."""

    def forward(module: Any, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        total = torch.zeros_like(hidden)
        for expert in range(4):
            choice, tokens = torch.where((index == expert).T)  # in the order of transformers
            if expert == left_out or not len(tokens):
                continue
            gate, up = F.linear(hidden[tokens], module.gate_up_proj[expert]).chunk(2, dim=-1)
            output = F.linear(module.act_fn(gate) * up, module.down_proj[expert])
            total.index_add_(0, tokens, output * weights[tokens, choice, None])
        return total

    return forward


def logits_without(model: Any, layer: str, expert: int) -> Tensor:
    module = model.get_submodule(layer)
    module.forward = experts_by_hand(expert).__get__(module)
    try:
        with torch.no_grad():
            return model(input_ids=CLEAN).logits
    finally:
        del module.forward


@pytest.mark.parametrize("make", [mixtral, qwen])
def test_every_cell_equals_the_model_without_that_expert(make: Any) -> None:
    model = built(make)
    found = hookscope.sweep(model, experts=True, target=A, against=B, input={"input_ids": CLEAN})
    assert (found.axis, len(found.columns)) == ("expert", 4)
    assert found.layers == ("model.layers.0.mlp.experts", "model.layers.1.mlp.experts")
    assert "were used" in found.reuse  # layer 0 is not computed again for the experts of layer 1
    with torch.no_grad():
        clean = model(input_ids=CLEAN).logits
    for cell in found.cells:
        expected = metrics_by_hand(clean, logits_without(model, cell.layer, cell.column))
        assert {name: cell.metric(name) for name in expected} == expected
    assert any(cell.score for cell in found.cells)


def test_scaling_multiplies_what_an_expert_adds() -> None:
    model = built(mixtral).double()
    layer = "model.layers.1.mlp.experts"
    found = hookscope.sweep(
        model, edit="scale:3", experts=True, layers=layer, target=3, input={"input_ids": CLEAN}
    )
    module = model.get_submodule(layer)
    for cell in found.cells:
        by_hand = experts_by_hand(cell.column)

        def add(module: Any, args: Any, output: Tensor, by_hand: Any = by_hand) -> Tensor:
            return output + 2 * (output - by_hand(module, *args))

        handle = module.register_forward_hook(add)
        with torch.no_grad():
            changed = model(input_ids=CLEAN).logits[:, -1]
        handle.remove()
        with torch.no_grad():
            clean = model(input_ids=CLEAN).logits[:, -1]
        assert cell.score == pytest.approx(float((changed - clean)[:, 3].mean()), rel=1e-6)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("experts", {"layers": "*.self_attn"}),
    ("noise", {"edit": "noise:1"}),
    ("positions and experts", {"positions": "all"}),
    ("quantize-weights", {"edit": "quantize-weights:4"}),
]


@pytest.mark.parametrize(("subject", "options"), WRONG)
def test_a_wrong_request_is_refused(subject: str, options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=subject):
        hookscope.sweep(built(mixtral), experts=True, input={"input_ids": CLEAN}, **options)


class Routed(nn.Module):
    """Experts whose routing has one weight for all choices."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, 4, 4))

    def forward(self, x: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        return x @ self.weight[top_k_index[0, 0]] * top_k_weights.mean()


def routed(*counts: int) -> Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        for part in self.experts:
            x = part(x, torch.zeros(2, 1, dtype=torch.int64), torch.ones(2))
        return x

    return Module(forward, experts=nn.ModuleList(map(Routed, counts)))


def test_another_form_of_routing_is_told_in_each_cell() -> None:
    with pytest.raises(CheckFailed, match="every change"):
        hookscope.sweep(routed(2, 2), experts=True, input=torch.randn(2, 4))


def test_layers_of_different_numbers_of_experts_are_refused() -> None:
    with pytest.raises(RequestError, match="from 2 to 3"):
        hookscope.sweep(routed(2, 3), experts=True, input=torch.randn(2, 4))
