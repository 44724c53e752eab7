"""Audio and video with impossible headers: an error, and no memory is allocated."""

from __future__ import annotations

import io
import struct
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from PIL import Image
from torch import nn

from hookscope.errors import InputError
from hookscope.inputs import audio_input, video_input
from hookscope.inputs.batch import build_batch
from hookscope.sources.loaded import LoadedModel, SoundRecipe, clip_layout, stack_waveforms
from hookscope.sources.model_loader import wrap
from tests.damage import endure
from tests.memory import memory_below


class Anything(nn.Module):
    def forward(self, *args: object, **kwargs: object) -> None: ...


def model(rate: int = 16000) -> LoadedModel:
    heard = SoundRecipe(stack_waveforms, rate, "stacked")
    return replace(wrap(Anything()), layout=clip_layout(4), shape=(1, 3, 4, 8, 8), own_sound=heard)


def wav(channels: int, rate: int, length: int, samples: int = 64) -> bytes:
    """16-bit sound whose header claims ``length`` bytes; there are so many samples."""
    data = bytes(2 * samples)
    form = struct.pack(
        "<4sIHHIIHH", b"fmt ", 16, 1, channels, rate, rate * 2 % 2**32, 2 * channels % 2**16, 16
    )
    body = b"WAVE" + form + struct.pack("<4sI", b"data", length) + data
    return struct.pack("<4sI", b"RIFF", len(body) % 2**32) + body


ABSURD = {
    "no channels": wav(0, 8000, 128),
    "65535 channels": wav(65535, 8000, 128),
    "no rate": wav(1, 0, 128),
    "rate of 4 GHz": wav(1, 2**32 - 1, 128),
    "rate of 1 Hz": wav(1, 1, 128),
}


def read(path: Path) -> None:
    build_batch(model(), str(path))


@pytest.mark.parametrize("name", ABSURD)
def test_sound_with_an_absurd_header_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.wav"
    with memory_below(50_000_000):
        assert endure(path, [ABSURD[name]], lambda: read(path), InputError) == 1


@pytest.mark.parametrize("length", [0, 2**31, 2**32 - 1])
def test_of_sound_as_much_is_read_as_there_is(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(wav(1, 16000, length))
    with memory_below(50_000_000):
        try:
            read(path)
        except InputError as error:
            assert length == 0 and "contains no samples" in error.message


def test_many_channels_are_read_in_small_pieces(tmp_path: Path) -> None:
    values = np.linspace(-0.5, 0.5, 1000 * 512, dtype="f4").reshape(1000, 512)
    soundfile.write(tmp_path / "a.wav", values, 16000, subtype="FLOAT")
    wave, rate = audio_input.decode_audio((tmp_path / "a.wav").read_bytes(), "a.wav")
    assert rate == 16000
    assert np.allclose(wave.numpy(), values.astype("f8").mean(axis=1), atol=1e-6)


def test_a_small_file_of_long_silence_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(audio_input, "_MAX_SAMPLES", 2_000_000)
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(3_000_000, "i2"), 48000, format="FLAC")
    assert len(buffer.getvalue()) < 50_000
    (tmp_path / "a.flac").write_bytes(buffer.getvalue())
    with pytest.raises(InputError, match="has more than 2,000,000 samples"):
        read(tmp_path / "a.flac")


def test_sound_that_would_become_long_at_the_model_s_rate_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(audio_input, "_MAX_SAMPLES", 2_000_000)
    soundfile.write(tmp_path / "a.wav", np.zeros(200_000, "i2"), 1001)
    with pytest.raises(InputError, match="has more than 2,000,000 samples"):
        read(tmp_path / "a.wav")


def clip_of(width: int, height: int, frames: int) -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="avi") as file:
        stream = file.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for n in range(frames):
            picture = Image.new("RGB", (width, height), (n * 30 % 256, 0, 0))
            file.mux(stream.encode(av.VideoFrame.from_image(picture)))
        file.mux(stream.encode(None))
    return buffer.getvalue()


def test_a_video_whose_header_claims_huge_frames_is_refused(tmp_path: Path) -> None:
    data = bytearray(clip_of(64, 32, 4))
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
    (tmp_path / "a.avi").write_bytes(clip_of(64, 32, 4))
    with pytest.raises(InputError, match="has frames of 64x32, more than 2,047 pixels"):
        read(tmp_path / "a.avi")


@pytest.mark.parametrize("frames", [1, 3, 4, 9])
def test_the_frames_taken_are_evenly_spread_and_may_repeat(tmp_path: Path, frames: int) -> None:
    (tmp_path / "a.avi").write_bytes(clip_of(32, 32, frames))
    batch = build_batch(replace(model(), layout=clip_layout(4)), str(tmp_path / "a.avi"), size=8)
    reds = batch.value[0, 0].mean(dim=(1, 2)).tolist()
    wanted = [(2 * n + 1) * frames // 8 for n in range(4)]
    assert [wanted.index(place) for place in wanted] == [
        next(i for i, other in enumerate(reds) if abs(other - red) < 0.03) for red in reds
    ]
