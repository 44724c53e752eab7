"""The logit lens beside one forward pass with the head applied to every layer by hand.

``python -m bench.lens PAIRS`` prints the seconds of each pair, one pair a line, after making sure
that both find the same tokens. By hand there are no probabilities, ranks or divergences.
"""

from __future__ import annotations

import sys
from time import perf_counter

import torch
from torch import Tensor, nn

import hookscope

LAYERS, WIDTH, TOKENS, POSITIONS = 12, 512, 8192, 64


def by_hand(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the most probable token at each layer and position."""
    stack: nn.ModuleList = model.get_submodule("model.layers")  # type: ignore[assignment]
    norm, head = model.get_submodule("model.norm"), model.get_submodule("lm_head")
    values: list[Tensor] = []
    handles = [stack[0].register_forward_pre_hook(lambda m, args: values.append(args[0].clone()))]
    handles += [
        b.register_forward_hook(lambda m, a, out: values.append(out.clone())) for b in stack
    ]
    with torch.no_grad():
        model(input_ids=ids)
        found = torch.stack([head(norm(value)).argmax(-1)[0] for value in values])
    for handle in handles:
        handle.remove()
    return found


def by_hookscope(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the same from the result of the lens."""
    found = hookscope.lens(model, input={"input_ids": ids})
    best = [cell.top[0].token.index for cell in found.cells]
    return torch.tensor(best).view(len(found.layers), -1)


def main(pairs: int) -> None:
    """Measure ``pairs`` pairs after two that do not count."""
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
    if not torch.equal(by_hookscope(model, ids), by_hand(model, ids)):
        sys.exit("the two differ")
    for pair in range(-2, pairs):
        times = []
        for work in (by_hookscope, by_hand):
            began = perf_counter()
            work(model, ids)
            times.append(perf_counter() - began)
        if pair >= 0:
            print(*times)


if __name__ == "__main__":
    main(int(sys.argv[1]))
