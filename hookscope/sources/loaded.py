"""What every source of models returns: the module, with what is known about its input.

An input is a *call value*: a tuple has positional arguments, a dict keyword arguments, a pair
``(tuple, dict)`` both, and any other value is the only positional argument.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookscope.errors import InputError, RequestError, is_out_of_memory
from hookscope.files.hashes import BackgroundHash
from hookscope.files.words import shape_text
from hookscope.specs.literal_arguments import join_arguments
from hookscope.specs.model_spec import ModelSpec
from hookscope.specs.request import ModelRequest
from hookscope.tensors.seeding import seeded_torch

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger("hookscope")

_UNKNOWN_BYTE = "\ufffd"  # a token of a few bytes that are not a character
Size = int | tuple[int, int]
Numbers = Sequence[float] | None


@dataclass(frozen=True)
class Layout:
    """A way to arrange tensors to one call value."""

    name: str
    arrange: Callable[[Sequence[Tensor]], Any]
    noise: Callable[[tuple[int, ...], int], Any]
    distribution: str = "standard normal noise"
    frames: int | None = None

    def make_noise(self, shape: tuple[int, ...], seed: int) -> Any:
        """Return noise as a call value."""
        try:
            return self.noise(shape, seed)
        except (RuntimeError, TypeError, MemoryError) as error:  # as torch does if memory is short
            if not is_out_of_memory(error):
                raise
            lengths = shape_text(shape)
            raise InputError(
                f"An input of {lengths} does not fit into memory.", "Choose a smaller --shape."
            ) from error


def sides_of(size: Size) -> tuple[int, int]:
    """Return the height and the width of a size; one number is both."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def seeded_generator(seed: int) -> torch.Generator:
    """Return a new generator with this seed; the global one is not used."""
    return torch.Generator().manual_seed(seed)


def stack_images(images: Sequence[Tensor]) -> Tensor:
    """Stack images of one shape to N, C, H, W."""
    shapes = list(dict.fromkeys(shape_text(image.shape) for image in images))
    if len(shapes) > 1:
        raise InputError(
            f"The preprocessed images differ in shape: {', '.join(shapes)}.",
            "Use --size HxW to resize them to one size, or run them one by one.",
        )
    return torch.stack(list(images))


def stack_waveforms(waves: Sequence[Tensor]) -> Tensor:
    """Stack waveforms of one length to N by samples."""
    lengths = list(dict.fromkeys(len(wave) for wave in waves))
    if len(lengths) > 1:
        raise InputError(
            f"The waveforms differ in length: {', '.join(map(str, lengths))} samples.",
            "Cut them to one length, or run them one by one.",
        )
    return torch.stack(list(waves))


def _normal(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=seeded_generator(seed))


def _list_noise(shape: tuple[int, ...], seed: int) -> list[Tensor]:
    """Images for detectors, from 0 to 1; a shape of four lengths gives several."""
    if len(shape) not in (3, 4):
        raise InputError(
            f"A detector takes images, which do not have {len(shape)} dimensions.",
            "Use --shape CxHxW for one image, or NxCxHxW for several.",
        )
    noise = torch.rand(shape, generator=seeded_generator(seed))
    return list(noise) if len(shape) == 4 else [noise]


