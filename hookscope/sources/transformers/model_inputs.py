"""What a model of transformers is called with: values that its configuration allows, from a seed.

Each input of a known name is made by a function of its own from the configuration. A model gets its
main input, the pictures that a model of text and pictures cannot do without, and the first token of
the decoder where there is one; whatever else it takes has a default of the model's own.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor, nn

from hookscope.errors import InputError
from hookscope.sources.layouts import Layout, seeded_generator, stack_images
from hookscope.sources.loaded import Recipe, SoundRecipe, TextRecipe
from hookscope.specs.model_spec import end_sentence

if TYPE_CHECKING:
    from PIL.Image import Image

_TOKENS, _SECOND, _FRAMES = 16, 16000, 128  # tokens, samples and frames of an example


class ModelInputs:
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
            lambda images: self.completed({"pixel_values": stack_images(images)}),
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
        return draw(tuple(shape or lengths), None if seed is None else seeded_generator(seed))


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

log = logging.getLogger("hookscope")

_PROCESSORS = ("preprocessor_config.json", "processor_config.json")

_VOCABULARIES = (
    *("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json"),
    *("spiece.model", "tokenizer.model", "sentencepiece.bpe.model"),
)

_UNLIMITED = 10**6  # a tokenizer without a limit says 1e30


def text_recipe(folder: Path, inputs: ModelInputs) -> TextRecipe | None:
    """Return what the tokenizer in ``folder`` makes of texts; None where there is none."""
    if "input_ids" not in inputs.names:
        return None
    tokenizer = _load(transformers.AutoTokenizer, folder, _VOCABULARIES)
    if tokenizer is None:
        return None
    padding = ""
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
        padding = f", padded with {tokenizer.eos_token}"

    def run(texts: Sequence[str]) -> dict[str, Any]:
        several = len(texts) > 1
        if several and tokenizer.pad_token is None:
            raise InputError(
                "The tokenizer has no token to pad texts with.", "Give the texts one by one."
            )
        found = tokenizer(list(texts), padding=several, return_tensors="pt")
        length, limit = found["input_ids"].shape[-1], tokenizer.model_max_length
        if limit < _UNLIMITED and length > limit:
            raise InputError(
                f"The text has {length} tokens, and the model takes {limit}.", "Shorten it."
            )
        if not length:
            raise InputError("The text has no tokens.", "Give at least a word.")
        return inputs.completed(_taken(found, inputs))

    return TextRecipe(run, f"{type(tokenizer).__name__} of its folder{padding}{_begins(inputs)}")


def image_recipe(folder: Path, inputs: ModelInputs) -> Recipe | None:
    """Return what the image processor in ``folder`` makes of an image; None where there is none."""
    if "pixel_values" not in inputs.names:
        return None
    processor = _load(transformers.AutoImageProcessor, folder, _PROCESSORS)
    if processor is None:
        return None
    name = type(processor).__name__

    def run(image: Image) -> Tensor:
        pixels = torch.as_tensor(processor(images=image, return_tensors="pt")["pixel_values"][0])
        if pixels.ndim != 3:
            shape = "x".join(map(str, pixels.shape))
            raise InputError(
                f"{name} makes a tensor of shape {shape} of an image, and not C, H, W.",
                "Give what the processor makes as a file of tensors.",
            )
        return pixels.to(torch.float32)

    return Recipe(run, f"{name} of its folder{_begins(inputs)}", None)


def sound_recipe(folder: Path, inputs: ModelInputs) -> SoundRecipe | None:
    """Return what the feature extractor in ``folder`` makes of sound; None where there is none."""
    if not {"input_values", "input_features"} & set(inputs.names):
        return None
    extractor = _load(transformers.AutoFeatureExtractor, folder, _PROCESSORS)
    rate = getattr(extractor, "sampling_rate", None)
    if not isinstance(rate, int):
        return None
    padding = inspect.signature(extractor.__call__).parameters.get("padding")
    pads = padding is not None and padding.default not in (False, None)

    def run(waves: Sequence[Tensor]) -> dict[str, Any]:
        options = {} if pads or len(waves) == 1 else {"padding": True}
        found = extractor(
            [wave.numpy() for wave in waves], sampling_rate=rate, return_tensors="pt", **options
        )
        return inputs.completed(_taken(found, inputs))

    return SoundRecipe(run, rate, f"{type(extractor).__name__} of its folder{_begins(inputs)}")


def _load(kind: Any, folder: Path, files: Sequence[str]) -> Any:
    """What transformers makes of the files in ``folder``; None, and a warning, if nothing."""
    if not any((folder / name).is_file() for name in files):
        return None
    try:
        return kind.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as exc:  # missing packages, damaged files, code that is not run
        why = str(exc).strip().partition("\n")[0] or type(exc).__name__
        log.warning("input: %s cannot be made of %s: %s", kind.__name__, folder, end_sentence(why))
        return None


def _taken(found: Any, inputs: ModelInputs) -> dict[str, Any]:
    """What of a processor's result the model has a parameter for."""
    return {name: value for name, value in dict(found).items() if name in inputs.names}


def _begins(inputs: ModelInputs) -> str:
    return f", the decoder begins with token {inputs.start}" if inputs.has_decoder else ""
