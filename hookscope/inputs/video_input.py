"""Short video files, of which as many frames are taken as the model's clips have."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hookscope.errors import EnvironmentFault, InputError
from hookscope.files.file_types import VIDEO
from hookscope.inputs import image_input
from hookscope.inputs.input_reader import (
    ReadContext,
    ReadResult,
    decoding_errors,
    describe_path,
    read_bytes,
    sha256,
    tensor_entry,
)
from hookscope.sources.layouts import Layout, clip_layout
from hookscope.specs.input_spec import InputSpec

if TYPE_CHECKING:
    from PIL.Image import Image

_MOST = 10_000  # frames of a file: some minutes
_PIXELS = 1 << 26  # of a frame: twice those of 8K, and 0.5 GB while one is converted


def read_video(asked: ReadContext, words: Sequence[InputSpec]) -> ReadResult:
    """Read videos to clips (N, C, T, H, W), each frame made a tensor as an image would be.

    Taken are T frames: of T equal parts of the video the frame in the middle of each.

    Raises:
        EnvironmentFault: PyAV is not installed.
        InputError: the model takes no clips, or a file is damaged, too long or without pictures.
    """
    layout = _layout(asked)
    assert layout.frames is not None
    channels, recipe = image_input.resolve_recipe(asked)
    tensors, entries, notes = [], [], []
    for word in words:
        data = read_bytes(word.path)
        mode = "RGB" if channels == 3 else "L"
        count = _count(data, word.path)
        frames = _sampled(data, word.path, layout.frames, count)
        made = [recipe.run(frame.convert(mode)) for frame in frames]
        tensors += made
        shown = layout.arrange(made)[0]
        entries.append(tensor_entry(shown, word.word, sha256(data)))
        notes.append(f"{layout.frames} of {count} frames of {word.word}")
    note = f"{', '.join(notes)}; {recipe.text}"
    return ReadResult(layout.arrange(tensors), tuple(entries), note, recipe)


def _layout(asked: ReadContext) -> Layout:
    """The clips that the model takes: as it says, or as its own example is shaped."""
    layout = asked.loaded.layout
    if layout.frames is not None:
        return layout
    expected = image_input.expected_shape(asked.loaded)
    if expected is not None and len(expected) == 5:
        return clip_layout(expected[2])
    raise InputError(
        f"{asked.loaded.word} takes no video clips (N, C, T, H, W).",
        "Take out a frame and give it as an image; or offer example_input() of a clip's shape in"
        " the model's file.",
    )


def _count(data: bytes, path: str) -> int:
    count = sum(1 for _ in _frames(data, path))
    if not count:
        raise InputError(
            f"{describe_path(path)} holds no picture.", "Give a video with pictures in it."
        )
    return count


def _sampled(data: bytes, path: str, wanted: int, count: int) -> Iterator[Image]:
    """Yield ``wanted`` of ``count`` frames, evenly spread, one in memory at a time."""
    places = [(2 * n + 1) * count // (2 * wanted) for n in range(wanted)]
    for place, frame in enumerate(_frames(data, path)):
        if place in places:
            image = frame.to_image()
            yield from [image] * places.count(place)


def _frames(data: bytes, path: str) -> Iterator[Any]:
    try:
        import av
    except ImportError as exc:
        raise EnvironmentFault(
            "Reading a video needs PyAV, which is not installed.",
            'Install it: pip install "hookscope[video]"',
        ) from exc
    with decoding_errors(path, VIDEO), av.open(io.BytesIO(data), "r") as file:
        if not file.streams.video:
            return
        codec = file.streams.video[0].codec_context
        _check_frame(path, codec.width, codec.height)
        for count, frame in enumerate(file.decode(video=0)):
            if count >= _MOST:
                raise InputError(
                    f"{describe_path(path)} has more than {_MOST:,} frames.",
                    "Cut out the part that the model is to see.",
                )
            _check_frame(path, frame.width, frame.height)
            yield frame


def _check_frame(path: str, width: int, height: int) -> None:
    if width * height > _PIXELS:
        raise InputError(
            f"{describe_path(path)} has frames of {width}x{height}, more than {_PIXELS:,} pixels.",
            "Scale it down first.",
        )
