"""Sound files, made mono and brought to the rate that the model is made for."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hookscope.errors import EnvironmentFault, InputError
from hookscope.files.file_types import AUDIO
from hookscope.inputs.input_reader import (
    ReadContext,
    ReadResult,
    decoding_errors,
    describe_path,
    read_bytes,
    sha256,
    tensor_entries,
    tensor_entry,
)
from hookscope.sources.layouts import stack_waveforms
from hookscope.specs.input_spec import InputSpec

_BLOCK = 1 << 20  # samples of all channels
_MOST = 100_000_000  # samples of one channel: an hour and a half at 16 kHz
_RATES = (1_000, 1_000_000)  # of sound: outside of these a header is damaged, and costs memory


def read_audio(asked: ReadContext, words: Sequence[InputSpec]) -> ReadResult:
    """Read sound files to a call value: what the model's source makes of them, else N by samples.

    Raises:
        EnvironmentFault: soundfile or scipy is not installed.
        InputError: a file is damaged, or the sounds do not make a batch.
    """
    recipe = asked.loaded.own_sound
    waves, digests, rates = [], [], []
    for word in words:
        data = read_bytes(word.path)
        wave, rate = decode_audio(data, word.path)
        if recipe:
            _check_length(word.path, len(wave) * recipe.rate // rate)
            wave = resampled(wave, rate, recipe.rate)
        waves.append(wave)
        digests.append(sha256(data))
        rates.append(rate)
    told = f"mono at {' and '.join(f'{rate} Hz' for rate in dict.fromkeys(rates))}"
    if recipe:
        value = recipe.run(waves)
        note = f"{told}, brought to {recipe.rate} Hz; {recipe.text}"
    else:
        if len(set(rates)) > 1:
            raise InputError(
                f"The sounds differ in rate: {', '.join(f'{rate} Hz' for rate in rates)}.",
                "Bring them to one rate, or say sample_rate = 16000 in the model's file.",
            )
        value = stack_waveforms(waves)
        note = f"{told} (the model does not say its rate)"
    entries = tensor_entries(value, words[0].word, digests[0])
    if len(words) > 1:
        entries = tuple(
            tensor_entry(wave, word.word, digest)
            for wave, word, digest in zip(waves, words, digests, strict=True)
        )
    return ReadResult(value, entries, note)


def decode_audio(data: bytes, path: str) -> tuple[Tensor, int]:
    """Return a file's sound as float32 of shape (samples,), from -1 to 1, and its rate in Hz.

    Several channels become their mean.
    """
    try:
        import soundfile
    except (ImportError, OSError) as exc:  # OSError: without libsndfile
        raise _missing("soundfile") from exc
    with decoding_errors(path, AUDIO), soundfile.SoundFile(io.BytesIO(data)) as file:
        rate, count = int(file.samplerate), 0
        if not _RATES[0] <= rate <= _RATES[1]:
            raise InputError(
                f"{describe_path(path)} says that it has {rate} samples a second.",
                "Convert it anew.",
            )
        blocks = []  # rather than all at once, as a damaged header may tell any length
        step = max(_BLOCK // file.channels, 1)
        while len(block := file.read(step, dtype="float32", always_2d=True)):
            count += len(block)
            _check_length(path, count)
            blocks.append(block.mean(axis=1))
    if not blocks:
        raise InputError(f"{describe_path(path)} holds no sound.", "Give a longer one.")
    return torch.from_numpy(np.concatenate(blocks)), rate


def _check_length(path: str, samples: int) -> None:
    """Raise InputError for a sound of so many samples that a small file may unpack to gigabytes."""
    if samples > _MOST:
        raise InputError(
            f"{describe_path(path)} has more than {_MOST:,} samples.",
            "Cut out the part that the model is to hear.",
        )


def resampled(wave: Tensor, rate: int, wanted: int) -> Tensor:
    """Return a waveform at another rate: scipy's polyphase filter, which cuts what would alias."""
    if rate == wanted:
        return wave
    try:
        from scipy.signal import resample_poly
    except ImportError as exc:
        raise _missing("scipy") from exc
    shared = math.gcd(rate, wanted)
    made = resample_poly(wave.numpy(), wanted // shared, rate // shared)
    return torch.from_numpy(np.ascontiguousarray(made, dtype=np.float32))


def _missing(package: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"Reading sound needs {package}, which is not installed.",
        'Install it: pip install "hookscope[audio]"',
    )
