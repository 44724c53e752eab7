"""Images of every kind are decoded upright, in 8 bits, as an image viewer shows them."""

from __future__ import annotations

import gc
import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hookscope.errors import InputError
from hookscope.inputs.image_decoder import decode_image
from hookscope.inputs.input_reader import read_bytes
from tests.refusals import refused

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(data: bytes, channels: int = 3) -> np.ndarray:
    return np.asarray(decode_image(data, "img", channels))


def corners() -> Image.Image:
    """Four blocks of colour, wider than tall, so that a turn shows."""
    image = Image.new("RGB", (32, 16), WHITE)
    image.paste(RED, (0, 0, 16, 8))
    image.paste(GREEN, (16, 0, 32, 8))
    image.paste(BLUE, (0, 8, 16, 16))
    return image


@pytest.mark.parametrize(
    ("kind", "options", "tolerance"),
    [
        ("PNG", {}, 0),
        ("BMP", {}, 0),
        ("TIFF", {}, 0),
        ("TIFF", {"compression": "tiff_lzw"}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("GIF", {}, 0),
        ("JPEG", {"quality": 95, "subsampling": 0}, 8),
    ],
)
def test_formats_give_the_same_picture(kind: str, options: dict, tolerance: int) -> None:
    found = pixels(encode(corners(), kind, **options)).astype(int)
    assert np.abs(found - np.asarray(corners())).max() <= tolerance


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "YCbCr"])
def test_modes_without_transparency_keep_their_colours(mode: str) -> None:
    black_and_white = Image.new("RGB", (8, 8), WHITE)
    black_and_white.paste((0, 0, 0), (0, 0, 4, 8))
    kind = "TIFF" if mode in ("CMYK", "YCbCr") else "PNG"
    found = pixels(encode(black_and_white.convert(mode), kind))
    assert np.array_equal(found, np.asarray(black_and_white))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P"])
@pytest.mark.parametrize("channels", [3, 1])
def test_what_is_transparent_shows_white(mode: str, channels: int) -> None:
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))  # black under full transparency
    image.paste((0, 0, 0, 255), (0, 0, 4, 8))
    if mode == "PA":
        indexed = Image.new("P", (8, 8), 0)
        indexed.putpalette([0, 0, 0])
        indexed.putalpha(image.getchannel("A"))
        saved = indexed
    else:
        saved = image.quantize(4) if mode == "P" else image.convert(mode)
    assert saved.mode == mode
    found = pixels(encode(saved, "TIFF" if mode == "PA" else "PNG"), channels)
    assert found[:, :4].max() == 0
    assert found[:, 4:].min() == 255
    half = pixels(encode(Image.new("RGBA", (2, 2), (0, 0, 0, 128)), "PNG"), channels)
    assert np.unique(half).tolist() == [127]


@pytest.mark.parametrize(("mode", "key"), [("RGB", (255, 0, 0)), ("L", 7)])
def test_a_transparent_colour_of_a_png_shows_white(mode: str, key: object) -> None:
    image = Image.new(mode, (4, 4), key)
    assert pixels(encode(image, "PNG", transparency=key)).min() == 255


@settings(max_examples=30)
@given(st.integers(0, 65535))
def test_sixteen_bits_are_scaled_and_not_cut_off(value: int) -> None:
    grey = Image.fromarray(np.full((2, 2), value, dtype=np.uint16))
    for kind in ("PNG", "TIFF"):
        found = pixels(encode(grey, kind), 1)
        assert np.unique(found).tolist() == [round(value / 257)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 100.0, 255.0]], np.float32), [0, 100, 255]),
        (np.array([[0.0, 32767.5, 65535.0]], np.float32), [0, 128, 255]),
        (np.array([[-1.0, 0.0, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[0, 257, 65535]], np.int32), [0, 1, 255]),
        (np.array([[0, 100000, 200000]], np.int32), [0, 128, 255]),
    ],
)
def test_wide_values_are_scaled_to_the_range_that_holds_them(
    values: np.ndarray, expected: list[int]
) -> None:
    found = pixels(encode(Image.fromarray(values), "TIFF"), 1)
    assert found[0].tolist() == expected


def test_nan_pixels_are_refused() -> None:
    data = encode(Image.fromarray(np.full((2, 2), np.nan, np.float32)), "TIFF")
    with pytest.raises(InputError, match="NaN"):
        decode_image(data, "img")


@pytest.mark.parametrize(
    ("orientation", "turn"),
    [
        (2, lambda a: a[:, ::-1]),
        (3, lambda a: a[::-1, ::-1]),
        (4, lambda a: a[::-1]),
        (5, lambda a: a.transpose(1, 0, 2)),
        (6, lambda a: np.rot90(a, -1)),
        (7, lambda a: np.rot90(a, 2).transpose(1, 0, 2)),
        (8, lambda a: np.rot90(a)),
    ],
)
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_images_are_turned_as_their_exif_says(orientation: int, turn: object, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(corners(), kind, exif=exif, **options)
    assert np.array_equal(pixels(data), turn(np.asarray(corners())))


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP"])
def test_the_first_frame_counts(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:])
    assert abs(pixels(data)[4, 4].astype(int) - RED).max() <= 3


