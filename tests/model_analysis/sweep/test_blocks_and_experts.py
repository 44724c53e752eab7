"""Blocks before a changed layer that need not be computed again, and sweeps over experts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
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

CALLS: Counter[str] = Counter()


def counted(self: Any, x: Tensor) -> Tensor:
    """A residual block that counts its calls outside of itself."""
    CALLS["block"] += 1
    return x + self.linear(x).tanh()


def chain(
    forward: Callable[..., Tensor] = counted, count: int = 20, end: Any = lambda x: x
) -> Module:
    """Blocks one after the other, which have a buffer and a dict with a list."""

    def run(self: Any, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return end(x)

    blocks = [Module(forward, linear=nn.Linear(4, 4)) for _ in range(count)]
    for block in blocks:
        block.notes, block.last = {"shapes": []}, None
        block.register_buffer("count", torch.zeros(()))
    return Module(run, blocks=nn.ModuleList(blocks))


def keeps_its_output(self: Any, x: Tensor) -> Tensor:
    self.last = counted(self, x)
    return self.last + 0


def appends_to_a_list(self: Any, x: Tensor) -> Tensor:
    self.notes["shapes"].append(len(x))
    return counted(self, x)


def counts_in_a_buffer(self: Any, x: Tensor) -> Tensor:
    self.count += 1
    return counted(self, x)


def returns_what_it_got(self: Any, x: Tensor) -> Tensor:
    counted(self, x)
    return x


X = torch.randn(2, 4, generator=torch.Generator().manual_seed(3))


def swept(model: nn.Module, **options: Any) -> hookscope.Sweep:
    return hookscope.sweep(
        model, edit="scale:1.5", layers="blocks.*", types="Module", input=X, **options
    )


def by_hand(model: Any) -> list[float]:
    """The relative change of the output with each block changed, every block computed."""
    found = []
    for n in range(len(model.blocks)):
        run = hookscope.capture(model, edits=f"blocks.{n}=scale:1.5", layers=".", input=X)
        found.append(run.metadata["effect"]["output"][0]["relative"])
    return found


def test_a_chain_costs_little_more_than_half() -> None:
    model = chain()
    CALLS.clear()
    found = swept(model)

    assert CALLS["block"] <= 0.6 * 20 * 20
    assert "up to 20 blocks" in found.reuse
    assert [cell.output for cell in found.cells] == by_hand(model)
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_a_block_whose_input_is_changed_is_computed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    found = hookscope.sweep(model, layers="1", heads=2, input=X, metric="output")

    assert "up to 1 block " in found.reuse
    first = hookscope.capture(model, edits="input:1[0-1]=zero", layers=".", input=X)
    assert found.cells[0].output == first.metadata["effect"]["output"][0]["relative"] > 0


def test_blocks_without_a_changed_layer_are_reused_too() -> None:
    model = chain()
    CALLS.clear()
    found = hookscope.sweep(model, layers="blocks.19.linear", input=X)

    assert "up to 19 blocks" in found.reuse
    assert CALLS["block"] <= 2 * 20 + 1 + 1  # clean twice, the check of the last one, the cell


@pytest.mark.parametrize(
    ("forward", "what"),
    [
        (keeps_its_output, "an attribute"),
        (appends_to_a_list, "an attribute"),
        (counts_in_a_buffer, "a buffer"),
        (lambda self, x: counted(self, x) + torch.rand(()), "random"),
        (lambda self, x: counted(self, x.add_(1)), "in place"),
        (returns_what_it_got, "memory"),
    ],
)
def test_a_block_that_does_more_is_always_computed(
    forward: Callable[..., Tensor], what: str
) -> None:
    model = chain(forward, 6)
    CALLS.clear()
    found = swept(model)
    assert "blocks.0" in found.reuse and what in found.reuse
    assert CALLS["block"] == 6 * 8
    assert [cell.output for cell in found.cells] == by_hand(model)


def test_train_mode_computes_everything() -> None:
    assert "train mode" in swept(chain(), train=True).reuse


def test_hooks_of_the_user_run_in_every_run() -> None:
    model, seen = chain(), []
    model.blocks[0].register_forward_hook(lambda *args: seen.append(1))
    found = swept(model)

    assert "blocks.0 has hooks" not in found.reuse  # the other blocks are reused
    assert len(seen) >= 20
    assert [cell.output for cell in found.cells] == by_hand(model)


def test_a_forward_on_the_instance_is_kept() -> None:
    model = chain(count=2)
    block = model.blocks[0]
    own = block.forward
    block.forward = lambda x: own(x)  # type: ignore[method-assign]
    found = hookscope.sweep(model, layers="blocks.0", input=X)

    assert "up to" not in found.reuse
    assert "forward" in block.__dict__


@pytest.mark.parametrize("reader", ["the model", "a later block"])
def test_what_is_read_besides_outputs_is_noticed(reader: str) -> None:
    notes: list[float] = []  # in a closure, which is not searched

    def writing(self: Any, x: Tensor) -> Tensor:
        notes.append(1.0)
        return counted(self, x)

    def read(x: Tensor) -> Tensor:
        factor = 1 + len(notes)
        notes.clear()
        return x * factor

    if reader == "the model":
        model = chain(writing, 3, end=read)
    else:
        model = chain(writing, 3)
        model.blocks[2].function = lambda self, x: read(writing(self, x))
    assert "the output differs" in hookscope.sweep(model, layers="blocks.?", input=X).reuse


def test_a_language_model_runs_without_a_cache_for_it() -> None:
    found = hookscope.sweep(
        "hf:sample_models/capitals", layers="model.layers.?", input="text:the capital of Peru"
    )

    assert "up to 4 blocks" in found.reuse


def test_a_convolutional_network_is_a_chain_too() -> None:
    x = {"input": "random:1x3x32x32"}
    found = hookscope.sweep("resnet18", layers="layer4.1", metric="output", edit="scale:2", **x)
    run = hookscope.capture("resnet18", layers="fc", edits="layer4.1=scale:2", **x)
    assert "up to 8 blocks" in found.reuse
    assert found.cells[-1].output == run.metadata["effect"]["output"][0]["relative"]


# Experts


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
