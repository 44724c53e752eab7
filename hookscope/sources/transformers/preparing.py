"""Files of the user's into what a model takes, by the tokenizer and processors in its folder."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor

from hookscope.errors import InputError
from hookscope.sources.loaded import Recipe, SoundRecipe, TextRecipe
from hookscope.sources.transformers.examples import Inputs
from hookscope.specs.model import ended

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger("hookscope")

_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_VOCABULARIES = (
    *("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json"),
    *("spiece.model", "tokenizer.model", "sentencepiece.bpe.model"),
)
_UNLIMITED = 10**6  # a tokenizer without a limit says 1e30


def text_recipe(folder: Path, inputs: Inputs) -> TextRecipe | None:
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


def image_recipe(folder: Path, inputs: Inputs) -> Recipe | None:
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


def sound_recipe(folder: Path, inputs: Inputs) -> SoundRecipe | None:
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
        log.warning("input: %s cannot be made of %s: %s", kind.__name__, folder, ended(why))
        return None


def _taken(found: Any, inputs: Inputs) -> dict[str, Any]:
    """What of a processor's result the model has a parameter for."""
    return {name: value for name, value in dict(found).items() if name in inputs.names}


def _begins(inputs: Inputs) -> str:
    return f", the decoder begins with token {inputs.start}" if inputs.has_decoder else ""
