"""Checks of one file's bytes that every layout can use. Each says what is wrong as a ``BadContent``.

band = read_tiff(content, (120, 120))
sums = band_sums(band)
"""

from __future__ import annotations

import codecs
import json
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from shardtrail.layouts.tiff import plain_pixels
from shardtrail.samples import BandSums

COMPRESSIONS: Final = {
    1: "none",
    2: "CCITT RLE",
    3: "CCITT fax 3",
    4: "CCITT fax 4",
    5: "LZW",
    6: "old JPEG",
    7: "JPEG",
    8: "DEFLATE",
    32773: "PackBits",
    32946: "DEFLATE",
    33003: "JPEG 2000",
    33005: "JPEG 2000",
    34712: "JPEG 2000",
    34887: "LERC",
    34925: "LZMA",
    34933: "PNG",
    50000: "ZSTD",
    50001: "WebP",
    50002: "JPEG XL",
    52546: "JPEG XL",
}
"""TIFF compression codes and their names."""

_PREDICTABLE: Final = {5, 8, 32946, 34925, 50000}
"""Lossless codecs that may stand behind a predictor; libtiff ignores the predictor with any other."""

_READABLE: Final = {1, 32773} | _PREDICTABLE
"""Codecs that give back the very numbers that were written."""

_INTEGERS: Final = {1: "B", 3: "H", 4: "I", 16: "Q"}
_WIDTH, _HEIGHT, _COMPRESSION, _SAMPLES, _PREDICTOR = 256, 257, 259, 277, 317
_TILE_WIDTH, _TILE_HEIGHT, _DEPTH, _TILE_DEPTH = 322, 323, 32997, 32998
_DEFAULTS: Final = {
    _COMPRESSION: 1,
    _SAMPLES: 1,
    _PREDICTOR: 1,
    _TILE_WIDTH: 0,
    _TILE_HEIGHT: 0,
    _DEPTH: 1,
    _TILE_DEPTH: 1,
}
_WANTED: Final = {_WIDTH, _HEIGHT, *_DEFAULTS}

_TILE_SIDE: Final = 4096
_PADDED_PIXELS: Final = 1 << 20
"""Tiles may decode to so many pixels, or to 16 times the image's: writers use one size of tile for images of any."""


class BadContent(ValueError):
    """What is wrong with one file's bytes.

    Attributes:
        reason: the code of docs/quarantine.md.
        detail: a sentence with expected and found values.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.reason, self.detail))


@dataclass(frozen=True, slots=True)
class TiffHeader:
    """What the first page of a TIFF says about itself."""

    height: int
    width: int
    samples: int
    """Values a pixel."""
    compression: int
    predictor: int
    pages: bool
    """Whether there is a second page."""
    tile: tuple[int, int]
    """Height and width of a tile; zeros in a TIFF of strips."""
    depth: int
    """Slices of the image, or of a tile, whichever is more: SGI's extension, which libtiff decodes."""


def tiff_header(content: bytes) -> TiffHeader:
    """Read the first directory of a TIFF or BigTIFF of either byte order.

    Raises:
        BadContent: ``empty_file``, or ``unreadable_tiff`` for anything that is not a whole TIFF directory, and for
            one with a tag twice: which of the two holds is every reader's own choice.

    Source:
        TIFF 6.0, section 2; BigTIFF as libtiff documents it.
    """
    if not content:
        raise BadContent("empty_file", "the file has no bytes")
    order = {b"II": "<", b"MM": ">"}.get(content[:2])
    if order is None:
        raise BadContent("unreadable_tiff", f"not a TIFF: starts with {content[:4]!r}")
    try:
        (version,) = struct.unpack_from(order + "H", content, 2)
        if version not in (42, 43):
            raise BadContent("unreadable_tiff", f"not a TIFF: version {version} instead of 42 or 43")
        big = version == 43
        offset_code, count_code, entry = ("Q", "Q", "HHQ8s") if big else ("I", "H", "HHI4s")
        (start,) = struct.unpack_from(order + offset_code, content, 8 if big else 4)
        (entries,) = struct.unpack_from(order + count_code, content, start)
        first = start + struct.calcsize(order + count_code)
        end = first + entries * struct.calcsize(order + entry)
        (second,) = struct.unpack_from(order + offset_code, content, end)
        tags, seen = dict(_DEFAULTS), set[int]()
        for tag, kind, _, value in struct.iter_unpack(order + entry, content[first:end]):
            if tag in seen:
                raise BadContent("unreadable_tiff", f"its directory has tag {tag} twice")
            seen.add(tag)
            if tag in _WANTED:
                (tags[tag],) = struct.unpack_from(order + _INTEGERS[kind], value)
        return TiffHeader(
            height=tags[_HEIGHT],
            width=tags[_WIDTH],
            samples=tags[_SAMPLES],
            compression=tags[_COMPRESSION],
            predictor=tags[_PREDICTOR],
            pages=bool(second),
            tile=(tags[_TILE_HEIGHT], tags[_TILE_WIDTH]),
            depth=max(tags[_DEPTH], tags[_TILE_DEPTH]),
        )
    except (struct.error, KeyError, OverflowError) as error:
        raise BadContent(
            "unreadable_tiff", f"its directory is cut off or damaged ({len(content)} bytes in the file)"
        ) from error


