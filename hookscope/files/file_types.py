"""What kind of file it is, told from what is in it and never from its name.

Torch-free and quick: the first bytes, a zip archive's list of names, and at most the instructions
of one pickle are looked at. Nothing is unpickled.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import zipfile
from fnmatch import fnmatchcase
from typing import BinaryIO

from hookscope.errors import InputError
from hookscope.files.pickle_scan import (
    DAMAGED_ZIP,
    MOST_INSTRUCTIONS,
    DamagedPickle,
    LongPickle,
    foreign_globals,
    list_globals,
)

EMPTY, IMAGE, TEXT = "an empty file", "an image", "a text file"
UNKNOWN = "a file of no kind that hookscope knows"
TRUNCATED_ZIP = "a damaged or cut-off zip archive"
LARGE_ARCHIVE = "an archive that unpacks to more than 1 GB beyond its own size"
CROWDED_ARCHIVE = "an archive whose list of records is longer than 32 MiB"
LONG_PICKLE = f"a pickle of more than {MOST_INSTRUCTIONS:,} instructions"
TOO_LARGE = (LARGE_ARCHIVE, CROWDED_ARCHIVE, LONG_PICKLE)
TRUNCATED_PICKLE = "a damaged or cut-off pickle"
TRUNCATED_SAFETENSORS = "a safetensors file with a damaged or cut-off header"
SCRIPT_ARCHIVE = "a TorchScript archive"
EXPORT_ARCHIVE = "a program saved by torch.export (.pt2)"
COMPILED = "a package compiled by AOTInductor"
ONNX, CHECKPOINT = "an ONNX graph", "a pickled checkpoint"
SAFETENSORS = "a safetensors file of weights"
ARRAY, ARRAYS = "an array saved by numpy (.npy)", "arrays saved by numpy (.npz)"
AUDIO, VIDEO = "a sound file", "a video file"

MODEL_FORMS = (
    "A model is a torchvision name (hookscope models lists them), FILE.py:NAME, package.module:"
    "NAME, timm:NAME, hf:FOLDER, or a scripted (.pt) or exported (.pt2) file."
)
WRITE_AGAIN = "Write or download it again."
_USE_WEIGHTS = "Name its model and give the file as weights: hookscope capture MODEL --weights {0}"
_USE_PATH = "Give it as the model, by its path: {0}"
_USE_INPUT = "Give it as the input: hookscope capture MODEL --input {0}"
_USE_SOURCE = "This version does not open such files; give the Python source: FILE.py:NAME."
_USE_UNCOMPILED = "It holds machine code and no layers; give the model that it was compiled from."
_WOULD_RUN_CODE = (
    "Opening it would run code. Save model.state_dict() instead, script or export the model, or"
    " give its source: FILE.py:NAME."
)
STORE_UNCOMPRESSED = (
    "Save it without compression, as torch.save and numpy.savez do, or in several files."
)
_SAVE_TENSORS = "Save tensors alone, and few: numbers one by one take an instruction each."
_READS_IMAGES = "Images are read as PNG, JPEG, WebP, GIF, BMP, TIFF and what else pillow knows."

_HEAD = 256
_UNPACKED = 1 << 30  # bytes that an archive may unpack to beyond its own size
_LONGEST_LISTING = 32 << 20  # bytes; about 300,000 records, which take seconds
_LONGEST_HEADER = 100_000_000  # bytes; safetensors itself refuses a longer header
_IMAGES = re.compile(
    rb"\x89PNG|\xff\xd8\xff|GIF8|BM....\0\0\0\0|II\*\0|MM\0\*|RIFF....WEBP", re.DOTALL
)
_OTHERS = {
    ARRAY: re.compile(rb"\x93NUMPY"),
    AUDIO: re.compile(rb"RIFF....WAVE|fLaC|OggS|FORM....AIF|ID3|\xff[\xfa\xfb]", re.DOTALL),
    VIDEO: re.compile(rb"....ftyp(?!avi|hei|mif|msf)|\x1a\x45\xdf\xa3|RIFF....AVI ", re.DOTALL),
}
_TEXT_IMAGES = re.compile(rb"P[1-7Ff]\s|%!PS|/\* XPM|#define|Image type|SIMPLE")
# The fields of an ONNX model that may follow its version: number and wire type in one byte or two.
_ONNX_TEXTS = {0x12, 0x1A, 0x22, 0x32, 0x3A, 0x42, 0x72, 0xA2, 0xCA}
_ONNX_NUMBERS = {0x28}


def describe_file(path: str) -> tuple[str, str]:
    """Say what the existing file ``path`` is, and how to use it where a model was asked for.

    Example:
        >>> import os, tempfile
        >>> handle, path = tempfile.mkstemp()
        >>> os.close(handle)
        >>> describe_file(path)[0]
        'an empty file'
    """
    try:
        with open(path, "rb") as file:
            return _describe(path, file)
    except OSError as exc:
        return f"a file that cannot be read ({exc.strerror})", "Check its permissions."


def describe_bytes(data: bytes) -> str:
    """Say what the content of a file is.

    Example:
        >>> describe_bytes(b"a few words")
        'a text file'
    """
    return _describe("", io.BytesIO(data))[0]


def check_is_image(path: str) -> None:
    """Raise InputError if the first bytes of ``path`` are of another kind of file than an image.

    Bytes that tell nothing are let pass, as the kinds of images are many; decoding judges them.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return
    if not _TEXT_IMAGES.match(head) and (kind := describe_file(path)[0]) not in (IMAGE, UNKNOWN):
        raise not_an_image(f"The file {path!r}", kind)


