"""Scalars in the event files that TensorBoard reads, written without its package.

An event file is a sequence of TFRecords: the length of the data as uint64, the masked CRC-32C of
these 8 bytes as uint32, the data, and its masked CRC-32C, all in little-endian order. The data is
an ``Event`` of protocol buffers: ``wall_time`` (1, double), ``step`` (2, int64), ``file_version``
(3, string) or ``summary`` (5), which has values (1) of a ``tag`` (1, string) and a ``simple_value``
(2, float). See ``tensorboard/compat/proto`` in the sources of TensorBoard, and "TFRecords format
details" in the documentation of TensorFlow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import BinaryIO

_POLYNOMIAL = 0x82F63B78  # of CRC-32C (Castagnoli), its bits reversed
_MASK = 0xA282EAD8


def write_version(file: BinaryIO, wall_time: float) -> None:
    """Write the first event of a file."""
    _write_record(file, _double(1, wall_time) + _bytes(3, b"brain.Event:2"))


def write_scalars(
    file: BinaryIO, wall_time: float, step: int, scalars: Iterable[tuple[bytes, float]]
) -> None:
    """Write the scalars of one step, each with its tag in UTF-8, as one event."""
    values = b"".join(
        _bytes(1, _bytes(1, tag) + b"\x15" + struct.pack("<f", value)) for tag, value in scalars
    )
    _write_record(file, _double(1, wall_time) + b"\x10" + _varint(step) + _bytes(5, values))


def _write_record(file: BinaryIO, data: bytes) -> None:
    length = struct.pack("<Q", len(data))
    file.write(length + _masked_crc(length) + data + _masked_crc(data))


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + _MASK) & 0xFFFFFFFF)