def read_tiff(content: bytes, shape: tuple[int, int]) -> np.ndarray:
    """Decode a TIFF of one page and one value a pixel, completely.

    Args:
        content: the file's bytes.
        shape: expected (height, width), compared before anything is decoded.

    Returns:
        [height, width] in the file's own dtype, native byte order; read-only, for it may be a view of ``content``.

    Raises:
        BadContent: ``empty_file``, ``unreadable_tiff``, ``unsupported_compression``, ``extra_pages``,
            ``unexpected_size``.
    """
    plain = plain_pixels(content, shape)
    if plain is not None:
        return plain
    header = tiff_header(content)
    if header.pages or header.samples != 1 or header.depth != 1:
        found = f"{header.samples} values a pixel" if header.samples != 1 else f"{header.depth} slices"
        found = "more than one page" if header.pages else found
        raise BadContent("extra_pages", f"expected one page with one value a pixel, found {found}")
    name = COMPRESSIONS.get(header.compression, "unknown")
    if header.compression not in _READABLE:
        raise BadContent(
            "unsupported_compression",
            f"compressed with {name} (TIFF code {header.compression}); "
            "readable: none, LZW, DEFLATE, LZMA, PackBits, ZSTD",
        )
    if header.predictor != 1 and header.compression not in _PREDICTABLE:
        raise BadContent("unsupported_compression", f"predictor {header.predictor} with {name} has no meaning")
    if (header.height, header.width) != shape:
        raise BadContent(
            "unexpected_size",
            f"expected {shape[0]} x {shape[1]} pixels, found {header.height} x {header.width}",
        )
    _check_tiles(header)
    import imagecodecs

    try:
        array = np.asarray(imagecodecs.tiff_decode(content))
    except Exception as error:  # libtiff's and the codec's failures come as several kinds
        raise BadContent("unreadable_tiff", f"cannot be decoded: {error} ({len(content)} bytes in the file)") from error
    if array.shape != shape:
        raise BadContent("unreadable_tiff", f"decodes to shape {array.shape} although its directory says {shape}")
    return array


def _check_tiles(header: TiffHeader) -> None:
    """Refuse tiles that decode to far more than the image: some KiB of them can ask for GiB of memory."""
    height, width = header.tile
    if not height and not width:
        return  # strips, of which libtiff decodes no more than the image has
    if not height or not width:
        raise BadContent("unreadable_tiff", f"its directory gives one side of the tiles only ({height} x {width})")
    padded = -(-header.height // height) * height * -(-header.width // width) * width
    if max(height, width) > _TILE_SIDE or padded > max(_PADDED_PIXELS, 16 * header.height * header.width):
        raise BadContent(
            "unreadable_tiff",
            f"tiles of {height} x {width} pixels for an image of {header.height} x {header.width}; "
            f"at most {_TILE_SIDE} a side, and {_PADDED_PIXELS} pixels or 16 times the image's, are decoded",
        )


def band_sums(array: np.ndarray) -> BandSums:
    """Count, sum, sum of squares, minimum and maximum of an array of finite numbers.

    Integers are summed exactly; floats in float64, strictly one pixel after the other, so that every
    machine gets the same bits (the order of BLAS and of pairwise sums is nobody's promise).
    """
    flat = array.ravel()
    low, high = flat.min().item(), flat.max().item()
    if np.issubdtype(flat.dtype, np.integer):
        # Squares of more than 16 bits may not fit int64 once summed; Python's integers always do.
        exact = flat.astype(np.int64 if flat.dtype.itemsize <= 2 else object)
        return BandSums(flat.size, int(exact.sum()), int(np.square(exact).sum()), low, high)
    wide = flat.astype(np.float64)
    total, squares = np.add.accumulate(wide)[-1].item(), np.add.accumulate(np.square(wide))[-1].item()
    return BandSums(flat.size, total, squares, low, high)


def check_finite(array: np.ndarray) -> None:
    """Refuse NaN and infinity.

    Raises:
        BadContent: ``non_finite``, with how many of which.
    """
    if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
        nan, infinite = int(np.isnan(array).sum()), int(np.isinf(array).sum())
        raise BadContent("non_finite", f"{nan} NaN and {infinite} infinite of {array.size} pixels")


def check_dtype(array: np.ndarray, dtype: str) -> None:
    """Refuse another dtype than the declared one: nothing is cast.

    Raises:
        BadContent: ``unexpected_dtype``, with the range found, which tells what the numbers are.
    """
    if array.dtype != np.dtype(dtype):
        raise BadContent(
            "unexpected_dtype",
            f"expected {dtype}, found {array.dtype} (minimum {array.min()}, maximum {array.max()}); nothing is cast",
        )


def decode_text(content: bytes) -> str:
    """UTF-8 text, with or without a byte-order mark.

    Raises:
        BadContent: ``empty_file``, or ``text_encoding`` with the encoding that it seems to be.
    """
    if not content:
        raise BadContent("empty_file", "the file has no bytes")
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise BadContent("text_encoding", "encoded as UTF-16 (byte-order mark), expected UTF-8")
    if b"\0" in content:
        raise BadContent("text_encoding", "holds zero bytes (UTF-16 or UTF-32, or not text), expected UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise BadContent(
            "text_encoding",
            f"not UTF-8: byte 0x{byte:02X} at offset {error.start} "
            f"(as Latin-1 it would be {chr(byte)!r}), expected UTF-8",
        ) from error


def read_json_object(content: bytes) -> dict[str, Any]:
    """A JSON object in UTF-8.

    Raises:
        BadContent: ``empty_file``, ``text_encoding``, or ``bad_json``.
    """
    text = decode_text(content)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadContent("bad_json", f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadContent("bad_json", f"expected a JSON object, found {type(value).__name__}")
    return value
