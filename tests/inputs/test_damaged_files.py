"""Truncated and mutated files of every kind: an error with exit status 2, and never a hang."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
import safetensors.numpy
import soundfile
import torch
from PIL import Image
from torch import nn

from hookscope.errors import InputError
from hookscope.inputs.batch import build_batch
from hookscope.sources.loaded import (
    LoadedModel,
    SoundRecipe,
    TextRecipe,
    clip_layout,
    stack_waveforms,
)
from hookscope.sources.model_loader import wrap
from hookscope.specs.input_spec import check_file_type, parse_inputs
from tests.damage import damaged, endure, few_or_many
from tests.memory import memory_below


class Anything(nn.Module):
    def forward(self, *args: object, **kwargs: object) -> None: ...


def _model() -> LoadedModel:
    from dataclasses import replace

    return replace(
        wrap(Anything()),
        layout=clip_layout(4),
        shape=(1, 3, 4, 8, 8),
        own_text=TextRecipe(lambda texts: torch.tensor([len(t) for t in texts]), "lengths"),
        own_sound=SoundRecipe(stack_waveforms, 16000, "stacked"),
    )


def _numpy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(24.0).reshape(4, 6))
    return buffer.getvalue()


def _archive() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.arange(24.0), b=np.ones(3))
    return buffer.getvalue()


def _torch() -> bytes:
    buffer = io.BytesIO()
    torch.save({"a": torch.arange(24.0), "b": [torch.ones(3)]}, buffer)
    return buffer.getvalue()


def _old_torch() -> bytes:
    buffer = io.BytesIO()
    torch.save(torch.arange(24.0), buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def _sound(kind: str) -> bytes:
    buffer = io.BytesIO()
    samples = np.sin(np.arange(2000) / 10).astype("f4")
    soundfile.write(buffer, samples, 8000, format=kind)
    return buffer.getvalue()


def _video(codec: str, kind: str, pixels: str) -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=kind) as file:
        stream = file.add_stream(codec, rate=8)
        stream.width, stream.height, stream.pix_fmt = 32, 32, pixels
        for n in range(8):
            picture = Image.new("RGB", (32, 32), (n * 30, 0, 0))
            file.mux(stream.encode(av.VideoFrame.from_image(picture)))
        file.mux(stream.encode(None))
    return buffer.getvalue()


def _image(kind: str) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (12, 12, 3), dtype="u1")
    Image.fromarray(noise).save(buffer, kind)
    return buffer.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "a.npy": _numpy,
    "a.npz": _archive,
    "a.pt": _torch,
    "old.pt": _old_torch,
    "a.safetensors": lambda: safetensors.numpy.save({"a": np.ones(9), "b": np.ones(3)}),
    "a.csv": lambda: b"a,b,c\n" + b"1,2.5,-3e4\n" * 9,
    "a.json": lambda: json.dumps({"x": [{"tensor": [[1, 2], [3, 4]]}], "n": 1.5}).encode(),
    "a.txt": lambda: "Grüße an alle, 你好".encode(),
    "a.wav": lambda: _sound("WAV"),
    "a.flac": lambda: _sound("FLAC"),
    "a.ogg": lambda: _sound("OGG"),
    "a.mp4": lambda: _video("mpeg4", "mp4", "yuv420p"),
    "a.mkv": lambda: _video("ffv1", "matroska", "bgr0"),
    "a.png": lambda: _image("PNG"),
    "a.jpg": lambda: _image("JPEG"),
    "a.gif": lambda: _image("GIF"),
    "a.tiff": lambda: _image("TIFF"),
}


def read(path: Path) -> None:
    """Read a file as the command does."""
    words = parse_inputs([str(path)])
    check_file_type(words[0])
    build_batch(_model(), str(path))


@pytest.mark.parametrize(("rounds", "seed"), few_or_many(40, 300))
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_in_a_sentence(
    tmp_path: Path, name: str, rounds: int, seed: int
) -> None:
    path, data = tmp_path / name, FILES[name]()
    path.write_bytes(data)
    read(path)
    refused = endure(path, damaged(data, rounds, seed), lambda: read(path), InputError)
    assert refused or name == "a.txt"


@pytest.mark.parametrize("shape", ["(99999999999, 6)", "(-4, 6)", "(2**70,)"])
def test_a_header_that_claims_too_much_costs_no_memory(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(80)
    with memory_below(10_000_000):
        assert endure(tmp_path / "a.npy", [data], lambda: read(tmp_path / "a.npy"), InputError) == 1
