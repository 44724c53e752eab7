"""Language models generate token by token, one call each, as greedy decoding by hand does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hookscope
from hookscope.errors import RequestError

CODE = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

IDS = dict(vocab_size=64, bos_token_id=None, eos_token_id=None)

def gpt2():
    return GPT2LMHeadModel(GPT2Config(n_positions=32, n_embd=16, n_layer=2, n_head=2, **IDS))

def llama():
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, **IDS))

def tokenize(texts):
    ids = torch.tensor([[ord(c) % 64 for c in text] for text in texts])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
"""
PROMPT, STEPS = "text:a dog", 4


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("lm") / "lm.py"
    path.write_text(CODE)
    return str(path)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_every_step_is_a_call_and_gives_what_a_run_without_cache_gives(
    file: str, name: str
) -> None:
    shot = hookscope.capture(
        f"{file}:{name}", input=PROMPT, generate=STEPS, layers="lm_head", verify=True
    )
    keys = ["lm_head/output", *(f"lm_head:{n}/output" for n in range(2, STEPS + 1))]
    assert list(shot) == keys
    model = hookscope.load_model(f"{file}:{name}")
    assert model.own_text is not None
    ids = model.own_text.run(["a dog"])["input_ids"]
    with torch.no_grad():
        for key in keys:  # by hand: all tokens anew for each
            logits = model.module(input_ids=ids, use_cache=False).logits[:, -1:]
            assert torch.allclose(shot[key], logits, atol=1e-5)
            ids = torch.cat([ids, logits.argmax(-1)], 1)
    assert shot.metadata["options"]["generate"] == STEPS


def test_what_the_cache_holds_later_does_not_change_what_was_recorded(file: str) -> None:
    layers = ["*.k_proj", "*.v_proj"]
    one = hookscope.capture(f"{file}:llama", input=PROMPT, generate=1, layers=layers)
    many = hookscope.capture(f"{file}:llama", input=PROMPT, generate=STEPS, layers=layers)
    for key in one:
        assert torch.equal(one[key], many[key])
    assert many["model.layers.0.self_attn.k_proj:2/output"].shape == (1, 1, 8)


def test_an_edit_reaches_every_step(file: str) -> None:
    options = {"input": PROMPT, "generate": STEPS, "layers": "lm_head"}
    shot = hookscope.capture(f"{file}:gpt2", edits="transformer.h.1=zero", compare=True, **options)
    clean = hookscope.capture(f"{file}:gpt2", **options)
    assert len(shot.metadata["edits"][0]["changed"]) >= STEPS
    assert not torch.equal(shot["lm_head:2/output"], clean["lm_head:2/output"])


def test_a_generate_of_ones_own_is_run_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Embedding):\n"
        "    def __init__(self): super().__init__(8, 8)\n"
        "    def generate(self, ids, max_new_tokens):\n"
        "        for _ in range(max_new_tokens):\n"
        "            ids = torch.cat([ids, self(ids)[:, -1:].argmax(-1)], 1)\n"
        "        return ids\n"
    )
    shot = hookscope.capture(f"{path}:Net", input="ints:1x3:0-8", generate=2)
    assert [tuple(shot[key].shape) for key in shot] == [(1, 3, 8), (1, 4, 8)]


@pytest.mark.parametrize(
    ("model", "options", "subject"),
    [
        ("resnet18", {"generate": 2}, "method generate"),
        ("gpt2", {"generate": 0}, "generate.* 0"),
        ("gpt2", {"generate": 2, "method": "generate"}, "generate and method"),
    ],
)
def test_what_cannot_generate_is_refused(
    file: str, model: str, options: dict, subject: str
) -> None:
    word = model if model == "resnet18" else f"{file}:{model}"
    with pytest.raises(RequestError, match=subject):
        hookscope.capture(word, input=None if model == "resnet18" else PROMPT, **options)
