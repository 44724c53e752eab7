"""The headers of a language model of 70 billion parameters: files with holes for the values."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from bench.processes import HOOKSCOPE, Cost, pairs

BY_HAND = (sys.executable, str(Path(__file__).with_name("headers_by_hand.py")))
FILES, LAYERS = 30, 80
WIDTH, INNER, KEYS, WORDS = 8192, 28672, 1024, 128_256
_LAYER = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (KEYS, WIDTH),
    "self_attn.v_proj": (KEYS, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
    "input_layernorm": (WIDTH,),
    "post_attention_layernorm": (WIDTH,),
}


def shapes() -> dict[str, tuple[int, ...]]:
    """The names and shapes of a Llama of 70 billion parameters: 723 tensors."""
    layers = {
        f"model.layers.{n}.{name}.weight": shape
        for n in range(LAYERS)
        for name, shape in _LAYER.items()
    }
    ends = {"model.norm.weight": (WIDTH,), "lm_head.weight": (WORDS, WIDTH)}
    return {"model.embed_tokens.weight": (WORDS, WIDTH), **layers, **ends}


def write_set(folder: Path) -> None:
    """Write bfloat16 files of 141 GB in all, which take a few hundred kilobytes, and an index."""
    tensors = list(shapes().items())
    listed = {}
    for n in range(FILES):
        file = folder / f"model-{n + 1:05}-of-{FILES:05}.safetensors"
        table: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, shape in tensors[n::FILES]:
            start, end = end, end + 2 * shape[0] * (shape[1] if shape[1:] else 1)
            table[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
            listed[name] = file.name
        header = json.dumps(table).encode()
        with file.open("wb") as written:
            written.write(len(header).to_bytes(8, "little") + header)
            written.truncate(8 + len(header) + end)
    index = {"metadata": {}, "weight_map": listed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def listing(count: int) -> list[tuple[Cost, Cost]]:
    """Run ``hookscope tree FOLDER`` and the same by hand in turn."""
    with tempfile.TemporaryDirectory() as folder:
        write_set(Path(folder))
        return pairs((*HOOKSCOPE, "tree", folder), (*BY_HAND, folder), count)
