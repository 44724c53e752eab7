"""The type of a file, from its content and never from its name. Nothing is unpickled."""

from __future__ import annotations

import codecs
import io
import os
import re
import zipfile
from fnmatch import fnmatchcase
from typing import IO, BinaryIO

from hookscope.errors import InputError
from hookscope.files.pickle_scan import (
    DAMAGED_ZIP,
    MOST_INSTRUCTIONS,
    DamagedPickle,
    LargePickle,
    LongPickle,
    foreign_globals,
    list_globals,
)
from hookscope.files.safetensors_header import header_in
from hookscope.files.shell_words import quote_word

EMPTY, IMAGE, TEXT = "an empty file", "an image", "a text file"
UNKNOWN = "a file of unknown type"
TRUNCATED_ZIP = "a damaged or cut-off zip archive"
LARGE_ARCHIVE = "an archive that unpacks to more than 1 GB beyond its own size"
CROWDED_ARCHIVE = "an archive whose list of records is longer than 32 MiB"
LONG_PICKLE = f"a pickle of more than {MOST_INSTRUCTIONS:,} instructions"
LARGE_PICKLE = "a pickle of more than 64 MiB, or with a value that is said to be so long"
TOO_LARGE = (LARGE_ARCHIVE, CROWDED_ARCHIVE, LONG_PICKLE, LARGE_PICKLE)
DAMAGED_RECORD = "a zip archive with a damaged pickle in it"
TRUNCATED_PICKLE = "a damaged or cut-off pickle"
TRUNCATED_SAFETENSORS = "a safetensors file with a damaged or cut-off header"
SCRIPT_ARCHIVE = "a TorchScript archive"
EXPORT_ARCHIVE = "a program saved by torch.export (.pt2)"
COMPILED = "a package compiled by AOTInductor"
ONNX, CHECKPOINT = "an ONNX file", "a pickled checkpoint"
SAFETENSORS = "a safetensors file of weights"
ARRAY, ARRAYS = "an array saved by numpy (.npy)", "arrays saved by numpy (.npz)"
GGUF = "a GGUF file of weights"
AUDIO, VIDEO = "an audio file", "a video file"

MODEL_FORMS = (
    "A model is a torchvision name (hookscope models lists them), FILE.py:NAME, package.module:"
    "NAME, timm:NAME, hf:FOLDER, or a scripted (.pt), exported (.pt2) or ONNX (.onnx) file."
)
WEIGHT_FORMS = (
    "Weights are read from .safetensors, .pth, .pt, .bin, .ckpt, .npz, .npy and .gguf files."
)
WRITE_AGAIN = "Write or download it again."
_USE_WEIGHTS = "Use it as the weights of a model: hookscope capture MODEL --weights {0}"
_USE_TREE = "List its tensors: hookscope tree {0}"
_USE_PATH = "Use its path as the model: {0}"
_USE_INPUT = "Use it as the input: hookscope capture MODEL --input {0}"
_USE_UNCOMPILED = (
    "It contains machine code and no layers. Give the model that it was compiled from."
)
_WOULD_RUN_CODE = (
    "Opening it would run code. Save model.state_dict() instead, script or export the model, or"
    " give its source: FILE.py:NAME."
)
STORE_UNCOMPRESSED = (
    "Save it without compression, as torch.save and numpy.savez do, or in several files."
)
SAVE_WEIGHTS = "Save only the weights: torch.save(model.state_dict(), FILE)."
_SAVE_TENSORS = "Save tensors instead of single numbers, and fewer of them."
_READS_IMAGES = "Supported formats: PNG, JPEG, WebP, GIF, BMP, TIFF and others that pillow reads."