def test_a_colour_image_becomes_grey_by_its_luminance() -> None:
    assert pixels(encode(Image.new("RGB", (2, 2), GREEN), "PNG"), 1).max() == 150


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_a_cut_off_image_is_refused(kind: str, tmp_path: Path) -> None:
    noisy = Image.effect_noise((64, 64), 100).convert("RGB")
    data = encode(noisy, kind)
    path = tmp_path / f"cut.{kind.lower()}"
    path.write_bytes(data[: len(data) // 2])
    with refused(InputError, message=str(path), status=2):
        decode_image(path.read_bytes(), str(path))


@given(st.binary(min_size=1, max_size=200))
def test_no_bytes_whatever_get_past_the_error(data: bytes) -> None:
    for start in (b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0", b"\xff\xd8\xff", b"RIFF"):
        try:
            decode_image(start + data, "-")
        except InputError as exc:
            assert exc.hint  # some random bytes do make an image


def test_bytes_come_from_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="text file"):
        decode_image(b"nothing to see", "notes.png")
    (tmp_path / "a").write_bytes(b"abc")
    assert read_bytes(str(tmp_path / "a")) == b"abc"
    with pytest.raises(InputError, match="cannot be read"):
        read_bytes(str(tmp_path))


def peak_of(work: Callable[[], object]) -> int:
    """Bytes by which the memory of this process grew at most while ``work`` ran."""

    def read(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])

    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what there is now
    before = read("VmRSS")
    work()
    return read("VmHWM") - before


needs_proc = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak of memory is read from /proc"
)
LARGE: dict[str, tuple[str, str, dict, int]] = {  # and the most bytes that a pixel takes
    "PNG with transparency": ("RGBA", "PNG", {"compress_level": 1}, 11),
    "PNG of 16 bits": ("I;16", "PNG", {"compress_level": 1}, 11),
    "GIF": ("P", "GIF", {}, 8),
    "TIFF of floats": ("F", "TIFF", {"compression": "tiff_adobe_deflate"}, 14),
    "JPEG": ("RGB", "JPEG", {}, 8),
    "WebP": ("RGBA", "WEBP", {"lossless": True, "method": 0}, 20),
}


def bomb(name: str, side: int) -> bytes:
    mode, kind, options, _ = LARGE[name]
    return encode(Image.new(mode, (side, side)), kind, **options)


@needs_proc
@pytest.mark.parametrize("name", LARGE)
def test_a_small_file_of_a_large_image_takes_little_more_than_its_pixels(name: str) -> None:
    data = bomb(name, 3000)
    decode_image(bomb(name, 8), "small")  # what is imported on the way
    assert len(data) < 1_000_000
    most = LARGE[name][-1] * 3000**2
    assert peak_of(lambda: decode_image(data, "large")) < most + 25_000_000


@needs_proc
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LARGE)
def test_the_largest_image_that_is_opened_takes_no_more_memory_than_documented(name: str) -> None:
    data = bomb(name, 13_000)
    most = 2_900_000_000 if name == "WebP" else 1_600_000_000  # docs/limits.md
    assert peak_of(lambda: decode_image(data, "large")) < most


def png(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", b""), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def gif(width: int, height: int) -> bytes:
    screen = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x4c\x01\x00;"
    return b"GIF89a" + screen + frame


def tiff(width: int, height: int) -> bytes:
    # width, height, bits of a sample, deflate, black is zero, where the strip is, its rows and size
    tags = [(256, width), (257, height), (258, 8), (259, 8), (262, 1), (273, 122), (278, height)]
    tags += [(279, 8)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    body = struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4)
    return body.ljust(122, b"\0") + zlib.compress(b"")


def webp(width: int, height: int) -> bytes:
    bits = (width - 1) | (height - 1) << 14
    data = b"\x2f" + bits.to_bytes(4, "little") + bytes(60)
    chunk = b"VP8L" + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def bmp(width: int, height: int) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return struct.pack("<2sIHHI", b"BM", 54, 0, 0, 54) + header


@needs_proc
@pytest.mark.parametrize(
    ("make", "side"),
    [(png, 60000), (gif, 65535), (tiff, 2**31 - 1), (webp, 16384), (bmp, 2**30)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_header_that_claims_gigabytes_is_refused_without_taking_them(
    make: Callable[[int, int], bytes], side: int
) -> None:
    def read() -> None:
        with pytest.raises(InputError, match="bomb"):
            decode_image(make(side, side), "bomb")

    assert peak_of(read) < 100_000_000


def test_a_program_in_postscript_is_not_run() -> None:
    page = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(InputError, match="PostScript"):
        decode_image(page, "a.png")


@pytest.mark.parametrize("mode", ["I;16", "I", "F", "RGBA", "LA", "PA"])
def test_an_image_in_several_bands_is_what_it_is_in_one(monkeypatch, mode: str) -> None:
    values = np.random.default_rng(0).integers(0, 256, (40, 30, 4), dtype=np.uint8)
    image = Image.fromarray(values, "RGBA")
    if mode in ("I;16", "I", "F"):
        numbers = values[..., 0].astype(np.uint16) * 200
        image = Image.fromarray(
            numbers if mode == "I;16" else numbers.astype({"I": "i4", "F": "f4"}[mode])
        )
    elif mode != "PA":
        image = image.convert(mode)
    else:
        image = image.quantize(9)
        image.info["transparency"] = bytes(range(0, 90, 10))
    data = encode(image, "TIFF" if mode in ("I", "F") else "PNG")
    whole = [pixels(data, channels) for channels in (1, 3)]
    monkeypatch.setattr("hookscope.inputs.image_decoder._BAND_PIXELS", 70)
    for channels, expected in zip((1, 3), whole, strict=True):
        assert np.array_equal(pixels(data, channels), expected)
