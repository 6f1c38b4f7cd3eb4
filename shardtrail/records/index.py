"""The index beside a shard: one line ``offset length`` a record, of the whole framed record.

NVIDIA DALI and the ``tfrecord`` package read the same text, so a reader can start at any record.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from shardtrail.errors import ShardError
from shardtrail.records.framing import FRAME_BYTES

Span = tuple[int, int]
"""Offset and length in bytes of one framed record."""


def format_index(lengths: Iterable[int]) -> bytes:
    """The content of an index file.

    Args:
        lengths: bytes of each framed record, in file order.
    """
    lines, offset = [], 0
    for length in lengths:
        lines.append(f"{offset} {length}\n")
        offset += length
    return "".join(lines).encode("ascii")


def parse_index(content: bytes) -> list[Span]:
    """The records that an index names.

    Raises:
        ValueError: not an index, or its records do not follow one another from byte 0.
    """
    spans: list[Span] = []
    for number, line in enumerate(content.splitlines(), start=1):
        fields = line.split()
        if len(fields) != 2 or not all(field.isdigit() for field in fields):
            raise ValueError(f"line {number} is not `offset length`")
        spans.append((int(fields[0]), int(fields[1])))
    if spans and spans[0][0] != 0:
        raise ValueError(f"line 1: the first record starts at byte 0 (got {spans[0][0]})")
    for number, ((offset, length), (following, _)) in enumerate(pairwise(spans), start=2):
        if following != offset + length:
            raise ValueError(f"line {number}: the record starts at byte {offset + length} (got {following})")
    for number, (_, length) in enumerate(spans, start=1):
        if length < FRAME_BYTES:
            raise ValueError(f"line {number}: a record has at least {FRAME_BYTES} bytes (got {length})")
    return spans


def read_index(path: Path) -> list[Span]:
    """Offset and length of every record of the shard beside which ``path`` lies.

    Raises:
        ShardError: the file is absent or not an index.
    """
    try:
        return parse_index(path.read_bytes())
    except FileNotFoundError:
        raise ShardError(f"{path} does not exist; write it again: shardtrail verify --repair") from None
    except ValueError as error:
        raise ShardError(f"{path}: {error}; write it again: shardtrail verify --repair") from error