GGUF_MAGIC = b"GGUF"
_PICKLED_OBJECT = "a pickled Python object"
_HEAD = 256
_UNPACKED = 1 << 30  # bytes that an archive may unpack to beyond its own size
_LONGEST_DIRECTORY = 32 << 20  # bytes; about 300,000 records, which take seconds
_IMAGES = re.compile(
    rb"\x89PNG|\xff\xd8\xff|GIF8|BM....\0\0\0\0|II\*\0|MM\0\*|RIFF....WEBP", re.DOTALL
)
_OTHERS = {
    ARRAY: re.compile(rb"\x93NUMPY"),
    AUDIO: re.compile(rb"RIFF....WAVE|fLaC|OggS|FORM....AIF|ID3|\xff[\xfa\xfb]", re.DOTALL),
    VIDEO: re.compile(rb"....ftyp(?!avi|hei|mif|msf)|\x1a\x45\xdf\xa3|RIFF....AVI ", re.DOTALL),
}
_TEXT_IMAGES = re.compile(rb"P[1-7Ff]\s|%!PS|/\* XPM|#define|Image type|SIMPLE")
# The fields of an ONNX model that may follow its version: field number and wire type.
_ONNX_TEXTS = {0x12, 0x1A, 0x22, 0x32, 0x3A, 0x42, 0x72, 0xA2, 0xCA}
_ONNX_NUMBERS = {0x28}


def describe_file(path: str) -> tuple[str, str]:
    """Return what the existing file ``path`` is, and a hint how to use it if it is not a model."""
    try:
        with open(path, "rb") as file:
            return _describe(path, file)
    except OSError as exc:
        return f"a file that cannot be read ({exc.strerror})", "Check its permissions."


def begins_as_safetensors(path: str) -> bool:
    """Whether a file begins with the length of a header of safetensors, and a brace."""
    try:
        with open(path, "rb") as file:
            return _is_safetensors(file.read(9))
    except OSError:
        return False


def is_pickled_object(kind: str) -> bool:
    """Whether a type of file that ``describe_file`` returned is a pickle with Python objects."""
    return kind.startswith(_PICKLED_OBJECT)


def describe_bytes(data: bytes) -> str:
    """Return what the content of a file is."""
    return _describe("", io.BytesIO(data))[0]


def check_is_image(path: str) -> None:
    """Raise InputError if ``path`` is not an image; unknown bytes may be one of many formats."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return
    if not _TEXT_IMAGES.match(head) and (kind := describe_file(path)[0]) not in (IMAGE, UNKNOWN):
        raise not_an_image(f"The file {path!r}", kind)


def not_an_image(name: str, kind: str = "") -> InputError:
    """Return the error for an input that is not an image; ``kind`` is what it is instead."""
    detected = f": it looks like {kind}" if kind else ""
    return InputError(f"{name} is not an image{detected}.", _READS_IMAGES)


def _describe(path: str, file: BinaryIO) -> tuple[str, str]:
    head = file.read(_HEAD)
    file.seek(0)
    if not head:
        return EMPTY, WRITE_AGAIN
    if head.startswith(b"PK"):
        return _describe_zip(path, file)
    if _IMAGES.match(head):
        return IMAGE, _USE_INPUT.format(quote_word(path))
    for kind, beginning in _OTHERS.items():
        if beginning.match(head):
            return kind, _USE_INPUT.format(quote_word(path))
    if head.startswith(GGUF_MAGIC):
        return GGUF, _USE_TREE.format(quote_word(path))
    if _is_safetensors(head):
        return _describe_safetensors(path, file)
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return _describe_pickle(path, file)
    if _is_onnx(head):
        return ONNX, _USE_PATH.format(quote_word(_typed(path)))
    return TEXT if _is_text(head) else UNKNOWN, MODEL_FORMS


def _typed(path: str) -> str:
    """A path as it is typed as a model: with its folder, or it could be the name of a model."""
    return path if os.path.dirname(path) else os.path.join(".", path)


def _describe_zip(path: str, file: BinaryIO) -> tuple[str, str]:
    """The type of a zip archive by its names. TorchScript, which has a data.pkl too, goes first."""
    names, kind, hint = _zip_names(file)
    if kind:
        return kind, hint

    def has(pattern: str) -> bool:
        patterns = (pattern, f"*/{pattern}")
        return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

    typed_path = _typed(path)
    if has("code/*") and has("data.pkl"):
        return SCRIPT_ARCHIVE, _USE_PATH.format(quote_word(typed_path))
    old_export = has("serialized_exported_program.json")
    if old_export or (has("models/*.json") and has("version")):
        return EXPORT_ARCHIVE, _USE_PATH.format(quote_word(typed_path))
    if has("data/aotinductor/*"):
        return COMPILED, _USE_UNCOMPILED
    if has("data.pkl"):
        file.seek(0)
        return _describe_pickle(path, file, DAMAGED_RECORD)
    if names and has("*.npy"):
        return ARRAYS, _USE_INPUT.format(quote_word(path))
    return "a zip archive with no weights in it", MODEL_FORMS


def check_zip(path: str) -> tuple[str, str]:
    """Return what makes the zip archive ``path`` unreadable, with a hint; empty if nothing does."""
    with open(path, "rb") as file:
        _, kind, hint = _zip_names(file)
    return kind, hint


def _zip_names(file: BinaryIO) -> tuple[list[str], str, str]:
    """The names of an archive's records, and what makes it unreadable, with a hint."""
    if is_crowded(file):
        return [], CROWDED_ARCHIVE, _SAVE_TENSORS
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            unpacked = sum(record.file_size for record in archive.infolist())
    except DAMAGED_ZIP:
        return [], TRUNCATED_ZIP, WRITE_AGAIN
    if unpacked > file.seek(0, os.SEEK_END) + _UNPACKED:
        return [], LARGE_ARCHIVE, STORE_UNCOMPRESSED
    return names, "", ""


