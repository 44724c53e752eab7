"""A language model of 1 GB in a folder: capture of one layer against the same script by hand."""

from __future__ import annotations

import json
import sys
import tempfile
from math import prod
from pathlib import Path

import numpy as np

from bench.processes import HOOKSCOPE, Cost, pairs

BY_HAND = Path(__file__).with_name("transformers_by_hand.py")
LAYER = "model.layers.5.mlp"
WIDTH, INNER, LAYERS, WORDS = 1024, 8192, 10, 64
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": 8,
    "num_hidden_layers": LAYERS,
    "vocab_size": WORDS,
    "torch_dtype": "float32",
}
_LAYER = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (WIDTH, WIDTH),
    "self_attn.v_proj": (WIDTH, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
    "input_layernorm": (WIDTH,),
    "post_attention_layernorm": (WIDTH,),
}


def write_model(folder: Path) -> None:
    """Write a Llama with few words and wide layers: 1.2 GB of float32 in one file."""
    shapes: dict[str, tuple[int, ...]] = {
        f"model.layers.{n}.{name}.weight": shape
        for n in range(LAYERS)
        for name, shape in _LAYER.items()
    }
    shapes["model.embed_tokens.weight"] = shapes["lm_head.weight"] = (WORDS, WIDTH)
    shapes["model.norm.weight"] = (WIDTH,)
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * prod(shape)
        table[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    header = json.dumps(table).encode()
    block = np.random.default_rng(0).standard_normal(WIDTH * WIDTH, np.float32) / 32
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for shape in shapes.values():
            values = block if len(shape) > 1 else np.ones(WIDTH, np.float32)
            file.write(np.resize(values, shape).data)
    (folder / "config.json").write_text(json.dumps(_CONFIG))


def capturing(count: int) -> list[tuple[Cost, Cost]]:
    """Run a capture of one layer and the same by hand in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder)
        tokens = str(folder / "tokens.npy")
        np.save(tokens, np.arange(8)[None])
        ours = (*HOOKSCOPE, "capture", f"hf:{folder}", "--layer", LAYER)
        by_hand = (sys.executable, str(BY_HAND), str(folder), tokens, LAYER, "out.safetensors")
        return pairs((*ours, "--input", f"input_ids={tokens}"), by_hand, count)
