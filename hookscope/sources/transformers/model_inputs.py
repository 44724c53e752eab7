"""Inputs of a model of transformers: random examples, and files by its tokenizer and processors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor, nn

from hookscope.errors import InputError
from hookscope.files.signatures import signature_of
from hookscope.sources.loaded import Layout, Recipe, SoundRecipe, seeded_generator, stack_images
from hookscope.sources.transformers.folder_names import check_vocabularies
from hookscope.specs.model_spec import end_sentence

if TYPE_CHECKING:
    from PIL.Image import Image

_TOKENS, _SECOND, _FRAMES = 16, 16000, 128  # tokens, samples and frames of an example


class ModelInputs:
    """The inputs of the model ``module`` by name, with examples."""

    def __init__(self, module: nn.Module) -> None:
        self.main = str(module.main_input_name)
        self.config: Any = module.config
        self.names = tuple(signature_of(module.forward).parameters)
        self._name = type(module).__name__

    def example(self) -> dict[str, Tensor]:
        """Return keyword arguments for one call, drawn from torch's global generator."""
        return self._drawn()

    def _drawn(
        self, shape: tuple[int, ...] | None = None, seed: int | None = None
    ) -> dict[str, Tensor]:
        """Keyword arguments whose main input has a shape, and an image for each of its rows."""
        call = {self.main: self._make(self.main, shape, seed)}
        has_image_token = any(
            hasattr(self.config, name) for name in ("image_token_id", "image_token_index")
        )
        if "pixel_values" in self.names and self.main == "input_ids" and not has_image_token:
            image = _pixels(self.config)[0][1:]
            call["pixel_values"] = self._make("pixel_values", (len(call[self.main]), *image), seed)
        return self.completed(call)

    def as_example(self) -> dict[str, Any]:
        """Return the fields of a ``LoadedModel`` that has this example."""
        return {
            "own_example": self.example,
            "example_text": "random values that its configuration allows",
            "example_spec": "random",
        }

    def layout(self) -> Layout:
        """Return the layout of images, and of noise of a shape of the main input."""
        return Layout(
            self.main,
            lambda images: self.completed({"pixel_values": stack_images(images)}),
            self._drawn,
            "random values",
        )

    def completed(self, call: dict[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments with the decoder's first token, if there is a decoder."""
        if not self.has_decoder or "decoder_input_ids" in call:
            return call
        rows = len(next(iter(call.values())))
        return {**call, "decoder_input_ids": torch.full((rows, 1), self.start)}

    @property
    def has_decoder(self) -> bool:
        """Whether the model is an encoder-decoder with ``decoder_input_ids``."""
        return bool(self.config.is_encoder_decoder) and "decoder_input_ids" in self.names

    @property
    def start(self) -> int:
        """The first token of the decoder."""
        text = self.config.get_text_config(decoder=True)
        for owner in (self.config, text):
            for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
                token = getattr(owner, name, None)
                if isinstance(token, int):
                    return token
        return 0

    def _make(
        self, name: str, shape: Sequence[int] | None = None, seed: int | None = None
    ) -> Tensor:
        maker = _MAKERS.get(name)
        if maker is None:
            raise InputError(
                f"Cannot tell what {self._name} expects as {name}.", f"Give --input {name}=FILE."
            )
        default_shape, draw = maker(self.config)
        return draw(tuple(shape or default_shape), None if seed is None else seeded_generator(seed))


# The default shape, and a function that draws a tensor of a shape.
_Maker = tuple[tuple[int, ...], Callable[[tuple[int, ...], torch.Generator | None], Tensor]]


def _normal(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    return torch.randn(shape, generator=generator)


def _tokens(config: Any) -> _Maker:
    """Tokens without the special ones; the last one is the end token, if there is one."""
    text = config.get_text_config()
    special = {
        value
        for owner in (config, text)
        for name, value in owner.to_dict().items()
        if name.endswith(("token_id", "token_index")) and isinstance(value, int)
    }
    plain = torch.tensor([i for i in range(text.vocab_size) if i not in special] or [0])
    end = text.eos_token_id if isinstance(getattr(text, "eos_token_id", None), int) else None

    def draw(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        tokens = plain[torch.randint(len(plain), shape, generator=generator)]
        if end is not None and 0 <= end < text.vocab_size:
            tokens[..., -1] = end
        return tokens

    positions = getattr(text, "max_position_embeddings", None) or _TOKENS
    return (1, min(_TOKENS, positions) if positions > 0 else _TOKENS), draw  # -1 is no limit


def _pixels(config: Any) -> _Maker:
    vision = next(
        (part for name in _VISION if (part := getattr(config, name, None)) is not None), config
    )
    size = getattr(vision, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
    frames = getattr(vision, "num_frames", None)
    return (1, *([frames] if frames else []), channels, height, width), _normal


_VISION = ("vision_config", "encoder", "backbone_config", "vision")


def _audio(config: Any) -> _Maker:
    """A second of audio, or the frames of a spectrogram."""
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return (1, config.max_length, config.num_mel_bins), _normal
    if getattr(config, "audio_channels", None):
        return (1, config.audio_channels, _SECOND), _normal
    return (1, _SECOND), _normal


def _features(config: Any) -> _Maker:
    encoder = getattr(config, "encoder_config", None) or config
    if hasattr(encoder, "max_source_positions") and hasattr(encoder, "num_mel_bins"):
        return (1, encoder.num_mel_bins, 2 * encoder.max_source_positions), _normal
    bins = next((v for name in _BINS if (v := getattr(encoder, name, None))), 80)
    return (1, _FRAMES, bins), _normal


_BINS = ("input_feat_per_channel", "feature_projection_input_dim", "num_mel_bins")


def _series(config: Any) -> _Maker:
    channels = getattr(config, "num_input_channels", None)
    return (1, config.context_length, *([channels] if channels else [])), _normal


_MAKERS: dict[str, Callable[[Any], _Maker]] = {
    "input_ids": _tokens,
    "pixel_values": _pixels,
    "pixel_values_videos": _pixels,
    "input_values": _audio,
    "input_features": _features,
    "past_values": _series,
}

log = logging.getLogger("hookscope")

_PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def image_recipe(folder: Path, inputs: ModelInputs) -> Recipe | None:
    """Return the recipe of the image processor in ``folder``; None without one."""
    if "pixel_values" not in inputs.names:
        return None
    processor = load_processor(transformers.AutoImageProcessor, folder, _PROCESSORS)
    if processor is None:
        return None
    name = type(processor).__name__

    def run(image: Image) -> Tensor:
        pixels = torch.as_tensor(processor(images=image, return_tensors="pt")["pixel_values"][0])
        if pixels.ndim != 3:
            shape = "x".join(map(str, pixels.shape))
            raise InputError(
                f"{name} returns a tensor of shape {shape} for an image instead of C, H, W.",
                "Save the output of the processor, and give that file.",
            )
        return pixels.to(torch.float32)

    return Recipe(run, f"{name} of its folder{decoder_note(inputs)}", None)


def sound_recipe(folder: Path, inputs: ModelInputs) -> SoundRecipe | None:
    """Return the recipe of the feature extractor for audio in ``folder``; None without one."""
    if not {"input_values", "input_features"} & set(inputs.names):
        return None
    extractor = load_processor(transformers.AutoFeatureExtractor, folder, _PROCESSORS)
    rate = getattr(extractor, "sampling_rate", None)
    if not isinstance(rate, int):
        return None
    padding = signature_of(extractor.__call__).parameters.get("padding")
    pads = padding is not None and padding.default not in (False, None)

    def run(waves: Sequence[Tensor]) -> dict[str, Any]:
        options = {} if pads or len(waves) == 1 else {"padding": True}
        encoding = extractor(
            [wave.numpy() for wave in waves], sampling_rate=rate, return_tensors="pt", **options
        )
        return inputs.completed(accepted(encoding, inputs))

    return SoundRecipe(run, rate, f"{type(extractor).__name__} of its folder{decoder_note(inputs)}")


def load_processor(auto_class: Any, folder: Path, files: Sequence[str]) -> Any:
    """Return the processor in ``folder``; None, with a warning, if it cannot be loaded."""
    if not any((folder / name).is_file() for name in files):
        return None
    check_vocabularies(folder)
    try:
        return auto_class.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as exc:  # a missing package, a damaged file, code that is not run
        why = str(exc).strip().partition("\n")[0] or type(exc).__name__
        log.warning(
            "input: %s cannot be loaded from %s: %s", auto_class.__name__, folder, end_sentence(why)
        )
        return None


def accepted(encoding: Any, inputs: ModelInputs) -> dict[str, Any]:
    """Return the values of a processor's result that the model has a parameter for."""
    return {name: value for name, value in dict(encoding).items() if name in inputs.names}


def decoder_note(inputs: ModelInputs) -> str:
    """Return what a description of a recipe says of the decoder."""
    return f", decoder start token {inputs.start}" if inputs.has_decoder else ""