def _pair(images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """First and second frames; a single image is used for both, without motion."""
    if len(images) == 1:
        log.info("input: one image is used for both frames, so there is no motion")
        images = list(images) * 2
    if len(images) % 2:
        raise InputError(
            f"Optical flow takes images in pairs, but {len(images)} are given.",
            "Give the first and the second frame of each pair, or one image for both.",
        )
    return stack_images(images[0::2]), stack_images(images[1::2])


def _pair_noise(shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    generator = seeded_generator(seed)
    first, second = (torch.rand(shape, generator=generator) * 2 - 1 for _ in range(2))
    return first, second


def _clip(images: Sequence[Tensor], frames: int) -> Tensor:
    """Clips N, C, T, H, W of ``frames`` images each; a single image is repeated."""
    if len(images) == 1:
        log.info("input: one image is used for all %d frames, so there is no motion", frames)
        images = list(images) * frames
    if len(images) % frames:
        raise InputError(
            f"The model takes clips of {frames} frames, but {len(images)} images are given.",
            f"Give {frames} frames in order, or one image for the whole clip.",
        )
    batch = stack_images(images)
    return batch.reshape(-1, frames, *batch.shape[1:]).transpose(1, 2).contiguous()


BATCH = Layout("batch", stack_images, _normal)
LIST = Layout("list of images", list, _list_noise, "noise, uniform from 0 to 1,")
PAIR = Layout("pair of frames", _pair, _pair_noise, "noise, uniform from -1 to 1,")


def clip_layout(frames: int) -> Layout:
    """Return the layout of video clips of ``frames`` frames."""
    return Layout("clip", partial(_clip, frames=frames), _normal, frames=frames)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    name: Callable[[int], str]
    size: int
    special: frozenset[int] = frozenset()
    padding: int | None = None
    unknown: int | None = None

    def text(self, token: int) -> str:
        """Return a token as it stands within a text, or its name if it is part of a character."""
        if not 0 <= token < self.size:
            return f"<{token}>"
        if token in self.special:
            return self.name(token)
        # Some tokenizers leave out the space before the first word, but not before a later one.
        before = self.decode([token])
        both = self.decode([token, token])
        text = both[len(before) :] if both.startswith(before) else before
        return self.name(token) if _UNKNOWN_BYTE in text or not text else text

    def texts(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """Return the text of each token."""
        known = {token: self.text(token) for token in set(tokens)}
        return tuple(known[token] for token in tokens)

    def token(self, text: str) -> int:
        """Return the id of a text that is a single token."""
        ids = self.encode(text)
        if self.unknown in ids and text != self.name(ids[0]):
            raise InputError(f"{text!r} is not in the vocabulary.", "Give the id of a token.")
        if len(ids) == 1:
            return ids[0]
        if not ids:
            raise InputError(f"{text!r} has no tokens.", "Give a word.")
        parts = " + ".join(repr(self.text(token)) for token in ids)
        spaced = f" {text}"
        hint = "Give one of them, or its number."
        if not text.startswith(" ") and len(self.encode(spaced)) == 1:
            hint = f"{spaced!r}, with a space in front, is one token."
        raise InputError(f"{text!r} is {len(ids)} tokens: {parts}.", hint)


@dataclass(frozen=True)
class Recipe:
    """The preprocessing of images."""

    run: Callable[[Image], Tensor]
    text: str
    tuned: Callable[[Size | None, Sequence[float] | None, Sequence[float] | None], Recipe] | None


@dataclass(frozen=True)
class TextRecipe:
    """The preprocessing of texts."""

    run: Callable[[Sequence[str]], Any]
    text: str
    vocabulary: Vocabulary | None = None
    chat: Callable[[Sequence[str]], Any] | None = None
    truncate: Callable[[Sequence[str], int], Any] | None = None
    spans: Callable[[str, int | None], str] | None = None


@dataclass(frozen=True)
class SoundRecipe:
    """The preprocessing of audio."""

    run: Callable[[Sequence[Tensor]], Any]
    rate: int
    text: str


@dataclass(frozen=True)
class WeightsRequest:
    """The weights that a model is loaded with."""

    spec: str = "random"
    rename: tuple[tuple[str, str], ...] = ()
    partial: bool = False


@dataclass(frozen=True)
class LoadRequest:
    """What a source of models is asked for. A source passes over what it has no use for.

    With ``meta`` the model has no values, and only with ``inputs`` too, what its folder reads
    inputs with.
    """

    model: ModelRequest
    seed: int = 0
    meta: bool = False
    inputs: bool = False

    @property
    def spec(self) -> ModelSpec:
        """The spec of the model, parsed."""
        assert self.model.spec is not None
        return self.model.spec

    @property
    def weights(self) -> WeightsRequest:
        """The weights that the model is loaded with."""
        rename = tuple((self.model.rename or {}).items())
        return WeightsRequest(os.fspath(self.model.weights), rename, self.model.partial)

    @cached_property
    def model_args(self) -> Mapping[str, Any]:
        """The arguments in the spec, and those of the request."""
        return join_arguments(self.spec.text, self.spec.arguments, self.model.model_args)

    def refuse_arguments(self) -> None:
        """Raise RequestError for arguments of a model that is built already."""
        if self.model_args:
            raise RequestError(
                f"{self.spec.text!r} contains a model that is already built, which takes no"
                " arguments.",
                "Leave out --model-arg.",
            )

    def refuse_building(self, what: str) -> None:
        """Raise RequestError for weights, or arguments, of a file that has its own."""
        if self.weights.spec != "random" or self.model_args:
            option = "--model-arg" if self.model_args else "--weights"
            raise RequestError(
                f"{self.spec.text!r} is {what}, which has its own weights and arguments.",
                f"Leave out {option}, or give the model's source: FILE.py:NAME.",
            )


@dataclass(frozen=True)
class WeightsInfo:
    """Where the weights came from."""

    name: str
    file_hash: BackgroundHash | None = None
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    stripped: tuple[str, ...] = ()

    @property
    def blake3(self) -> str | None:
        """BLAKE3 of the file, or see ``WeightFiles.blake3``; waits for it. None without a file."""
        return self.file_hash.result() if self.file_hash else None


@dataclass(frozen=True)
class AdapterInfo:
    """An adapter that is attached to a model."""

    folder: str
    kind: str
    layers: int
    changes: bool | None
    file_hash: BackgroundHash | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the metadata. It waits for the hash."""
        return {
            "folder": self.folder,
            "type": self.kind,
            "layers": self.layers,
            "changes": self.changes,
            "blake3": self.file_hash.result() if self.file_hash else None,
        }


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run."""

    module: nn.Module
    spec: str
    name: str
    source: str
    task: str = ""
    categories: tuple[str, ...] = ()
    weights: WeightsInfo = field(default=WeightsInfo("random"))
    own_recipe: Recipe | None = None
    own_text: TextRecipe | None = None
    own_sound: SoundRecipe | None = None
    shape: tuple[int, ...] | None = None
    layout: Layout = BATCH
    min_size: int = 1
    own_example: Callable[[], Any] | None = None
    example_text: str = "example_input() of its file"
    example_spec: str = "example_input"
    packages: tuple[str, ...] = ()
    adapter: AdapterInfo | None = None

    def __repr__(self) -> str:
        kind, weights = type(self.module).__name__, self.weights.name
        return f"<LoadedModel {self.spec}: {kind}, weights: {weights}>"

    @property
    def preprocess(self) -> Callable[[Image], Tensor] | None:
        """Makes a float32 tensor C, H, W of a PIL image; None if the preprocessing is not known.

        Example:
            >>> import hookscope
            >>> from PIL import Image
            >>> model = hookscope.load_model("resnet18")
            >>> model.preprocess(Image.new("RGB", (640, 480))).shape
            torch.Size([3, 224, 224])
        """
        return self.own_recipe.run if self.own_recipe else None

    @property
    def recipe(self) -> str:
        """A description of ``preprocess``; empty if it is None."""
        return self.own_recipe.text if self.own_recipe else ""

    @property
    def example_input(self) -> Any:
        """An input of the model as a call value, the same each time: ``example(0)``."""
        return self.example(0)

    def example(self, seed: int) -> Any:
        """Return an input of the model as a call value: its file's example, or noise.

        The global random state is not changed.
        """
        if self.own_example is not None:
            with seeded_torch(seed):
                return self.own_example()
        if self.shape is None:
            raise InputError(
                f"Cannot tell what input {self.spec} expects.",
                "Give --shape (for example 1x3x224x224) for noise, or --input FILE, or define"
                " example_input() in the model's file.",
            )
        return self.layout.make_noise(self.shape, seed)

    def arrange(self, images: Sequence[Tensor]) -> Any:
        """Arrange image tensors (each C, H, W) to a call value."""
        return self.layout.arrange(images)
