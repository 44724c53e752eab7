"""--tokenizer and --chat are options of every command that calls a language model on a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import InputError


class Words(nn.Module):
    """A model without a tokenizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.blocks = nn.Embedding(200, 8), nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 200)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x).relu()


CALLS: dict[str, dict[str, Any]] = {
    "lens": {},
    "attribute": {"by": "gradxinput"},
    "check": {"loss": "sum"},
    "ablate": {"layers": "blocks.*"},
    "trace": {},
    "diff": {},
}


@pytest.mark.parametrize("command", CALLS)
def test_a_text_is_split_by_the_tokenizer_that_is_given(repo: Path, command: str) -> None:
    model: Any = (Words(), Words()) if command == "diff" else (Words(),)
    function = getattr(hookscope, command)
    text = {"input": "text:the capital of France is", **CALLS[command]}
    found = function(*model, tokenizer=repo / "sample_models" / "capitals", **text)
    if command == "diff":
        assert found.same and found.rows
    else:
        assert found.metadata["inputs"][0]["shape"] == "1x5"
    with pytest.raises(InputError):
        function(*model, **text)


def test_a_lens_and_attributions_have_the_texts_of_the_tokens(repo: Path) -> None:
    words = {"input": "text:the capital", "tokenizer": repo / "sample_models" / "capitals"}
    assert [t.text for t in hookscope.lens(Words(), **words).rows[0].tokens] == [" the", " capital"]
    found = hookscope.attribute(Words(), by="occlusion", **words)
    assert [one.token.text for one in found.rows[0].tokens] == [" the", " capital"]
