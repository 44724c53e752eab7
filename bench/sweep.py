"""A sweep over the layers of a language model beside as many forward passes by hand.

``python -m bench.sweep PAIRS`` prints the seconds of each pair, one pair a line, after making sure
that a layer changed by hand gives the same logits as the sweep measured. The sweep runs the model
twice without a change, and then for each layer from that layer on.
"""

from __future__ import annotations

import sys
from time import perf_counter

import torch
from torch import Tensor, nn

import hookscope

LAYERS, WIDTH, TOKENS, POSITIONS = 24, 512, 2048, 64
PATTERN = [f"model.layers.{n}" for n in range(LAYERS)]


def by_hand(model: nn.Module, ids: Tensor) -> list[float]:
    """Return the score of token 0 with each layer doubled, every layer computed."""
    scores = []
    for name in PATTERN:
        handle = model.get_submodule(name).register_forward_hook(lambda m, args, out: out * 2)
        with torch.no_grad():
            scores.append(float(model(input_ids=ids, use_cache=False).logits[0, -1, 0]))
        handle.remove()
    return scores


def by_hookscope(model: nn.Module, ids: Tensor) -> list[float]:
    """Return the same from a sweep."""
    found = hookscope.sweep(
        model, edit="scale:2", layers=PATTERN, input={"input_ids": ids}, target=0
    )
    clean = found.clean.score or 0.0
    return [clean + (cell.score or 0.0) for cell in found.cells]


def main(pairs: int) -> None:
    """Measure ``pairs`` pairs after one that does not count."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
    )
    model = LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]
    ids = torch.randint(TOKENS, (1, POSITIONS))
    expected = torch.tensor(by_hand(model, ids), dtype=torch.float64)
    if not torch.allclose(torch.tensor(by_hookscope(model, ids)).double(), expected, atol=1e-6):
        sys.exit("the two differ")
    for pair in range(-1, pairs):
        times = []
        for work in (by_hookscope, by_hand):
            began = perf_counter()
            work(model, ids)
            times.append(perf_counter() - began)
        if pair >= 0:
            print(*times)


if __name__ == "__main__":
    main(int(sys.argv[1]))
