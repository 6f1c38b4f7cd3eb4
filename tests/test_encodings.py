"""Encodings of arrays: whatever a record stores, who reads it gets the same bits."""

from __future__ import annotations

import hashlib
import io
import zlib
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import imagecodecs
import numpy as np
import pytest
from builds import build_all, new_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardtrail.errors import ConfigError
from shardtrail.inspect import inspect_record
from shardtrail.job import Job
from shardtrail.records.compression import compress, decompress
from shardtrail.records.example import ENCODINGS, decode_example, encode_example, encode_sample
from shardtrail.records.features import Declared, RecordCheck
from shardtrail.sample_data import make_sample_data
from shardtrail.samples import Feature, Schema
from shardtrail.sharding.verify import verify

pytest_plugins = ["build_fixtures"]

DTYPES = ["uint8", "int8", "uint16", "int16", "float16", "int32", "float32", "int64", "float64"]

FLOATS = np.array(
    [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00001, 0x7FA00000, 0x00000001, 0x7F7FFFFF], "u4"
)
"""Zeros of both signs, infinities, a quiet and a signalling NaN with payloads, the smallest and the largest number."""

SCHEMA = Schema(
    (
        Feature("bytes", "uint8", (2, 2, 2)),
        Feature("counts", "uint16", (3, 1)),
        Feature("floats", "float32", (8,)),
        Feature("none", "uint16", (0, 4)),
        Feature("one", "float32", ()),
    ),
    ("note",),
    ("a", "b"),
)

ARRAYS: dict[str, Any] = {
    "bytes": np.array([0, 255, 1, 254, 127, 128, 7, 0], np.uint8).reshape(2, 2, 2),
    "counts": np.array([[0], [65535], [256]], np.uint16),
    "floats": FLOATS.view(np.float32),
    "none": np.empty((0, 4), np.uint16),
    "one": np.array(-0.0, np.float32),
}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_compression_loses_no_bit(data: st.DataObject) -> None:
    """Arrays of any number type and shape come back bit for bit, NaN payloads and negative zeros too, as do those of
    the other byte order and with gaps in memory."""
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9))
    bits = data.draw(hnp.arrays(f"u{dtype.itemsize}", shape))
    array = bits.view(dtype)
    again = decompress(compress(array), dtype.name, shape)
    assert (again.dtype, again.shape, again.tobytes()) == (dtype, shape, array.tobytes())
    swapped = bits.byteswap().view(dtype.newbyteorder(">"))
    assert compress(swapped) == compress(array) == compress(np.asfortranarray(array))


def test_a_stored_array_is_zlib_of_its_planes_of_bytes() -> None:
    """Any zlib reads it: first the low bytes of all items, then the high ones."""
    array = np.array([[0x0102, 0x0304], [0x0506, 0x0708]], np.uint16)
    assert zlib.decompress(compress(array)) == bytes([2, 4, 6, 8, 1, 3, 5, 7])


def test_compressed_bytes_are_pinned() -> None:
    """The same array gives the bytes it always gave; if this fails, shards would change under their names, so raise
    ENCODING_VERSION with the digest here."""
    rows = np.arange(120, dtype=np.uint32)[:, None]
    counts = ((rows * rows.T + 7 * rows) % 4099).astype(np.uint16)
    decibels = (counts.astype(np.float32) / 64 - 30).astype(np.float32)
    found = [hashlib.md5(compress(array)).hexdigest() for array in (counts.astype(np.uint8), counts, decibels)]
    assert found == PINNED


PINNED = [
    "7a2fbbe2c849217095bac1c9a03425b3",
    "354e35b81b8c78e8cb29ec4eb8581ef1",
    "727d65fe63b50a06fc38d7ae6dbb5801",
]


@pytest.mark.parametrize("content", [b"", b"no stream", zlib.compress(bytes(7)), zlib.compress(bytes(9)), b"\x78\x5e"])
def test_what_does_not_inflate_to_the_array_is_refused(content: bytes) -> None:
    """Neither rubbish nor a stream of more or fewer bytes is taken for an array."""
    with pytest.raises(ValueError, match="8 bytes"):
        decompress(content, "uint16", (2, 2))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_tensorflow_reads_the_same_bits(encoding: str) -> None:
    """The reading pipeline gives every array as it was written, extremes and NaN payloads included, whatever the
    encoding, and zeros for padding."""
    import tensorflow as tf

    from shardtrail.reading.pipeline import Parser

    record = encode_sample(SCHEMA, encoding, "s", [1], ["n"], ARRAYS)
    parser = Parser(SCHEMA.features, 2, encoding)
    batches = tf.data.Dataset.from_tensor_slices([[record, record], [record, parser.padding()]]).batch(2).map(parser)
    (batch,) = list(batches)
    for name, array in ARRAYS.items():
        found = batch.bands[name].numpy()
        assert (found.dtype, found.shape) == (array.dtype, (2, 2, *array.shape))
        assert all(one.tobytes() == array.tobytes() for one in (found[0, 0], found[0, 1], found[1, 0]))
        assert not found[1, 1].any()
    assert batch.weight.numpy().tolist() == [[1, 1], [1, 0]]


