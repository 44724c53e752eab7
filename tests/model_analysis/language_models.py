"""Small language models with initial weights, as transformers makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad

IDS = {"vocab_size": 64, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SMALL = {
    **{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64},
    **IDS,
}


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_positions=32, n_embd=16, n_layer=3, n_head=2, **IDS))


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SMALL))


def gemma() -> Any:
    """Its embeddings are scaled, and its logits capped after the head."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    return Gemma2ForCausalLM(Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=2.0))


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2}
    return T5ForConditionalGeneration(T5Config(**sizes, num_heads=2, decoder_start_token_id=0))


def built(make: Callable[[], Any]) -> Any:
    """A model with larger weights than the initial ones, whose predictions are all alike."""
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return model


def beside_padding(whole: torch.Tensor, short: torch.Tensor, side: str) -> dict[str, torch.Tensor]:
    """A batch of a text and of a shorter one, with padding on a side; each is (1, length)."""
    missing = whole.shape[1] - short.shape[1]
    ends = (missing, 0) if side == "left" else (0, missing)
    ids = torch.cat([whole, pad(short, ends)])
    mask = torch.cat([torch.ones_like(whole), pad(torch.ones_like(short), ends)])
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
