"""Language models with large weights in files that take no room: the values are holes, so zero."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import numpy as np


def write_llama(folder: Path, *, width: int, inner: int, layers: int, files: int = 2) -> int:
    """Write a Llama of 64 words in bfloat16, in several files with an index; return its bytes."""
    folder.mkdir(exist_ok=True)
    square, tall, row = (width, width), (inner, width), (width,)
    layer = {
        **{f"self_attn.{name}_proj": square for name in "qkvo"},
        **{"mlp.gate_proj": tall, "mlp.up_proj": tall, "mlp.down_proj": (width, inner)},
        **{"input_layernorm": row, "post_attention_layernorm": row},
    }
    shapes: dict[str, tuple[int, ...]] = {
        f"model.layers.{n}.{name}.weight": shape
        for n in range(layers)
        for name, shape in layer.items()
    }
    shapes |= {"model.embed_tokens.weight": (64, width), "lm_head.weight": (64, width)}
    shapes |= {"model.norm.weight": row}
    holders: dict[str, str] = {}
    for number in range(files):
        file = folder / f"model-{number}.safetensors"
        table: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, shape in list(shapes.items())[number::files]:
            start, end = end, end + 2 * prod(shape)
            table[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
            holders[name] = file.name
        header = json.dumps(table).encode()
        with file.open("wb") as written:
            written.write(len(header).to_bytes(8, "little") + header)
            written.truncate(8 + len(header) + end)
    index = {"metadata": {}, "weight_map": holders}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16"},
        **{"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers},
        **{"num_attention_heads": 8, "vocab_size": 64},
    }
    (folder / "config.json").write_text(json.dumps(config))
    np.save(folder / "tokens.npy", np.arange(8)[None])
    return sum(2 * prod(shape) for shape in shapes.values())
