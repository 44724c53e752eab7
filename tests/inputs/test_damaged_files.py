"""Damaged files and impossible headers: an error with exit status 2, no hang, bounded memory."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
import safetensors.numpy
import soundfile
import torch
from PIL import Image

from hookscope.errors import InputError
from hookscope.inputs import audio_input, video_input
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
from tests.zoo.specimen import Module


def _model() -> LoadedModel:
    return replace(
        wrap(Module(lambda self, *args, **kwargs: None)),
        layout=clip_layout(4),
        shape=(1, 3, 4, 8, 8),
        own_text=TextRecipe(lambda texts: torch.tensor([len(t) for t in texts]), "lengths"),
        own_sound=SoundRecipe(stack_waveforms, 16000, "stacked"),
    )


def written(write: Callable[[io.BytesIO], object]) -> Callable[[], bytes]:
    """The bytes that a library writes."""

    def make() -> bytes:
        buffer = io.BytesIO()
        write(buffer)
        return buffer.getvalue()

    return make


def clip(file: io.BytesIO, codec: str, kind: str, pixels: str, frames: int = 8, width: int = 32):
    """A video whose frames are of one red each."""
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=8)
        stream.width, stream.height, stream.pix_fmt = width, 32, pixels
        for n in range(frames):
            picture = Image.new("RGB", (width, 32), (n * 30 % 256, 0, 0))
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode(None))


def avi(width: int, frames: int) -> bytes:
    return written(lambda file: clip(file, "mpeg4", "avi", "yuv420p", frames, width))()


def numbers() -> np.ndarray:
    return np.arange(24.0).reshape(4, 6)


def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (12, 12, 3), dtype="u1"))


def sound() -> np.ndarray:
    return np.sin(np.arange(2000) / 10).astype("f4")


TENSORS = {"a": torch.arange(24.0), "b": [torch.ones(3)]}
FILES: dict[str, Callable[[], bytes]] = {
    "a.npy": written(lambda file: np.save(file, numbers())),
    "a.npz": written(lambda file: np.savez_compressed(file, a=numbers(), b=np.ones(3))),
    "a.pt": written(lambda file: torch.save(TENSORS, file)),
    "old.pt": written(
        lambda file: torch.save(TENSORS["a"], file, _use_new_zipfile_serialization=False)
    ),
    "a.safetensors": lambda: safetensors.numpy.save({"a": np.ones(9), "b": np.ones(3)}),
    "a.csv": lambda: b"a,b,c\n" + b"1,2.5,-3e4\n" * 9,
    "a.json": lambda: json.dumps({"x": [{"tensor": [[1, 2], [3, 4]]}], "n": 1.5}).encode(),
    "a.txt": lambda: "Grüße an alle, 你好".encode(),
    "a.wav": written(lambda file: soundfile.write(file, sound(), 8000, format="WAV")),
    "a.flac": written(lambda file: soundfile.write(file, sound(), 8000, format="FLAC")),
    "a.ogg": written(lambda file: soundfile.write(file, sound(), 8000, format="OGG")),
    "a.mp4": written(lambda file: clip(file, "mpeg4", "mp4", "yuv420p")),
    "a.mkv": written(lambda file: clip(file, "ffv1", "matroska", "bgr0")),
    "a.png": written(lambda file: noise().save(file, "PNG")),
    "a.jpg": written(lambda file: noise().save(file, "JPEG")),
    "a.gif": written(lambda file: noise().save(file, "GIF")),
    "a.tiff": written(lambda file: noise().save(file, "TIFF")),
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


def wav(channels: int, rate: int, length: int, samples: int = 64) -> bytes:
    """16-bit sound whose header claims ``length`` bytes; there are so many samples."""
    data = bytes(2 * samples)
    form = struct.pack(
        "<4sIHHIIHH", b"fmt ", 16, 1, channels, rate, rate * 2 % 2**32, 2 * channels % 2**16, 16
    )
    body = b"WAVE" + form + struct.pack("<4sI", b"data", length) + data
    return struct.pack("<4sI", b"RIFF", len(body) % 2**32) + body


ABSURD = {"no channels": (0, 8000), "65535 channels": (65535, 8000), "no rate": (1, 0)}
ABSURD |= {"rate of 4 GHz": (1, 2**32 - 1), "rate of 1 Hz": (1, 1)}


@pytest.mark.parametrize("name", ABSURD)
def test_sound_with_an_absurd_header_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.wav"
    with memory_below(50_000_000):
        assert endure(path, [wav(*ABSURD[name], 128)], lambda: read(path), InputError) == 1


@pytest.mark.parametrize("length", [0, 2**31, 2**32 - 1])
def test_of_sound_as_much_is_read_as_there_is(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(wav(1, 16000, length))
    with memory_below(50_000_000):
        try:
            read(path)
        except InputError as error:
            assert length == 0 and "no samples" in error.message


def test_many_channels_are_read_in_small_pieces(tmp_path: Path) -> None:
    values = np.linspace(-0.5, 0.5, 1000 * 512, dtype="f4").reshape(1000, 512)
    soundfile.write(tmp_path / "a.wav", values, 16000, subtype="FLOAT")
    wave, rate = audio_input.decode_audio((tmp_path / "a.wav").read_bytes(), "a.wav")
    assert rate == 16000
    assert np.allclose(wave.numpy(), values.astype("f8").mean(axis=1), atol=1e-6)


# At its own rate, and at the model's.
LONG = {"flac": (3_000_000, 48000), "wav": (200_000, 1001)}


@pytest.mark.parametrize("kind", LONG)
def test_sound_that_is_or_would_become_long_is_refused(tmp_path: Path, monkeypatch, kind) -> None:
    monkeypatch.setattr(audio_input, "_MAX_SAMPLES", 2_000_000)
    (samples, rate), path = LONG[kind], tmp_path / f"a.{kind}"
    soundfile.write(path, np.zeros(samples, "i2"), rate)
    assert path.stat().st_size < 500_000
    with pytest.raises(InputError, match="2,000,000 samples"):
        read(path)


def test_a_video_whose_header_claims_huge_frames_is_refused(tmp_path: Path) -> None:
    data = bytearray(avi(64, 4))
    at = data.index(b"strf") + 8  # the header of a bitmap: its size, width and height follow
    contents = []
    for width, height in ((16000, 16000), (2**31 - 1, 2**31 - 1), (-1, -1), (0, 0)):
        struct.pack_into("<ii", data, at + 4, width, height)
        contents.append(bytes(data))
    path = tmp_path / "a.avi"
    with memory_below(50_000_000):
        endure(path, contents, lambda: read(path), InputError)


def test_a_video_of_large_frames_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(video_input, "_MAX_PIXELS", 64 * 32 - 1)
    (tmp_path / "a.avi").write_bytes(avi(64, 4))
    with pytest.raises(InputError, match=r"64x32.* 2,047 pixels"):
        read(tmp_path / "a.avi")


@pytest.mark.parametrize("frames", [1, 3, 4, 9])
def test_the_frames_taken_are_evenly_spread_and_may_repeat(tmp_path: Path, frames: int) -> None:
    (tmp_path / "a.avi").write_bytes(avi(32, frames))
    batch = build_batch(_model(), str(tmp_path / "a.avi"), size=8)
    reds = batch.value[0, 0].mean(dim=(1, 2)).tolist()
    wanted = [(2 * n + 1) * frames // 8 for n in range(4)]
    assert [wanted.index(place) for place in wanted] == [
        next(i for i, other in enumerate(reds) if abs(other - red) < 0.03) for red in reds
    ]
