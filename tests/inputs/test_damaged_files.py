"""Truncated and mutated files of every kind: a sentence and exit status 2, and never a hang."""

from __future__ import annotations

import io
import json
import random
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
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
from hookscope.inputs.batch import build
from hookscope.inputs.words import parse, refuse_misnamed
from hookscope.sources.layouts import clip, stack_sounds
from hookscope.sources.loaded import LoadedModel, SoundRecipe, TextRecipe
from hookscope.sources.loading import wrap

ROUNDS = 40
SECONDS = 10  # for one damaged file, of a few kilobytes


class Anything(nn.Module):
    def forward(self, *args: object, **kwargs: object) -> None: ...


def _model() -> LoadedModel:
    from dataclasses import replace

    return replace(
        wrap(Anything()),
        layout=clip(4),
        shape=(1, 3, 4, 8, 8),
        own_text=TextRecipe(lambda texts: torch.tensor([len(t) for t in texts]), "lengths"),
        own_sound=SoundRecipe(stack_sounds, 16000, "stacked"),
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


def damaged(data: bytes, rounds: int, seed: int) -> Iterator[bytes]:
    """The file cut off, with bytes changed, taken out or put in, and with long runs of one byte."""
    source = random.Random(seed)
    yield from (data[: len(data) * part // 8] for part in range(8))
    for _ in range(rounds):
        made = bytearray(data)
        for _ in range(source.choice((1, 1, 2, 8))):
            # the head matters most, and is a small part of most files
            end = source.choice((16, 64, 256, len(made)))
            at = source.randrange(max(1, min(end, len(made))))
            how = source.randrange(4)
            if how == 0:
                made[at : at + 1] = bytes([source.randrange(256)])
            elif how == 1:
                del made[at : at + source.randrange(1, 9)]
            elif how == 2:
                made[at:at] = source.randbytes(source.randrange(1, 9))
            else:
                made[at : at + 4] = bytes([source.choice((0, 0x7F, 0xFF))]) * 4
        yield bytes(made)


def judge(path: Path, data: bytes, model: LoadedModel) -> str:
    """Read a file as the command does: empty if it could be, else the sentence."""
    path.write_bytes(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            words = parse([str(path)])
            refuse_misnamed(words[0])
            build(model, str(path))
    except InputError as error:
        assert error.exit_code == 2
        assert error.message
        assert "\n" not in error.message
        return error.message
    return ""


def endure(folder: Path, name: str, rounds: int, seed: int) -> None:
    model, data = _model(), FILES[name]()
    assert judge(folder / name, data, model) == ""
    refused = 0
    for broken in damaged(data, rounds, seed):
        start = time.monotonic()
        refused += judge(folder / name, broken, model) != ""
        assert time.monotonic() - start < SECONDS
    if name != "a.txt":
        assert refused


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    endure(tmp_path, name, ROUNDS, seed=0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("name", FILES)
def test_many_damaged_files_are_refused_in_a_sentence(tmp_path: Path, name: str, seed: int) -> None:
    endure(tmp_path, name, 300, seed)


@pytest.mark.parametrize("shape", ["(99999999999, 6)", "(-4, 6)", "(2**70,)"])
def test_a_header_that_claims_too_much_costs_no_memory(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(80)
    tracemalloc.start()
    assert judge(tmp_path / "a.npy", data, _model())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000
