"""Audio, video and text from files that other libraries wrote."""

from __future__ import annotations

import math
import sys
import wave
from functools import cache
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from scipy.io import wavfile

from hookscope import load_model as load
from hookscope.errors import EnvironmentFault, InputError, ModelError
from hookscope.inputs.batch import build_batch
from hookscope.sources.loaded import LoadedModel
from hookscope.sources.model_loader import wrap
from tests.refusals import refused


@cache
def anything() -> LoadedModel:
    return wrap(torch.nn.Identity())


COLORS = [(n * 8, 255 - n * 8, 60) for n in range(32)]


def model_file(folder: Path, code: str) -> LoadedModel:
    path = folder / "net.py"
    head = "import torch\nfrom torch import nn\nclass Net(nn.Identity): pass\n"
    path.write_text(head + code)
    return load(f"{path}:Net")


def tone(rate: int, seconds: float = 0.5, hertz: float = 440.0) -> np.ndarray:
    return 0.5 * np.sin(2 * math.pi * hertz * np.arange(int(rate * seconds)) / rate)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """A video of 32 frames, each of one colour, written by FFmpeg without loss."""
    path = tmp_path / "clip.mkv"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("ffv1", rate=8)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "bgr0"
        for color in COLORS:
            frame = av.VideoFrame.from_image(Image.new("RGB", (48, 32), color))
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return path


def test_sound_is_a_batch_of_samples_at_its_own_rate(tmp_path: Path) -> None:
    samples = (tone(8000) * 32767).astype("<i2")
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:  # by Python's own library
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(samples.tobytes())
    batch = build_batch(anything(), str(tmp_path / "a.wav"))
    assert batch.value.shape == (1, 4000)
    assert torch.equal(batch.value[0], torch.from_numpy(samples.astype(np.float32) / 32768))
    assert "mono at 8000 Hz" in batch.note
    assert build_batch(anything(), [str(tmp_path / "a.wav")] * 2).value.shape == (2, 4000)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg"])
def test_channels_become_their_mean(tmp_path: Path, name: str) -> None:
    left, right = tone(16000), tone(16000, hertz=880)
    soundfile.write(tmp_path / name, np.stack([left, right], 1), 16000)
    found = build_batch(anything(), str(tmp_path / name)).value[0].numpy()
    assert np.allclose(found, (left + right) / 2, atol=0.05 if name == "a.ogg" else 1e-4)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_sound_is_brought_to_the_rate_of_the_model(tmp_path: Path, rate: int) -> None:
    model = model_file(tmp_path, "sample_rate = 16000\n")
    wavfile.write(tmp_path / "a.wav", rate, tone(rate).astype(np.float32))
    batch = build_batch(model, str(tmp_path / "a.wav"))
    assert batch.value.shape == (1, 8000)
    inner = slice(400, -400)  # a filter knows nothing beyond the ends
    assert np.allclose(batch.value[0].numpy()[inner], tone(16000)[inner], atol=2e-3)
    assert f"mono at {rate} Hz, resampled to 16000 Hz" in batch.note


def test_what_would_alias_is_cut(tmp_path: Path) -> None:
    model = model_file(tmp_path, "sample_rate = 16000\n")
    wavfile.write(tmp_path / "a.wav", 48000, tone(48000, hertz=15000).astype(np.float32))
    assert build_batch(model, str(tmp_path / "a.wav")).value[0, 400:-400].abs().max() < 5e-3


def test_sounds_that_make_no_batch_are_refused(tmp_path: Path) -> None:
    for name, rate, seconds in (("a", 8000, 0.5), ("b", 8000, 0.6), ("c", 16000, 0.5)):
        wavfile.write(tmp_path / f"{name}.wav", rate, tone(rate, seconds).astype(np.float32))
    a, b, c = (str(tmp_path / f"{name}.wav") for name in "abc")
    with pytest.raises(InputError, match="4000, 4800"):
        build_batch(anything(), [a, b])
    with pytest.raises(InputError, match="8000 Hz, 16000 Hz"):
        build_batch(anything(), [a, c])