@pytest.mark.parametrize("dtype", sorted(set(DTYPES) - {"float16"}))
def test_every_number_type_is_inflated_in_the_graph(dtype: str) -> None:
    """Random bits of any number type come out of the pipeline as they went in."""
    import tensorflow as tf

    from shardtrail.reading.pipeline import Parser

    size = np.dtype(dtype).itemsize
    bits = np.random.default_rng(1).integers(0, 256, (5, 3, size), np.uint8)
    array = bits.view(dtype).reshape(5, 3)
    schema = Schema((Feature("x", dtype, (5, 3)),), (), ())
    record = encode_sample(schema, "zlib", "s", [], [], {"x": array})
    parsed = Parser(schema.features, 0, "zlib")(tf.constant([record]))
    assert parsed.bands["x"].numpy().tobytes() == array.tobytes()


def test_what_cannot_be_compressed_is_refused_at_once() -> None:
    """A feature that is no plain number names the encoding that takes it."""
    schema = Schema((Feature("x", "complex128", (2,)),), (), ())
    with pytest.raises(ConfigError, match=r"feature x: complex128 .*shard\.encoding: raw"):
        encode_sample(schema, "zlib", "s", [], [], {"x": np.zeros(2, np.complex128)})


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_check_of_records_knows_every_encoding(encoding: str) -> None:
    """A record as written has no fault; one with an array of another size has one, which names feature and type."""
    check = RecordCheck(Declared(SCHEMA, encoding))
    record = encode_sample(SCHEMA, encoding, "s", [1], ["n"], ARRAYS)
    assert check(record) == (b"s", ())
    other = Schema(
        (*SCHEMA.features[:1], Feature("counts", "uint16", (4, 1)), *SCHEMA.features[2:]), ("note",), ("a", "b")
    )
    larger = encode_sample(other, encoding, "s", [1], ["n"], {**ARRAYS, "counts": np.ones((4, 1), np.uint16)})
    (problem,) = check(larger)[1]
    assert problem.startswith("feature counts ")
    assert "uint16[3, 1]" in problem


def test_a_stream_that_is_none_is_found() -> None:
    """A compressed array whose bytes are rubbish under a right checksum is a fault of its record."""
    values = {name: found for name, found in decode_example(_record("zlib")).items() if found is not None}
    problems = RecordCheck(Declared(SCHEMA, "zlib"))(encode_example({**values, "floats": [b"rubbish"]}))[1]
    assert len(problems) == 1
    assert problems[0].startswith("feature floats is not float32[8]: it does not inflate to 32 bytes")


def _record(encoding: str) -> bytes:
    return encode_sample(SCHEMA, encoding, "s", [1], ["n"], ARRAYS)


@pytest.fixture(scope="module")
def in_all(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    """The same patches built in every encoding."""
    root = tmp_path_factory.mktemp("encodings")
    make_sample_data(root / "patches", samples=8, broken=0, workers=1)
    jobs = {encoding: new_folder(root / encoding, root / "patches", encoding) for encoding in ENCODINGS}
    for job in jobs.values():
        build_all(job)
    return jobs


def test_datasets_of_all_encodings_read_alike(in_all: dict[str, Job]) -> None:
    """The same raw files, built in each encoding, give the same samples, labels and bits in the same order."""
    from shardtrail.reading.pipeline import open_dataset

    read = {}
    for encoding, job in in_all.items():
        batches = open_dataset(job.folder.root, "train", batch_size=3, seed=5)
        read[encoding] = [
            (
                b.sample_id.numpy().tolist(),
                b.labels.numpy().tolist(),
                {k: v.numpy().tobytes() for k, v in b.bands.items()},
            )
            for b in batches
        ]
    assert read["zlib"] == read["raw"]
    assert read["int64"] == read["raw"]


def test_compressed_shards_are_smaller_and_sound(in_all: dict[str, Job]) -> None:
    """Every byte is checked, and each shard of compressed bands is smaller than that of raw ones."""
    sizes = {}
    for encoding in ("raw", "zlib"):
        assert verify(in_all[encoding], deep=True).faults == ()
        sizes[encoding] = _shard_bytes(in_all[encoding].folder.shards)
    assert len(sizes["raw"]) == len(sizes["zlib"])
    assert sum(sizes["zlib"]) < sum(sizes["raw"])


def _shard_bytes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.glob("*.tfrecord")]


