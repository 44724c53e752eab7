"""Models of timm and of transformers against hand-written hooks and ``torch.autograd.grad``.

Bit for bit, through ``tree``, ``capture`` and ``grads``. A few of different kinds run by default;
all are the exhaustive suite, which also holds the table in docs/models.md to its numbers.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.execution.loss import compute_loss
from hookscope.results.records import key_of
from hookscope.tensors.nested import as_call
from tests.oracle import by_hand
from tests.oracle.by_hand import same_bits
from tests.sources.third_party_models import TIMM, TRANSFORMERS, write_configuration

pytestmark = pytest.mark.slow
# There the copies slipped in change the gradients at outputs; retain_grad has those of hookscope.
PARAMETERS_ALONE = {"timm:efficientformer_l1", "timm:dla34"}
TABLE = Path(__file__).parents[2] / "docs" / "models.md"


def cases(names: Iterable[str], sample: set[str]) -> list[object]:
    return [
        name if name in sample else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in names
    ]


@pytest.mark.parametrize("name", cases(TIMM, {"resnet10t", "vit_tiny_patch16_224"}))
def test_a_model_of_timm_agrees(name: str) -> None:
    demand_row(f"timm:{name}", agreement(f"timm:{name}", TIMM[name]))


@pytest.mark.parametrize("name", cases(TRANSFORMERS, {"bert", "llama", "t5", "wav2vec2"}))
def test_a_model_type_of_transformers_agrees(name: str, tmp_path: Path) -> None:
    word = f"hf:{write_configuration(name, tmp_path)}"
    demand_row(f"{name} ({TRANSFORMERS[name][0]})", agreement(word, {}))


def demand_row(name: str, counts: tuple[int, int, str]) -> None:
    row = f"| {name} | {' | '.join(map(str, counts))} |"
    assert row in TABLE.read_text(encoding="utf-8").splitlines()


def agreement(word: str, model_args: dict[str, Any]) -> tuple[int, int, str]:
    """How many modules, outputs and gradients were compared, all of which agree."""
    gc.collect()

    def fresh() -> nn.Module:
        return hookscope.load_model(word, model_args=model_args).module

    call = as_call(hookscope.load_model(word, model_args=model_args).example_input)
    model = fresh()
    tree = hookscope.tree(word, model_args=model_args)
    assert [node.name for node in tree.modules] == list(by_hand.first_names(model).values())
    outputs = by_hand.outputs(model, *call[0], **call[1])
    captured = hookscope.capture(word, model_args=model_args)
    assert list(captured) == list(outputs)
    assert [key for key in outputs if not same_bits(captured[key], outputs[key])] == []
    # Fresh ones, as a first run leaves things behind: biases of attention kept for the next run,
    # the hooks by which transformers collects hidden states.
    gradients = at_parameters(fresh(), *call)
    found = hookscope.grads(word, model_args=model_args, loss="sum")
    assert {key for key in found if "/input" not in key and "/output" not in key} == set(gradients)
    if word not in PARAMETERS_ALONE:
        gradients |= at_outputs(fresh(), *call)
    views = {key_of(a.module, a.call, a.what) for a in found.absent if "memory" in a.reason}
    assert {key for key in gradients if key not in found} <= views
    gradients = {key: grad for key, grad in gradients.items() if key in found}
    one_tensor = by_hand.returned_inputs(fresh(), *call[0], **call[1])
    different = [key for key in gradients if not same_bits(found[key], gradients[key])]
    assert set(different) <= one_tensor
    return len(tree.modules), len(outputs), str(len(gradients))


def at_outputs(model: nn.Module, args: Any, kwargs: dict[str, Any]) -> dict[str, Tensor]:
    """Gradients at every output, of the sum of what the model returns."""
    with by_hand.slipped_in(model, inputs=False) as kept:
        loss = compute_loss("sum", model(*args, **kwargs)).value
        found = torch.autograd.grad(loss, list(kept.values()), allow_unused=True)
    return {f"{k}.grad": g for k, g in zip(kept, found, strict=True) if g is not None}


def at_parameters(model: nn.Module, args: Any, kwargs: dict[str, Any]) -> dict[str, Tensor]:
    """Gradients at every parameter, of the same sum."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    loss = compute_loss("sum", model(*args, **kwargs)).value
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    keys = {name: "{0}/{2}.grad".format(*name.rpartition(".")) for name in named}
    return {
        keys[name] if "." in name else f".{keys[name]}": grad
        for name, grad in zip(named, found, strict=True)
        if grad is not None
    }
