"""TFRecord framing: what surrounds every payload in a shard.

    uint64 length | uint32 masked CRC of the length | payload | uint32 masked CRC of the payload

All numbers are little-endian; the CRC is CRC-32C (Castagnoli), rotated and offset ("masked") so that a CRC over
data that holds CRCs stays useful.

Source: TensorFlow, ``tensorflow/core/lib/io/record_writer.h`` and ``tensorflow/core/lib/hash/crc32c.h``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import reduce
from typing import Any

import google_crc32c

from shardtrail.errors import ShardError

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
"""What framing adds to a payload."""

MAX_PAYLOAD_BYTES = 2**31 - 2**20
"""Largest payload written: protobuf refuses messages of 2 GiB, and a margin is left for readers that wrap them."""

_LENGTH = struct.Struct("<Q")
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")


def mask_crc(crc: int) -> int:
    """The masked form of a CRC-32C, as TFRecord stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(*parts: Any) -> list[Any]:
    """Header, payload and footer of one record, to be written one after the other.

    Args:
        parts: the payload, as ``bytes`` or contiguous arrays that follow one another: none is copied.

    Raises:
        ShardError: the payload is larger than ``MAX_PAYLOAD_BYTES``.
    """
    size = total_bytes(parts)
    if size > MAX_PAYLOAD_BYTES:
        raise ShardError(f"a record may hold {MAX_PAYLOAD_BYTES} bytes (got {size}); cut its sample smaller")
    length = _LENGTH.pack(size)
    header = length + _CRC.pack(mask_crc(google_crc32c.value(length)))
    return [header, *parts, _CRC.pack(mask_crc(reduce(google_crc32c.extend, parts, 0)))]


def total_bytes(parts: Iterable[Any]) -> int:
    """Bytes of ``bytes`` and arrays together."""
    return sum([len(part) if type(part) is bytes else memoryview(part).nbytes for part in parts])


def parse_header(header: bytes) -> tuple[int, int, int]:
    """Payload length, stored CRC of the length and the CRC it should have, from the 12 bytes before a payload."""
    length, stored = _HEADER.unpack(header)
    return length, stored, mask_crc(google_crc32c.value(header[: _LENGTH.size]))


def parse_footer(footer: bytes) -> int:
    """The stored masked CRC of the payload, from the 4 bytes after it."""
    stored: int = _CRC.unpack(footer)[0]
    return stored
