"""Pixels of a plain TIFF where they lie in the file: no decoder, no copy.

    array = plain_pixels(content, (120, 120))
    if array is None: ...  # not plain: a decoder must read it

Plain is what remote-sensing archives hold: classic, little-endian, one page, one value a pixel, uncompressed strips
that follow one another. Whatever else a directory says, or says in another way than usual, makes a file not plain: this
module never decides that a TIFF is damaged, it only knows when there is nothing to decode.

Source:
    TIFF 6.0, sections 2 to 8 and 19 (SampleFormat).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from operator import eq
from typing import Final, NamedTuple

import numpy as np

_HEAD: Final = struct.Struct("<4sI")
"""What every classic TIFF begins with: byte order and version, then where its directory is."""

_SHORT, _LONG = 3, 4
_INTEGER: Final = {_SHORT: "H", _LONG: "I"}
_TYPE_BYTES: Final = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}

_WIDTH, _HEIGHT, _BITS, _OFFSETS, _ROWS, _COUNTS, _FORMAT = 256, 257, 258, 273, 278, 279, 339
_NUMBERS: Final = {_WIDTH, _HEIGHT, _BITS, _ROWS}
"""Tags that must be there, with one number."""

_FIXED: Final = {254: 0, 259: 1, 262: 1, 266: 1, 274: 1, 277: 1, 284: 1, 317: 1}
"""Tags that may be there with one value: full image, no compression, black is 0, high bits first, rows from the top,
one value a pixel, no planes, no predictor."""

_BESIDE: Final = {
    269,
    270,
    271,
    272,
    282,
    283,
    296,
    305,
    306,
    315,
    316,
    33432,
    33550,
    33922,
    34264,
    34735,
    34736,
    34737,
}
"""Tags of which no pixel depends: texts, resolution, GeoTIFF's places and keys."""

_GDAL: Final = {42112, 42113}
"""GDAL's metadata and its text of the no-data value."""

_PLAIN: Final = {*_NUMBERS, _OFFSETS, _COUNTS, _FORMAT, *_FIXED, *_BESIDE, *_GDAL}
_REQUIRED: Final = {*_NUMBERS, _OFFSETS, _COUNTS, 259, 262}

_DTYPES: Final = {
    (bits, code): np.dtype(f"<{kind}{bits // 8}")
    for code, kind, sizes in ((1, "u", (8, 16, 32, 64)), (2, "i", (8, 16, 32, 64)), (3, "f", (32, 64)))
    for bits in sizes
}
"""By BitsPerSample and SampleFormat."""


class _Strips(NamedTuple):
    """How the pixels are cut: ``struct`` formats of the tables of offsets and of byte counts, number of strips, bytes
    of all but the last, and of the last."""

    offsets: str
    counts: str
    number: int
    each_bytes: int
    last_bytes: int

    @property
    def all_bytes(self) -> int:
        return (self.number - 1) * self.each_bytes + self.last_bytes


class _Page(NamedTuple):
    """What a plain directory says.

    Attributes:
        shape: height and width.
        dtype: of a pixel.
        strips: how its pixels are cut.
        offsets, counts: where the tables of the strips lie in the file.
        end: bytes that the file must have for everything but the pixels.
    """

    shape: tuple[int, int]
    dtype: np.dtype
    strips: _Strips
    offsets: slice
    counts: slice
    end: int


def plain_pixels(content: bytes, shape: tuple[int, int]) -> np.ndarray | None:
    """The image of a plain TIFF.

    Args:
        content: the whole file.
        shape: expected (height, width).

    Returns:
        [height, width], read-only and not always aligned: a view of ``content`` in the file's own dtype. None where
        the file is not plain or of another shape; nothing beyond ``content`` is ever read.
    """
    if len(content) < _HEAD.size:
        return None
    magic, start = _HEAD.unpack_from(content)
    entries = int.from_bytes(content[start : start + 2], "little")
    if magic != b"II*\0" or start < _HEAD.size or entries > len(_PLAIN):
        return None
    page = _read_directory(content[start : start + 6 + 12 * entries], start)
    if page is None or page.shape != shape or page.end > len(content):
        return None
    first = _first_strip(page.strips, content[page.offsets], content[page.counts])
    if first < _HEAD.size or first + page.strips.all_bytes > len(content):
        return None
    return np.frombuffer(content, page.dtype, shape[0] * shape[1], first).reshape(shape)


@lru_cache(maxsize=256)
def _first_strip(strips: _Strips, offsets: bytes, counts: bytes) -> int:
    """Where the pixels begin if the strips follow one another and are as long as they must be; 0 otherwise."""
    first, *others = struct.unpack(strips.offsets, offsets)
    following = range(first + strips.each_bytes, first + strips.number * strips.each_bytes, strips.each_bytes)
    sizes = struct.unpack(strips.counts, counts)
    contiguous = len(others) == len(following) and all(map(eq, others, following))
    whole = sizes[-1] == strips.last_bytes and all(size == strips.each_bytes for size in sizes[:-1])
    return int(first) if contiguous and whole else 0


@lru_cache(maxsize=256)
def _read_directory(directory: bytes, start: int) -> _Page | None:
    """The page that a directory at byte ``start`` describes; None if it is not plain.

    Kept by its bytes, since those of one band are alike in a whole archive.
    """
    entries = (len(directory) - 6) // 12
    if entries < 1 or len(directory) != 6 + 12 * entries or directory[-4:] != bytes(4):
        return None  # cut off, or there is a second page
    tags: dict[int, tuple[int, int, int]] = {}
    end, last = start + len(directory), 0
    for number, (tag, kind, count, value) in enumerate(struct.iter_unpack("<HHII", directory[2:-4])):
        if tag not in _PLAIN or tag <= last or kind not in _TYPE_BYTES or count == 0:
            return None
        last, size = tag, count * _TYPE_BYTES[kind]
        place = value if size > 4 else start + 2 + 12 * number + 8
        tags[tag] = kind, count, place
        end = max(end, place + size)
    numbers: dict[int, int] = {}
    for tag in tags.keys() & (_NUMBERS | _FIXED.keys() | {_FORMAT}):
        kind, count, place = tags[tag]
        if kind not in _INTEGER or count != 1:
            return None
        (numbers[tag],) = struct.unpack_from("<" + _INTEGER[kind], directory, place - start)
    if not tags.keys() >= _REQUIRED or any(numbers.get(tag, fixed) != fixed for tag, fixed in _FIXED.items()):
        return None
    height, width, rows = numbers[_HEIGHT], numbers[_WIDTH], min(numbers[_ROWS], numbers[_HEIGHT])
    dtype = _DTYPES.get((numbers[_BITS], numbers.get(_FORMAT, 1)))
    if dtype is None or not rows or not width:
        return None
    number, row_bytes = -(-height // rows), width * dtype.itemsize
    offsets, counts = (_table(*tags[tag], number) for tag in (_OFFSETS, _COUNTS))
    if offsets is None or counts is None:
        return None
    strips = _Strips(offsets[0], counts[0], number, rows * row_bytes, (height - (number - 1) * rows) * row_bytes)
    return _Page((height, width), dtype, strips, offsets[1], counts[1], end)


def _table(kind: int, count: int, place: int, number: int) -> tuple[str, slice] | None:
    """``struct`` format and place of a table of integers, one a strip; None if it is no such table."""
    if kind not in _INTEGER or count != number:
        return None
    return f"<{count}{_INTEGER[kind]}", slice(place, place + count * _TYPE_BYTES[kind])
