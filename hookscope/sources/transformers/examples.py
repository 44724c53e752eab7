"""What a model of transformers is called with: values that its configuration allows, from a seed.

Each input of a known name is made by a function of its own from the configuration. A model gets its
main input, the pictures that a model of text and pictures cannot do without, and the first token of
the decoder where there is one; whatever else it takes has a default of the model's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import InputError
from hookscope.sources.layouts import Layout, seeded, stack

_TOKENS, _SECOND, _FRAMES = 16, 16000, 128  # tokens, samples and frames of an example


class Inputs:
    """What the model ``module`` takes by name, and examples of it."""

    def __init__(self, module: nn.Module) -> None:
        self.main = str(module.main_input_name)
        self.config: Any = module.config
        self.names = tuple(inspect.signature(module.forward).parameters)
        self._word = type(module).__name__

    def example(self) -> dict[str, Tensor]:
        """Return keyword arguments for one call, drawn from torch's global generator.

        Raises:
            InputError: what its main input is made of is not known.
        """
        names = [self.main]
        placed = any(hasattr(self.config, name) for name in ("image_token_id", "image_token_index"))
        if "pixel_values" in self.names and self.main == "input_ids" and not placed:
            names.append("pixel_values")
        made = {name: self._make(name) for name in names}
        return self.completed(made)

    def layout(self) -> Layout:
        """How images make a call, and what a shape of the main input makes."""
        return Layout(
            self.main,
            lambda images: self.completed({"pixel_values": stack(images)}),
            lambda shape, seed: self.completed({self.main: self._make(self.main, shape, seed)}),
            "random values",
        )

    def completed(self, call: dict[str, Any]) -> dict[str, Any]:
        """Return the call with the decoder's first token, which an encoder-decoder begins with."""
        if not self.has_decoder or "decoder_input_ids" in call:
            return call
        rows = len(next(iter(call.values())))
        return {**call, "decoder_input_ids": torch.full((rows, 1), self.start)}

    @property
    def has_decoder(self) -> bool:
        """Whether a decoder runs beside an encoder, and is given tokens of its own."""
        return bool(self.config.is_encoder_decoder) and "decoder_input_ids" in self.names

    @property
    def start(self) -> int:
        """The token that a decoder begins with."""
        text = self.config.get_text_config(decoder=True)
        for owner in (self.config, text):
            for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
                found = getattr(owner, name, None)
                if isinstance(found, int):
                    return found
        return 0

    def _make(
        self, name: str, shape: Sequence[int] | None = None, seed: int | None = None
    ) -> Tensor:
        maker = _MAKERS.get(name)
        if maker is None:
            raise InputError(
                f"What {self._word} takes as {name} is not known.", "Give it as --input."
            )
        lengths, draw = maker(self.config)
        return draw(tuple(shape or lengths), None if seed is None else seeded(seed))


_Made = tuple[tuple[int, ...], Callable[[tuple[int, ...], torch.Generator | None], Tensor]]


def _normal(shape: tuple[int, ...], source: torch.Generator | None) -> Tensor:
    return torch.randn(shape, generator=source)


def _tokens(config: Any) -> _Made:
    """Tokens that stand for text: none with a meaning of its own, but for the end, if any."""
    text = config.get_text_config()
    special = {
        value
        for owner in (config, text)
        for name, value in owner.to_dict().items()
        if name.endswith(("token_id", "token_index")) and isinstance(value, int)
    }
    plain = torch.tensor([i for i in range(text.vocab_size) if i not in special] or [0])
    end = text.eos_token_id if isinstance(getattr(text, "eos_token_id", None), int) else None

    def draw(shape: tuple[int, ...], source: torch.Generator | None) -> Tensor:
        chosen = plain[torch.randint(len(plain), shape, generator=source)]
        if end is not None and 0 <= end < text.vocab_size:
            chosen[..., -1] = end
        return chosen

    places = getattr(text, "max_position_embeddings", None) or _TOKENS
    return (1, min(_TOKENS, places) if places > 0 else _TOKENS), draw  # -1 says there is no limit


def _pixels(config: Any) -> _Made:
    vision = next(
        (part for name in _VISION if (part := getattr(config, name, None)) is not None), config
    )
    size = getattr(vision, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
    frames = getattr(vision, "num_frames", None)
    return (1, *([frames] if frames else []), channels, height, width), _normal


_VISION = ("vision_config", "encoder", "backbone_config", "vision")


def _sound(config: Any) -> _Made:
    """A second of sound, or the frames of a spectrogram for a model that takes those."""
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return (1, config.max_length, config.num_mel_bins), _normal
    if getattr(config, "audio_channels", None):
        return (1, config.audio_channels, _SECOND), _normal
    return (1, _SECOND), _normal


def _features(config: Any) -> _Made:
    encoder = getattr(config, "encoder_config", None) or config
    if hasattr(encoder, "max_source_positions") and hasattr(encoder, "num_mel_bins"):
        return (1, encoder.num_mel_bins, 2 * encoder.max_source_positions), _normal
    bins = next((v for name in _BINS if (v := getattr(encoder, name, None))), 80)
    return (1, _FRAMES, bins), _normal


_BINS = ("input_feat_per_channel", "feature_projection_input_dim", "num_mel_bins")


def _series(config: Any) -> _Made:
    channels = getattr(config, "num_input_channels", None)
    return (1, config.context_length, *([channels] if channels else [])), _normal


_MAKERS: dict[str, Callable[[Any], _Made]] = {
    "input_ids": _tokens,
    "pixel_values": _pixels,
    "pixel_values_videos": _pixels,
    "input_values": _sound,
    "input_features": _features,
    "past_values": _series,
}