def test_what_else_a_file_calls_sample_rate_is_not_heeded(tmp_path: Path) -> None:
    wavfile.write(tmp_path / "a.wav", 8000, tone(8000).astype(np.float32))
    model = model_file(tmp_path, "def sample_rate(): return 3\n")
    assert "resampled" not in build_batch(model, str(tmp_path / "a.wav")).note


def test_a_video_becomes_as_many_frames_as_the_model_takes(clip: Path) -> None:
    model = load("r3d_18", meta=True)
    batch = build_batch(model, str(clip))
    assert batch.value.shape == (1, 3, 16, 112, 112)
    assert model.preprocess is not None
    for n in range(16):  # of 32 frames, in 16 pairs, the second of each
        expected = model.preprocess(Image.new("RGB", (48, 32), COLORS[2 * n + 1]))
        assert torch.allclose(batch.value[0, :, n], expected, atol=1e-5)
    assert "16 of 32 frames" in batch.note
    assert build_batch(model, [str(clip)] * 2).value.shape[0] == 2


def test_a_video_goes_to_a_model_whose_example_is_a_clip(clip: Path, tmp_path: Path) -> None:
    model = model_file(tmp_path, "def example_input(): return torch.zeros(1, 3, 4, 16, 24)\n")
    value = build_batch(model, str(clip)).value
    assert value.shape == (1, 3, 4, 16, 24)
    assert value[0, :, 1, 5, 5].tolist() == pytest.approx([c / 255 for c in COLORS[12]])
    longer = model_file(tmp_path, "def example_input(): return torch.zeros(1, 3, 64, 16, 24)\n")
    assert torch.equal(*(build_batch(longer, str(clip)).value[0, :, n] for n in (0, 1)))


def test_a_model_of_images_takes_no_video(clip: Path) -> None:
    with refused(InputError, "resnet18", hint="frame"):
        build_batch(load("resnet18", meta=True), str(clip))


def test_texts_go_through_the_tokenizer_of_the_models_file(tmp_path: Path) -> None:
    model = model_file(
        tmp_path,
        "def tokenize(texts):\n"
        "    width = max(map(len, texts))\n"
        "    ids = [[ord(c) for c in text.ljust(width)] for text in texts]\n"
        "    return {'input': torch.tensor(ids)}\n",
    )
    (tmp_path / "a.txt").write_bytes("\ufeffhé".encode())
    batch = build_batch(model, ["text:abc", str(tmp_path / "a.txt")])
    assert batch.value["input"].tolist() == [[97, 98, 99], [104, 233, 32]]
    assert [entry["spec"] for entry in batch.sources] == ["text:abc", str(tmp_path / "a.txt")]
    assert "tokenize() of" in batch.note
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="byte 0"):
        build_batch(model, str(tmp_path / "b.txt"))


def test_a_tokenizer_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"line 4.* KeyError"):
        build_batch(model_file(tmp_path, "def tokenize(texts): return {}['x']\n"), "text:a")
    with pytest.raises(ModelError, match="str"):
        build_batch(model_file(tmp_path, "def tokenize(texts): return 'x'\n"), "text:a")


def test_a_model_without_tokenizer_says_so() -> None:
    with refused(InputError, "tokenizer", hint="tokenize(texts)"):
        build_batch(load("resnet18", meta=True), "text:a cat")


def test_several_arguments_are_not_one(tmp_path: Path) -> None:
    model = model_file(
        tmp_path, "def tokenize(texts): return {'a': torch.ones(1), 'b': torch.ones(1)}\n"
    )
    with pytest.raises(InputError, match="'x'"):
        build_batch(model, "x=text:a")


@pytest.mark.parametrize(
    ("word", "module", "extra"),
    [
        ("a.wav", "soundfile", "audio"),
        ("a.wav", "scipy.signal", "audio"),
        ("clip.mkv", "av", "video"),
    ],
)
def test_a_missing_package_is_told_with_its_extra(
    tmp_path: Path, clip: Path, monkeypatch, word: str, module: str, extra: str
) -> None:
    wavfile.write(tmp_path / "a.wav", 8000, tone(8000).astype(np.float32))
    model = model_file(
        tmp_path, "sample_rate = 16000\ndef example_input(): return torch.zeros(1, 3, 4, 8, 8)\n"
    )
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with refused(EnvironmentFault, hint=f"hookscope[{extra}]"):
        build_batch(model, str(tmp_path / word))