def test_inspect_shows_the_same_numbers(in_all: dict[str, Job]) -> None:
    """dtype, shape, range and mean of every band of a record, whatever it is stored as."""
    shown = [inspect_record(job.folder, "train-00000", 0) for job in in_all.values()]
    bands = [{key: value for key, value in one.items() if isinstance(value, dict)} for one in shown]
    assert bands[0] == bands[1] == bands[2]
    assert len(bands[0]) == 14


def _image(format: str, pixels: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format)
    return buffer.getvalue()


GREY = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5
DEEP = np.arange(48, dtype=np.uint16).reshape(6, 8) * 1365

IMAGES = {
    "a colour PNG": (
        Feature("x", "uint8", (6, 8, 3), "png"),
        _image("png", np.stack([GREY, GREY.T.reshape(6, 8), GREY], -1)),
    ),
    "a grey PNG as colour": (Feature("x", "uint8", (6, 8, 3), "png"), _image("png", GREY)),
    "a 16-bit PNG": (Feature("x", "uint16", (6, 8, 1), "png"), bytes(imagecodecs.png_encode(DEEP))),
    "a colour JPEG as grey": (Feature("x", "uint8", (6, 8, 1), "jpeg"), _image("jpeg", np.stack([GREY] * 3, -1))),
    "a GIF": (Feature("x", "uint8", (6, 8, 3), "encoded"), _image("gif", GREY)),
    "a BMP": (Feature("x", "uint8", (6, 8, 3), "encoded"), _image("bmp", GREY)),
}


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_images_of_a_declared_size_are_tensors(name: str, encoding: str) -> None:
    """Whatever its format and the encoding of arrays, an image comes with the declared channels, without an axis of
    frames, in batches of any shape, and padding is black."""
    import tensorflow as tf

    from shardtrail.reading.pipeline import Parser

    feature, content = IMAGES[name]
    record = encode_sample(Schema((feature,), (), ()), encoding, "s", [], [], {"x": content})
    assert content in record
    parser = Parser((feature,), 0, encoding)
    found = tf.function(parser.__call__)(tf.constant([[record], [parser.padding()]])).bands["x"]
    assert found.shape == (2, 1, *feature.shape)
    assert found.dtype == feature.dtype
    assert not found[1].numpy().any()
    if name == "a 16-bit PNG":
        assert np.array_equal(found[0, 0, ..., 0], DEEP)
    else:
        assert np.abs(found[0, 0, ..., 0].numpy().astype(int) - GREY).max() <= (40 if "JPEG" in name else 0)


def test_an_image_of_another_size_than_declared_is_an_error() -> None:
    """A declared height and width hold: no image is cut or padded without a word."""
    import tensorflow as tf

    from shardtrail.reading.pipeline import Parser

    feature = Feature("x", "uint8", (6, 9, 3), "png")
    record = encode_sample(Schema((feature,), (), ()), "raw", "s", [], [], {"x": _image("png", GREY)})
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[6,8,3\].*\[6,9,3\]"):
        tf.function(Parser((feature,), 0, "raw").__call__)(tf.constant([record]))


def test_images_without_a_size_are_ragged_and_never_trained_on() -> None:
    """Batches of different images are ragged, padding is one black pixel, and what needs tensors says so at once."""
    import tensorflow as tf

    from shardtrail.reading.pipeline import Parser

    feature = Feature("x", "uint8", (None, None, 3), "png")
    record = encode_sample(Schema((feature,), (), ()), "raw", "s", [], [], {"x": _image("png", GREY)})
    parser = Parser((feature,), 0, "raw")
    records = tf.constant([record, parser.padding()])
    (batch,) = list(tf.data.Dataset.from_tensors(records).map(parser))
    first, second = (image.to_tensor().numpy() for image in batch.bands["x"])
    assert np.array_equal(first, np.stack([GREY] * 3, -1))
    assert second.tolist() == [[[0, 0, 0]]]
    with pytest.raises(ConfigError, match="feature x: its images have no declared size"):
        parser(records[None])
