"""Short video files, sampled to the number of frames that the model takes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hookscope.errors import InputError
from hookscope.files.file_types import VIDEO
from hookscope.files.optional_packages import optional_package
from hookscope.inputs import image_input
from hookscope.inputs.input_reader import (
    Batch,
    ReadContext,
    decoding_errors,
    describe_path,
    read_bytes,
    sha256,
    tensor_entry,
)
from hookscope.sources.loaded import Layout, clip_layout
from hookscope.specs.input_spec import InputSpec

if TYPE_CHECKING:
    from PIL.Image import Image

_MAX_FRAMES = 10_000  # of a file: some minutes
_MAX_PIXELS = 1 << 26  # of a frame: twice those of 8K; converting one takes 0.5 GB


def read_video(context: ReadContext, specs: Sequence[InputSpec]) -> Batch:
    """Read videos to clips (N, C, T, H, W): the middle frames of T equal parts, as images."""
    layout = _layout(context)
    assert layout.frames is not None
    channels, recipe = image_input.resolve_recipe(context)
    tensors, entries, notes = [], [], []
    for spec in specs:
        data = read_bytes(spec.path)
        mode = "RGB" if channels == 3 else "L"
        count = _count(data, spec.path)
        frames = _sample(data, spec.path, layout.frames, count)
        clip = [recipe.run(frame.convert(mode)) for frame in frames]
        tensors += clip
        entries.append(tensor_entry(layout.arrange(clip)[0], spec.text, sha256(data)))
        notes.append(f"{layout.frames} of {count} frames of {spec.text}")
    note = f"{', '.join(notes)}; {recipe.text}"
    return Batch(layout.arrange(tensors), tuple(entries), note, recipe)


def _layout(context: ReadContext) -> Layout:
    """The layout of the model's clips: its own, or one with the frames of its example."""
    layout = context.loaded.layout
    if layout.frames is not None:
        return layout
    expected = image_input.expected_shape(context.loaded)
    if expected is not None and len(expected) == 5:
        return clip_layout(expected[2])
    raise InputError(
        f"{context.loaded.spec} takes no video clips (N, C, T, H, W).",
        "Give a frame of it as an image, or define example_input() with the shape of a clip in the"
        " model's file.",
    )


def _count(data: bytes, path: str) -> int:
    count = sum(1 for _ in _frames(data, path))
    if not count:
        raise InputError(f"{describe_path(path)} contains no frames.", "Give another file.")
    return count


def _sample(data: bytes, path: str, wanted: int, count: int) -> Iterator[Image]:
    """Yield ``wanted`` of ``count`` frames at equal distances, with one frame in memory."""
    wanted_indices = [(2 * n + 1) * count // (2 * wanted) for n in range(wanted)]
    for index, frame in enumerate(_frames(data, path)):
        if index in wanted_indices:
            image = frame.to_image()
            yield from [image] * wanted_indices.count(index)


def _frames(data: bytes, path: str) -> Iterator[Any]:
    with optional_package("av", "video", "Reading a video"):
        import av
    with decoding_errors(path, VIDEO), av.open(io.BytesIO(data), "r") as file:
        if not file.streams.video:
            return
        codec = file.streams.video[0].codec_context
        _check_frame(path, codec.width, codec.height)
        for count, frame in enumerate(file.decode(video=0)):
            if count >= _MAX_FRAMES:
                raise InputError(
                    f"{describe_path(path)} has more than {_MAX_FRAMES:,} frames.",
                    "Cut it to the part that the model needs.",
                )
            _check_frame(path, frame.width, frame.height)
            yield frame


def _check_frame(path: str, width: int, height: int) -> None:
    if width * height > _MAX_PIXELS:
        raise InputError(
            f"{describe_path(path)} has frames of {width}x{height}, more than {_MAX_PIXELS:,}"
            " pixels.",
            "Scale it down first.",
        )
