"""Caches of transformers are recorded by layer, as they are when a module is called or returns.

The reference are forward hooks written by hand, which open the cache themselves.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import hookscope
from tests.oracle.by_hand import outputs, same_bits
from tests.sources.third_party_models import TRANSFORMERS, write_configuration
from tools.warm_process import Finished

IDS = torch.arange(6)[None]


def build(name: str, kind: str, **values: Any) -> Any:
    config = transformers.AutoConfig.for_model(name, **{**TRANSFORMERS[name][1], **values})
    torch.manual_seed(3)
    return getattr(transformers, kind)(config).eval()


def llama() -> tuple[Any, str]:
    """A model, and what it calls its cache: ``cache`` from transformers 5.24 on."""
    model = build("llama", "LlamaForCausalLM")
    renamed = "cache" in inspect.signature(model.forward).parameters
    return model, "cache" if renamed else "past_key_values"


def attention(cache: Any) -> dict[str, Tensor]:
    return {
        f"{number}.{name}": getattr(layer, name).clone()
        for number, layer in enumerate(cache.layers)
        for name in ("keys", "values")
        if layer.keys is not None
    }


@pytest.mark.parametrize(
    ("name", "kind"), [("mamba", "MambaForCausalLM"), ("bart", "BartForConditionalGeneration")]
)
def test_caches_and_hidden_states_in_the_output_are_recorded_by_layer(name: str, kind: str) -> None:
    model = build(name, kind, output_hidden_states=True)
    expected = outputs(model, input_ids=IDS)
    capture = hookscope.capture(model, layers=".", input={"input_ids": IDS}, verify=True)
    keys = [key for key in expected if key.startswith("./")]
    assert list(capture) == keys and sum("cache" in key or "past" in key for key in keys) > 3
    assert all(same_bits(capture[key], expected[key]) for key in keys)
    assert not capture.absent


@pytest.mark.parametrize("implementation", [None, "static"])
def test_every_step_has_the_cache_as_it_was_then(implementation: str | None) -> None:
    model, name = llama()
    model.generation_config.cache_implementation = implementation
    steps: list[dict[str, Tensor]] = []
    handle = model.register_forward_hook(lambda _, __, out: steps.append(attention(out[name])))
    with torch.no_grad():
        model.generate(input_ids=IDS, max_new_tokens=3, do_sample=False)
    handle.remove()
    capture = hookscope.capture(model, layers=".", input={"input_ids": IDS}, generate=3)
    assert [len(step) for step in steps] == [4, 4, 4]
    for number, step in enumerate(steps, 1):
        call = "." if number == 1 else f".:{number}"
        for path, tensor in step.items():
            assert torch.equal(capture[f"{call}/output.{name}.{path}"], tensor)
    first, last = steps[0]["0.keys"], steps[2]["0.keys"]
    assert first.shape != last.shape or not torch.equal(first, last)


@pytest.mark.parametrize("static", [False, True])
def test_a_cache_among_the_arguments_is_recorded_before_the_call(static: bool) -> None:
    model, name = llama()
    cache: Any = transformers.DynamicCache()
    if static:
        cache = transformers.StaticCache(model.config, max_cache_len=9)
    with torch.no_grad():
        model(input_ids=IDS, **{name: cache})
    before = attention(cache)
    with hookscope.record(model, layers=".", what="input") as capture, torch.no_grad():
        model(input_ids=IDS[:, :1], **{name: cache})
    for path, tensor in before.items():
        assert torch.equal(capture[f"./input.{name}.{path}"], tensor)
    assert not all(torch.equal(tensor, attention(cache)[path]) for path, tensor in before.items())


@pytest.mark.exhaustive
def test_tokens_are_counted_by_expert(run: Callable[..., Finished], tmp_path: Path) -> None:
    model = build("mixtral", "MixtralForCausalLM", output_router_logits=True)
    with torch.no_grad():
        logits = model(input_ids=IDS).router_logits
    capture = hookscope.capture(model, layers=[".", "*.gate"], input={"input_ids": IDS})
    counts = []
    for number, tensor in enumerate(logits):
        assert torch.equal(capture[f"./output.router_logits.{number}"], tensor)
        chosen = tensor.argsort(descending=True)[:, :2]
        tokens = [int((chosen == expert).sum()) for expert in range(4)]
        counts.append({"key": f"model.layers.{number}.mlp.gate/output.2", "tokens": tokens})
    assert capture.metadata["experts"] == counts
    word = f"hf:{write_configuration('mixtral', tmp_path / 'mixtral')}"
    done = run("capture", word, "--layer", "*.gate", "-o", "experts.safetensors")
    assert "Tokens by expert, model.layers.0.mlp.gate/output.2: " in done.stdout
    shown = json.loads(run("show", "experts.safetensors", "--json").stdout)
    experts = hookscope.capture(word, layers="*.gate").metadata["experts"]
    assert shown["recording"]["experts"] == experts
    assert [len(entry["tokens"]) for entry in experts] == [4, 4]
