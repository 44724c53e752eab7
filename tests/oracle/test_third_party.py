"""Models of timm and of transformers against hand-written hooks and ``torch.autograd.grad``.

Bit for bit, through ``tree``, ``capture`` and ``grads``. A few of different kinds run by default;
all are the exhaustive suite, which also holds the table in docs/models.md to its numbers.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.losses.compute import compute
from hookscope.tensors import as_call
from tests.oracle import by_hand
from tests.oracle.by_hand import same_bits
from tests.sources.third_party_models import TIMM, TRANSFORMERS, write_configuration

pytestmark = pytest.mark.slow
TABLE = Path(__file__).parents[2] / "docs" / "models.md"


def cases(names: Iterable[str], sample: set[str]) -> Iterator[object]:
    for name in names:
        yield name if name in sample else pytest.param(name, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("name", cases(TIMM, {"resnet10t", "vit_tiny_patch16_224"}))
def test_a_model_of_timm_agrees(name: str) -> None:
    demand_row(f"timm:{name}", agreement(f"timm:{name}", TIMM[name]))


@pytest.mark.parametrize("name", cases(TRANSFORMERS, {"bert", "llama", "t5", "wav2vec2"}))
def test_a_model_type_of_transformers_agrees(name: str, tmp_path: Path) -> None:
    word = f"hf:{write_configuration(name, tmp_path)}"
    demand_row(f"{name} ({TRANSFORMERS[name][0]})", agreement(word, {}))


def demand_row(name: str, counts: tuple[int, int, int]) -> None:
    row = f"| {name} | {' | '.join(map(str, counts))} |"
    assert row in TABLE.read_text(encoding="utf-8").splitlines()


def agreement(word: str, model_args: dict[str, Any]) -> tuple[int, int, int]:
    """How many modules, outputs and gradients were compared, all of which agree."""
    gc.collect()
    loaded = hookscope.load_model(word, model_args=model_args)
    model = loaded.module
    args, kwargs = as_call(loaded.example_input)
    tree = hookscope.tree(word, model_args=model_args)
    assert [node.name for node in tree.nodes] == list(by_hand.first_names(model).values())
    outputs = by_hand.outputs(model, *args, **kwargs)
    captured = hookscope.capture(word, model_args=model_args)
    assert list(captured) == list(outputs)
    demand_same(captured, outputs)
    # A fresh one: the hooks by which transformers collects hidden states come with the first run.
    model = hookscope.load_model(word, model_args=model_args).module
    gradients = by_autograd(model, args, kwargs)
    found = hookscope.grads(word, model_args=model_args, loss="sum")
    assert {key for key in found if not key.rpartition("/")[2].startswith(("output", "input"))} == {
        key for key in gradients if not key.rpartition("/")[2].startswith(("output", "input"))
    }
    if word == "timm:dla34":  # see docs/models.md
        torch.testing.assert_close(
            {k: found[k] for k in gradients}, gradients, rtol=1e-3, atol=1e-3
        )
        return len(tree.nodes), len(outputs), 0
    demand_same(found, gradients)
    return len(tree.nodes), len(outputs), len(gradients)


def demand_same(found: Any, expected: dict[str, Tensor]) -> None:
    assert [key for key in expected if key not in found] == []
    different = [key for key in expected if not same_bits(found[key], expected[key])]
    assert different == []


def by_autograd(model: nn.Module, args: Any, kwargs: dict[str, Any]) -> dict[str, Tensor]:
    """Gradients at every parameter and every output, of the sum of what the model returns."""
    with by_hand.slipped_in(model, inputs=False) as kept:
        loss = compute("sum", model(*args, **kwargs)).value
        slipped = torch.autograd.grad(loss, list(kept.values()), allow_unused=True)
    expected = {f"{k}.grad": g for k, g in zip(kept, slipped, strict=True) if g is not None}
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    loss = compute("sum", model(*args, **kwargs)).value
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    for name, grad in zip(named, found, strict=True):
        if grad is not None:
            module, _, parameter = name.rpartition(".")
            expected[f"{module or '.'}/{parameter}.grad"] = grad
    return expected