def not_an_image(called: str, kind: str = "") -> InputError:
    """Return the error about input that no image can be read from; ``kind`` tells what it is."""
    looks = f": it looks like {kind}" if kind else ""
    return InputError(f"{called} is not an image{looks}.", _READS_IMAGES)


def _describe(path: str, file: BinaryIO) -> tuple[str, str]:
    head = file.read(_HEAD)
    file.seek(0)
    if not head:
        return EMPTY, WRITE_AGAIN
    if head.startswith(b"PK"):
        return _describe_zip(path, file)
    if _IMAGES.match(head):
        return IMAGE, _USE_INPUT.format(path)
    for kind, beginning in _OTHERS.items():
        if beginning.match(head):
            return kind, _USE_INPUT.format(path)
    if head[8:9] == b"{" and head[4:8] == bytes(4):  # a header of less than 4 GB
        return _describe_safetensors(path, file)
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return _describe_pickle(path, file)
    if _is_onnx(head):
        return ONNX, _USE_SOURCE
    return TEXT if _is_text(head) else UNKNOWN, MODEL_FORMS


def _describe_zip(path: str, file: BinaryIO) -> tuple[str, str]:
    """What the names in a zip archive tell; TorchScript also holds a data.pkl, so it goes first."""
    if _length_of_listing(file) > _LONGEST_LISTING:
        return CROWDED_ARCHIVE, _SAVE_TENSORS
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            unpacked = sum(record.file_size for record in archive.infolist())
    except DAMAGED_ZIP:
        return TRUNCATED_ZIP, WRITE_AGAIN

    if unpacked > file.seek(0, os.SEEK_END) + _UNPACKED:
        return LARGE_ARCHIVE, STORE_UNCOMPRESSED

    def holds(*patterns: str) -> bool:
        every = (*patterns, *(f"*/{pattern}" for pattern in patterns))
        return any(fnmatchcase(name, pattern) for name in names for pattern in every)

    here = path if os.path.dirname(path) else os.path.join(".", path)
    if holds("code/*") and holds("data.pkl"):
        return SCRIPT_ARCHIVE, _USE_PATH.format(here)
    old = holds("serialized_exported_program.json")
    if old or (holds("models/*.json") and holds("version")):
        return EXPORT_ARCHIVE, _USE_PATH.format(here)
    if holds("data/aotinductor/*"):
        return COMPILED, _USE_UNCOMPILED
    if holds("data.pkl"):
        file.seek(0)
        return _describe_pickle(path, file, TRUNCATED_ZIP)
    if names and holds("*.npy"):
        return ARRAYS, _USE_INPUT.format(path)
    return "a zip archive with no weights in it", MODEL_FORMS


def _length_of_listing(file: BinaryIO) -> int:
    """How many bytes the end of a zip archive says that its directory has."""
    file.seek(max(file.seek(0, os.SEEK_END) - (1 << 17), 0))
    end = file.read()
    file.seek(0)
    large = end.rfind(b"PK\x06\x06")  # of the format for more than 65,535 records or 4 GB
    if large >= 0:
        return int.from_bytes(end[large + 40 : large + 48], "little")
    small = end.rfind(b"PK\x05\x06")
    return int.from_bytes(end[small + 12 : small + 16], "little") if small >= 0 else 0


def _describe_pickle(
    path: str, file: BinaryIO, otherwise: str = TRUNCATED_PICKLE
) -> tuple[str, str]:
    """A checkpoint is built of tensors and plain containers; anything else is some object."""
    try:
        objects = foreign_globals(list_globals(file))
    except LongPickle:
        return LONG_PICKLE, _SAVE_TENSORS
    except DamagedPickle:
        return otherwise, WRITE_AGAIN
    if objects:
        return f"a pickled Python object ({objects[0]})", _WOULD_RUN_CODE
    return CHECKPOINT, _USE_WEIGHTS.format(path)


def _describe_safetensors(path: str, file: BinaryIO) -> tuple[str, str]:
    """Eight bytes tell the length of a header in JSON, which tells where the tensors lie."""
    length = int.from_bytes(file.read(8), "little")
    header = file.read(length) if length <= _LONGEST_HEADER else b""
    try:
        sound = len(header) == length and isinstance(json.loads(header), dict)
    except (ValueError, RecursionError):
        sound = False
    return (
        (SAFETENSORS, _USE_WEIGHTS.format(path)) if sound else (TRUNCATED_SAFETENSORS, WRITE_AGAIN)
    )


def _is_onnx(head: bytes) -> bool:
    """Whether these are protobuf fields of an ONNX model: its version, then others of its own."""
    if len(head) < 4 or head[0] != 0x08 or not 0 < head[1] < 0x80:
        return False
    place = 2
    while place + 1 < len(head):
        tag, place = head[place], place + 1
        if tag >= 0x80:  # a field numbered over 15: the second byte of its tag is 1
            if head[place] != 1:
                return False
            place += 1
        if tag not in _ONNX_TEXTS | _ONNX_NUMBERS:
            return False
        value, shift = 0, 0
        while place < len(head):
            byte, place = head[place], place + 1
            value, shift = value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                break
        place += value if tag in _ONNX_TEXTS else 0
    return True


def _is_text(head: bytes) -> bool:
    try:  # the last character may be cut
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        return False
    return len(text) >= 4 and all(c.isprintable() or c in "\t\n\f\r" for c in text)
