"""Caches of transformers are recorded by layer, as they are when a module is called or returns.

The reference is a forward hook written by hand that reads the cache of transformers itself.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    BartForConditionalGeneration,
    DynamicCache,
    LlamaForCausalLM,
    MambaForCausalLM,
    MixtralForCausalLM,
    StaticCache,
)

import hookscope
from tests.sources.third_party_models import TRANSFORMERS, write_configuration
from tools.warm_process import Finished

IDS = torch.arange(6)[None]
# From transformers 5.24, each cache is named `cache` among the arguments and in the output.
RENAMED = "cache" in inspect.signature(LlamaForCausalLM.forward).parameters
ATTENTION_CACHE = "cache" if RENAMED else "past_key_values"
RECURRENT_CACHE = "cache" if RENAMED else "cache_params"
Read = Callable[[Any], dict[str, Tensor]]


def build(kind: type[Any], name: str, **values: Any) -> nn.Module:
    config = AutoConfig.for_model(name, **{**TRANSFORMERS[name][1], **values})
    torch.manual_seed(3)
    model: nn.Module = kind(config).eval()
    return model


def attention(cache: Any, prefix: str = "") -> dict[str, Tensor]:
    layers = [layer for layer in cache.layers if layer.keys is not None]
    return {
        f"{prefix}{number}.{name}": getattr(layer, name).clone()
        for number, layer in enumerate(layers)
        for name in ("keys", "values")
    }


def recurrent(cache: Any) -> dict[str, Tensor]:
    return {
        f"{number}.{name}.{n}": state.clone()
        for number, layer in enumerate(cache.layers)
        for name in ("conv_states", "recurrent_states")
        for n, state in dict(getattr(layer, name)).items()
    }


def both(cache: Any) -> dict[str, Tensor]:
    return {
        **attention(cache.self_attention_cache, "self_attention_cache."),
        **attention(cache.cross_attention_cache, "cross_attention_cache."),
    }


def by_hand(model: nn.Module, name: str, read: Read, run: Callable[[], Any]) -> dict[str, Tensor]:
    """The tensors of the caches in the model's output, as a hook written by hand copies them."""
    taken: dict[str, Tensor] = {}
    calls: Iterator[int] = iter(range(1, 100))

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        call = next(calls)
        mark = f":{call}" if call > 1 else ""
        taken.update({f".{mark}/output.{name}.{path}": t for path, t in read(output[name]).items()})

    handle = model.register_forward_hook(hook)
    with torch.no_grad():
        run()
    handle.remove()
    return taken


def assert_same_caches(capture: Any, expected: dict[str, Tensor], name: str) -> None:
    recorded = {key: capture[key] for key in capture if f"output.{name}." in key}
    assert list(recorded) == list(expected)
    assert expected
    assert all(torch.equal(recorded[key], expected[key]) for key in expected)


CASES: list[tuple[type[Any], str, str, Read]] = [
    (LlamaForCausalLM, "llama", ATTENTION_CACHE, attention),
    (MambaForCausalLM, "mamba", RECURRENT_CACHE, recurrent),
    (BartForConditionalGeneration, "bart", ATTENTION_CACHE, both),
]


@pytest.mark.parametrize(("kind", "name", "argument", "read"), CASES)
def test_a_cache_in_the_output_is_recorded_by_layer(
    kind: type[Any], name: str, argument: str, read: Read
) -> None:
    model = build(kind, name)
    expected = by_hand(model, argument, read, lambda: model(input_ids=IDS))
    capture = hookscope.capture(model, layers=".", input={"input_ids": IDS}, verify=True)
    assert_same_caches(capture, expected, argument)
    assert not capture.absent


@pytest.mark.parametrize("implementation", [None, "static"])
def test_every_step_has_the_cache_as_it_was_then(implementation: str | None) -> None:
    model: Any = build(LlamaForCausalLM, "llama")
    model.generation_config.cache_implementation = implementation
    steps = {"max_new_tokens": 3, "do_sample": False}
    expected = by_hand(
        model, ATTENTION_CACHE, attention, lambda: model.generate(input_ids=IDS, **steps)
    )
    capture = hookscope.capture(model, layers=".", input={"input_ids": IDS}, generate=3)
    recorded = {key: capture[key] for key in capture if key in expected}
    assert len(recorded) == len(expected) == 3 * 4
    assert all(torch.equal(recorded[key], expected[key]) for key in expected)
    first, last = (recorded[f"{call}/output.{ATTENTION_CACHE}.0.keys"] for call in (".", ".:3"))
    assert first.shape != last.shape or not torch.equal(first, last)


@pytest.mark.parametrize("static", [False, True])
def test_a_cache_among_the_arguments_is_recorded_before_the_call(static: bool) -> None:
    model: Any = build(LlamaForCausalLM, "llama")
    cache = StaticCache(model.config, max_cache_len=9) if static else DynamicCache()
    with torch.no_grad():
        model(input_ids=IDS, **{ATTENTION_CACHE: cache})
    before = attention(cache)
    with hookscope.record(model, layers=".", what="input") as capture, torch.no_grad():
        model(input_ids=IDS[:, :1], **{ATTENTION_CACHE: cache})
    keys = {f"./input.{ATTENTION_CACHE}.{path}": tensor for path, tensor in before.items()}
    assert all(torch.equal(capture[key], tensor) for key, tensor in keys.items())
    after = attention(cache)
    assert not all(torch.equal(before[path], after[path]) for path in before)


def test_hidden_states_of_encoder_and_decoder_are_recorded_as_they_are_returned() -> None:
    model = build(BartForConditionalGeneration, "bart", output_hidden_states=True)
    with torch.no_grad():
        expected = model(input_ids=IDS)
    capture = hookscope.capture(model, layers=".", input={"input_ids": IDS})
    for name in ("encoder_hidden_states", "decoder_hidden_states"):
        assert len(expected[name]) == 3
        for number, tensor in enumerate(expected[name]):
            assert torch.equal(capture[f"./output.{name}.{number}"], tensor)


@pytest.mark.exhaustive
def test_tokens_are_counted_by_expert(run: Callable[..., Finished], tmp_path: Path) -> None:
    model = build(MixtralForCausalLM, "mixtral", output_router_logits=True)
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
