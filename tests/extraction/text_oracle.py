"""What a model of transformers returns for single texts, by a plain hook and the tokenizer itself.

It uses nothing of hookscope.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests import tiny_language

WORDS = tiny_language.LINE.split()
# Lengths in an order that is not sorted; characters of several bytes, from right to left, emojis of
# several code points, a line end, and a text that is longer than a terminal.
TEXTS = [
    *(" ".join((WORDS * 2)[: 1 + (7 * i) % 12]) for i in range(13)),
    "Zażółć gęślą jaźń",
    "The capital 🎉 of 👨‍👩‍👧 France",
    "בירת צרפת היא פריז",
    "The capital\nof France",
    "is [1] the [[capital]] of",
    "  Paris  ",
]


@dataclass(frozen=True)
class TextRun:
    """One text alone: values (tokens, channels), and the tokenizer's offsets and tokens."""

    values: NDArray[np.float32]
    offsets: list[tuple[int, int]]
    tokens: list[str]


def run_alone(spec: str, layer: str, texts: list[str]) -> list[TextRun]:
    """Run each text alone through the model in the folder of ``spec`` (``hf:FOLDER``)."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    folder = spec.removeprefix("hf:")
    masked = "Masked" in json.loads((Path(folder) / "config.json").read_text())["architectures"][0]
    maker: Any = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    model, tokenizer = maker.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    seen: list[torch.Tensor] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        seen.append((output[0] if isinstance(output, tuple) else output)[0].clone())

    handle = model.get_submodule(layer).register_forward_hook(keep)
    runs = []
    for text in texts:
        encoding = tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
        offsets = [tuple(pair) for pair in encoding.pop("offset_mapping")[0].tolist()]
        encoding.pop("token_type_ids", None)
        with torch.no_grad():
            model(**encoding)
        names = tokenizer.convert_ids_to_tokens(encoding["input_ids"][0].tolist())
        runs.append(TextRun(seen.pop().numpy(), offsets, names))
    handle.remove()
    return runs


def write_texts(path: Path, texts: list[str]) -> str:
    """Write texts as JSON lines; return the path."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    return str(path)
