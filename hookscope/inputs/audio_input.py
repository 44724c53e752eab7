"""Audio files, mixed to mono and resampled to the rate of the model."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hookscope.errors import InputError
from hookscope.files.file_types import AUDIO
from hookscope.files.optional_packages import optional_package
from hookscope.inputs.input_reader import (
    Batch,
    ReadContext,
    decoding_errors,
    describe_path,
    read_bytes,
    sha256,
    tensor_entries,
    tensor_entry,
)
from hookscope.sources.loaded import stack_waveforms
from hookscope.specs.input_spec import InputSpec

_BLOCK = 1 << 20  # samples of all channels
_MAX_SAMPLES = 100_000_000  # of one channel: an hour and a half at 16 kHz
_RATE_LIMITS = (1_000, 1_000_000)  # Hz; other rates come from damaged headers


def read_audio(context: ReadContext, specs: Sequence[InputSpec]) -> Batch:
    """Read audio files to a call value: by the recipe of the model, else of shape (N, samples)."""
    recipe = context.loaded.own_sound
    waves, digests, rates = [], [], []
    for spec in specs:
        data = read_bytes(spec.path)
        wave, rate = decode_audio(data, spec.path)
        if recipe:
            _check_length(spec.path, len(wave) * recipe.rate // rate)
            wave = resample(wave, rate, recipe.rate)
        waves.append(wave)
        digests.append(sha256(data))
        rates.append(rate)
    description = f"mono at {' and '.join(f'{rate} Hz' for rate in dict.fromkeys(rates))}"
    if recipe:
        value = recipe.run(waves)
        note = f"{description}, resampled to {recipe.rate} Hz; {recipe.text}"
    else:
        if len(set(rates)) > 1:
            raise InputError(
                f"The sample rates differ: {', '.join(f'{rate} Hz' for rate in rates)}.",
                "Resample them to one rate, or define sample_rate = 16000 in the model's file.",
            )
        value = stack_waveforms(waves)
        note = f"{description} (the model declares no sample rate)"
    entries = tensor_entries(value, specs[0].text, digests[0])
    if len(specs) > 1:
        entries = tuple(
            tensor_entry(wave, spec.text, digest)
            for wave, spec, digest in zip(waves, specs, digests, strict=True)
        )
    return Batch(value, entries, note)


def decode_audio(data: bytes, path: str) -> tuple[Tensor, int]:
    """Return the mean of a file's channels, float32 (samples,) from -1 to 1, and its rate in Hz."""
    with optional_package("soundfile", "audio", "Reading audio"):
        import soundfile
    with decoding_errors(path, AUDIO), soundfile.SoundFile(io.BytesIO(data)) as file:
        rate, count = int(file.samplerate), 0
        if not _RATE_LIMITS[0] <= rate <= _RATE_LIMITS[1]:
            raise InputError(
                f"{describe_path(path)} has an invalid sample rate: {rate} Hz.",
                "Convert it again.",
            )
        blocks = []  # a damaged header may have any length
        step = max(_BLOCK // file.channels, 1)
        while len(block := file.read(step, dtype="float32", always_2d=True)):
            count += len(block)
            _check_length(path, count)
            blocks.append(block.mean(axis=1))
    if not blocks:
        raise InputError(f"{describe_path(path)} contains no samples.", "Give a longer one.")
    return torch.from_numpy(np.concatenate(blocks)), rate


def _check_length(path: str, samples: int) -> None:
    """Raise InputError if there are too many samples: a small file may unpack to gigabytes."""
    if samples > _MAX_SAMPLES:
        raise InputError(
            f"{describe_path(path)} has more than {_MAX_SAMPLES:,} samples.",
            "Cut it to the part that the model needs.",
        )


def resample(wave: Tensor, rate: int, wanted: int) -> Tensor:
    """Return a waveform at another rate, by the polyphase filter of scipy (with anti-aliasing)."""
    if rate == wanted:
        return wave
    with optional_package("scipy", "audio", "Reading audio at another rate"):
        from scipy.signal import resample_poly
    divisor = math.gcd(rate, wanted)
    samples = resample_poly(wave.numpy(), wanted // divisor, rate // divisor)
    return torch.from_numpy(np.ascontiguousarray(samples, dtype=np.float32))
