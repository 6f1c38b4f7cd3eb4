"""Plain TIFFs where they lie: the decoder's very pixels, or none; never a byte from beyond the file."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
import rasterio
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from rasterio import Affine

from shardtrail.layouts.checks import BadContent, read_tiff
from shardtrail.layouts.tiff import plain_pixels

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")
SHAPE = (12, 10)


def pixels(shape: tuple[int, ...] = SHAPE, dtype: str = "uint16", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)


def by_tifffile(array: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, array, **options)
    return file.getvalue()


def by_gdal(path: Path, array: np.ndarray, **options: Any) -> bytes:
    height, width = array.shape
    profile = {"count": 1, "dtype": array.dtype, "crs": "EPSG:32633", "transform": Affine(10, 0, 5e5, 0, -10, 5e6)}
    with rasterio.open(path, "w", driver="GTiff", height=height, width=width, **profile, **options) as file:
        file.write(array, 1)
        file.update_tags(TIFFTAG_SOFTWARE="a writer")
    return path.read_bytes()


def assert_same_or_left(content: bytes, shape: tuple[int, int]) -> None:
    """Either not plain, or what libtiff gives, within the file."""
    plain = plain_pixels(content, shape)
    if plain is not None:
        decoded = imagecodecs.tiff_decode(content)
        assert decoded.shape == plain.shape
        assert decoded.dtype == plain.dtype
        assert decoded.tobytes() == plain.tobytes()
        whole = np.frombuffer(content, np.uint8)
        start = plain.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        assert 8 <= start <= len(content) - plain.nbytes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5, 12])
def test_plain_files_are_not_decoded(dtype, rows):
    """One strip or several, the last one shorter, of any type: the pixels are a view of the file."""
    array = pixels(dtype=dtype)
    content = by_tifffile(array, rowsperstrip=rows)
    plain = plain_pixels(content, SHAPE)
    assert plain is not None
    assert plain.base is not None
    assert np.array_equal(plain, array)
    assert_same_or_left(content, SHAPE)


def test_what_gdal_writes_for_archives_is_plain(tmp_path):
    """Georeferenced patches with texts and no-data value, as remote-sensing archives hold them."""
    for dtype, options in (("uint16", {"blockysize": 4, "nodata": 0}), ("float32", {"blockysize": 12})):
        array = pixels(dtype=dtype)
        content = by_gdal(tmp_path / f"{dtype}.tif", array, **options)
        plain = plain_pixels(content, SHAPE)
        assert plain is not None
        assert np.array_equal(plain, array)
        assert_same_or_left(content, SHAPE)


@pytest.mark.parametrize(
    "options",
    [
        {"byteorder": ">"},
        {"bigtiff": True},
        {"tile": (16, 16)},
        {"compression": "zlib"},
        {"compression": "lzw"},
        {"compression": "packbits"},
        {"compression": "zlib", "predictor": True},
    ],
)
def test_everything_else_is_left_to_the_decoder(options):
    """Another byte order, tiles, compression, predictors, BigTIFF: no view, but the same pixels."""
    array = pixels()
    content = by_tifffile(array, **options)
    assert plain_pixels(content, SHAPE) is None
    assert np.array_equal(read_tiff(content, SHAPE), array)


def test_other_images_are_left_to_the_decoder():
    """Two pages, several values a pixel, white as 0, another size than asked for."""
    for content in (
        by_tifffile(pixels((2, *SHAPE)), photometric="minisblack"),
        by_tifffile(pixels((*SHAPE, 3), "uint8"), photometric="rgb"),
        by_tifffile(pixels((3, *SHAPE), "uint8"), photometric="rgb", planarconfig="separate"),
        by_tifffile(pixels(dtype="uint8"), photometric="miniswhite"),
    ):
        assert plain_pixels(content, SHAPE) is None
    assert plain_pixels(by_tifffile(pixels()), (10, 12)) is None


layouts = st.fixed_dictionaries(
    {
        "rowsperstrip": st.integers(1, 14),
        "byteorder": st.sampled_from("<<<>"),
        "bigtiff": st.sampled_from([False, False, False, True]),
        "compression": st.sampled_from([None, None, None, "zlib", "lzw", "packbits"]),
        "photometric": st.sampled_from(["minisblack", "minisblack", "miniswhite"]),
        "description": st.text(st.characters(max_codepoint=126, min_codepoint=32), max_size=40),
        "software": st.sampled_from(["", "x", "a longer name"]),
        "resolution": st.sampled_from([None, (72, 72)]),
    }
)
shapes = st.tuples(st.integers(1, 14), st.integers(1, 14))


@given(st.data(), layouts, shapes, st.sampled_from(DTYPES))
def test_any_writable_tiff_gives_the_decoders_pixels(data, layout, shape, dtype):
    """Whatever tifffile can write: the same bits as libtiff's, or left to it."""
    content = by_tifffile(pixels(shape, dtype), **layout)
    assert_same_or_left(content, shape)
    assert plain_pixels(content, data.draw(shapes.filter(lambda other: other != shape))) is None


@given(
    st.integers(1, 12),
    st.lists(
        st.tuples(st.integers(0, 400), st.sampled_from("BHI"), st.integers(0, 2**32 - 1) | st.integers(0, 300)),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 600),
)
def test_no_damage_gives_pixels_of_its_own(rows, changes, cut):
    """Numbers anywhere in header, directory and tables, files cut short: refused, left, or the decoder's pixels.

    Offsets beyond the file, strips that overlap, counts of billions: nothing beyond the file's bytes is looked at.
    """
    content = bytearray(by_tifffile(pixels(), rowsperstrip=rows, software="a longer name"))
    for place, code, value in changes:
        size = struct.calcsize(code)
        content[place : place + size] = struct.pack(f"<{code}", value % 256**size)
    damaged = bytes(content[: len(content) - cut]) if cut < 300 else bytes(content)
    plain = plain_pixels(damaged, SHAPE)
    if plain is not None:
        assert_same_or_left(damaged, SHAPE)
    else:
        try:
            assert read_tiff(damaged, SHAPE).shape == SHAPE
        except BadContent as bad:
            assert bad.detail


@given(st.binary(max_size=300))
def test_any_bytes_are_no_plain_tiff_or_one(content):
    """Neither random bytes nor random directories raise."""
    assert_same_or_left(content, SHAPE)
    assert_same_or_left(b"II*\0\x08\0\0\0" + content, SHAPE)
