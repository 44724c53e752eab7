"""The weights of a model of transformers stay in their files: they take no memory of the process.

Pages that are mapped from a file are in the cache of the operating system, which drops them when
memory is short. What counts is the peak of anonymous memory, which cannot be dropped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from math import prod
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="anonymous memory is read from /proc"
)
MB = 10**6


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


def peak_anonymous(environment: dict[str, str], folder: Path, *options: str) -> int:
    """Capture a layer of the model in ``folder``; return the largest anonymous memory in bytes."""
    command = [sys.executable, "-m", "hookscope", "capture", f"hf:{folder}", "--no-output"]
    command += ["--layer", "model.layers.1.mlp", "--input", f"input_ids={folder}/tokens.npy"]
    peak = 0
    with subprocess.Popen(
        [*command, *options],
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        while process.poll() is None:
            peak = max(peak, _anonymous(process.pid))
            time.sleep(0.01)
        assert process.stderr is not None
        assert process.returncode == 0, process.stderr.read().decode()
    return peak


def _anonymous(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    lines = (line.split() for line in status.splitlines() if line.startswith("RssAnon"))
    return next((int(words[1]) * 1024 for words in lines), 0)  # none in a process that has ended


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("options", "limit"),
    [([], 100), (["--device-map", "auto", "--max-memory", "cpu=250MB"], 150)],
)
def test_a_capture_does_not_copy_the_weights_nor_where_memory_and_disk_share_them(
    tmp_path: Path, clean_environment: dict[str, str], options: list[str], limit: int
) -> None:
    small = write_llama(tmp_path / "small", width=512, inner=512, layers=2)
    large = write_llama(tmp_path / "large", width=1024, inner=8192, layers=7)
    assert large - small > 400 * MB
    few, many = (
        peak_anonymous(clean_environment, tmp_path / name, *options) for name in ("small", "large")
    )
    assert many - few < limit * MB


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [[], ["--verify"], ["--generate", "2"]])
def test_a_model_of_4_gb_is_captured_in_less_than_2_gb(
    tmp_path: Path, clean_environment: dict[str, str], options: list[str]
) -> None:
    folder = tmp_path / "model"
    assert write_llama(folder, width=2048, inner=16384, layers=20, files=4) > 4000 * MB
    assert peak_anonymous(clean_environment, folder, *options) < 2000 * MB
