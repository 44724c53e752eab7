"""How image tensors are arranged to a model's input: batch, list, pair of frames, clip."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import InputError, is_out_of_memory

log = logging.getLogger("hookscope")


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
            lengths = "x".join(map(str, shape))
            raise InputError(
                f"An input of {lengths} does not fit into memory.", "Choose a smaller --shape."
            ) from error


def seeded_generator(seed: int) -> torch.Generator:
    """Return a new generator with this seed; the global one is not used."""
    return torch.Generator().manual_seed(seed)


def stack_images(images: Sequence[Tensor]) -> Tensor:
    """Stack images of one shape to N, C, H, W."""
    shapes = list(dict.fromkeys("x".join(map(str, image.shape)) for image in images))
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