def is_crowded(file: IO[bytes]) -> bool:
    """Whether a zip archive lists so many records that the list takes seconds to read."""
    return _directory_length(file) > _LONGEST_DIRECTORY


def _directory_length(file: IO[bytes]) -> int:
    """The length of a zip archive's directory in bytes, as its end record says."""
    file.seek(max(file.seek(0, os.SEEK_END) - (1 << 17), 0))
    end = file.read()
    file.seek(0)
    zip64 = end.rfind(b"PK\x06\x06")  # the format for more than 65,535 records or 4 GB
    if zip64 >= 0:
        return int.from_bytes(end[zip64 + 40 : zip64 + 48], "little")
    record = end.rfind(b"PK\x05\x06")
    return int.from_bytes(end[record + 12 : record + 16], "little") if record >= 0 else 0


def _describe_pickle(
    path: str, file: BinaryIO, otherwise: str = TRUNCATED_PICKLE
) -> tuple[str, str]:
    """A checkpoint is built of tensors and plain containers; anything else is some object."""
    try:
        objects = foreign_globals(list_globals(file))
    except LargePickle:
        return LARGE_PICKLE, _SAVE_TENSORS
    except LongPickle:
        return LONG_PICKLE, _SAVE_TENSORS
    except DamagedPickle:
        return otherwise, WRITE_AGAIN
    if objects:
        return f"{_PICKLED_OBJECT} ({objects[0]})", _WOULD_RUN_CODE
    return CHECKPOINT, _USE_WEIGHTS.format(quote_word(path))


def _is_safetensors(head: bytes) -> bool:
    return head[8:9] == b"{" and head[4:8] == bytes(4)  # a header of less than 4 GB


def _describe_safetensors(path: str, file: BinaryIO) -> tuple[str, str]:
    try:
        header_in(file)
    except ValueError:
        return TRUNCATED_SAFETENSORS, WRITE_AGAIN
    return SAFETENSORS, _USE_WEIGHTS.format(quote_word(path))


def _is_onnx(head: bytes) -> bool:
    """Whether these are protobuf fields of an ONNX model: its version, then its other fields."""
    if len(head) < 4 or head[0] != 0x08 or not 0 < head[1] < 0x80:
        return False
    position = 2
    while position + 1 < len(head):
        tag, position = head[position], position + 1
        if tag >= 0x80:  # a field number over 15: the second byte of its tag is 1
            if head[position] != 1:
                return False
            position += 1
        if tag not in _ONNX_TEXTS | _ONNX_NUMBERS:
            return False
        value, shift = 0, 0
        while position < len(head):
            byte, position = head[position], position + 1
            value, shift = value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                break
        position += value if tag in _ONNX_TEXTS else 0
    return True


def _is_text(head: bytes) -> bool:
    try:  # the last character may be cut
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        return False
    return len(text) >= 4 and all(c.isprintable() or c in "\t\n\f\r" for c in text)
