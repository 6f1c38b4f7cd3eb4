"""Records: the same bytes as TensorFlow's, and an answer for any bytes at all."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtrail.errors import ConfigError, ShardError
from shardtrail.records.example import (
    ENCODING_VERSION,
    decode_example,
    encode_example,
    encode_feature,
    encode_sample,
)
from shardtrail.records.framing import MAX_PAYLOAD_BYTES, frame, mask_crc
from shardtrail.records.index import format_index, parse_index, read_index
from shardtrail.records.scan import Fault, read_record, scan_records, verify_file
from shardtrail.samples import Feature, Schema

SCHEMA = Schema(
    features=(Feature("B02", "uint16", (2, 3)), Feature("VV", "float32", (2, 2))),
    texts=("patch_name_s1", "patch_name_s2"),
    vocabulary=("Urban fabric", "Arable land", "Ødemark"),
    label_prefix="BigEarthNet-19",
)
ARRAYS = {
    "B02": np.array([[0, 1, 127], [128, 16384, 65535]], np.uint16),
    "VV": np.array([[-12.5, 0.25], [-40.1, 9.75]], np.float32),
}
TEXTS = ("S1A_1", "S2A_1")

GOLDEN = {
    "raw": "dbd8b413d314bfbafddee6a075f08c8b14288d028f6810f7c8bfb507f020fb4c",
    "int64": "94d8e31fab8803be39e98df42f456a28e84f17c8cdaa28c4b78c5e69f634ba13",
}


def encode(encoding: str, sample_id: str = "S2A_1") -> bytes:
    return encode_sample(SCHEMA, encoding, sample_id, [0, 2], TEXTS, ARRAYS)


def expected_features(encoding: str) -> dict[str, object]:
    """What the record of ``encode`` should hold, in TensorFlow's terms."""
    names = [b"Urban fabric", "Ødemark".encode()]
    features: dict[str, object] = {
        "sample_id": [b"S2A_1"],
        "labels": np.array([0, 2]),
        "label_names": names,
        "patch_name_s1": [b"S1A_1"],
        "patch_name_s2": [b"S2A_1"],
    }
    if encoding == "raw":
        return features | {name: [array.tobytes()] for name, array in ARRAYS.items()}
    keys = {"BigEarthNet-19_labels": names, "BigEarthNet-19_labels_multi_hot": np.array([1, 0, 1])}
    return features | keys | {name: array.ravel() for name, array in ARRAYS.items()}


def tensorflow_bytes(features: dict[str, object]) -> bytes:
    """The same Example by TensorFlow's message classes, its entries in the order of their names.

    TensorFlow serialises each entry and the head. Only the order is set here: protobuf's implementations disagree on
    where a name goes that begins with another.
    """
    from tensorflow.core.example import example_pb2, feature_pb2

    def feature(values: object) -> feature_pb2.Feature:
        if isinstance(values, list):
            return feature_pb2.Feature(bytes_list=feature_pb2.BytesList(value=values))
        assert isinstance(values, np.ndarray)
        if values.dtype.kind == "f":
            return feature_pb2.Feature(float_list=feature_pb2.FloatList(value=values))
        return feature_pb2.Feature(int64_list=feature_pb2.Int64List(value=values))

    entries = [feature_pb2.Features(feature={name: feature(features[name])}) for name in sorted(features)]
    content = b"".join(entry.SerializeToString() for entry in entries)
    whole = example_pb2.Example(features=feature_pb2.Features.FromString(content)).SerializeToString(deterministic=True)
    return bytes(whole[: len(whole) - len(content)] + content)


def write_shard(path: Path, payloads: list[bytes]) -> list[tuple[int, int]]:
    """A shard and its index, by the production functions; the spans of its records."""
    frames = [b"".join(frame(payload)) for payload in payloads]
    path.write_bytes(b"".join(frames))
    path.with_suffix(".index").write_bytes(format_index(map(len, frames)))
    return read_index(path.with_suffix(".index"))


def kinds(path: Path, **expected: object) -> list[tuple[int | None, int, str]]:
    return [(fault.record, fault.offset, fault.kind) for fault in verify_file(path, **expected).faults]  # type: ignore[arg-type]


@pytest.mark.parametrize("encoding", ["raw", "int64"])
def test_a_record_is_what_tensorflow_would_write(encoding):
    """Entry for entry TensorFlow's bytes, features in sorted order."""
    assert encode(encoding) == tensorflow_bytes(expected_features(encoding))


@pytest.mark.parametrize("encoding", ["raw", "int64"])
def test_golden_bytes(encoding):
    """The writer's output never changes under one encoding version; a change needs a new one."""
    assert ENCODING_VERSION == 1
    assert hashlib.sha256(encode(encoding)).hexdigest() == GOLDEN[encoding]


names = st.text(max_size=8)
values = st.one_of(
    st.lists(st.binary(max_size=200), max_size=4),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20).map(lambda v: np.array(v, np.int64)),
    st.lists(st.floats(width=32, allow_nan=False), max_size=20).map(lambda v: np.array(v, np.float32)),
)


@given(st.dictionaries(names, values, min_size=1, max_size=6))
def test_any_example_is_canonical_and_comes_back(features):
    """Names of any script, empty lists, extreme numbers: TensorFlow's bytes, and the same values when decoded."""
    payload = encode_example(features)
    assert payload == tensorflow_bytes(features)
    decoded = decode_example(payload)
    assert list(decoded) == sorted(features)
    for name, expected in features.items():
        assert type(decoded[name]) is type(expected)
        np.testing.assert_array_equal(decoded[name], expected)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "bool"])
def test_integers_of_any_width_are_the_same_list(dtype):
    """An integer's varint depends on its value, not on the array's dtype."""
    array = np.array([0, 1, 2, 100, -3 if np.dtype(dtype).kind == "i" else 3]).astype(dtype)
    assert encode_feature("x", array) == encode_feature("x", array.astype(np.int64))


def test_raw_bytes_are_little_endian_and_row_by_row():
    """A big-endian, transposed view is stored as its values say, not as its memory lies."""
    odd = {"B02": np.asfortranarray(ARRAYS["B02"].astype(">u2")), "VV": ARRAYS["VV"].T.copy().T}
    assert encode_sample(SCHEMA, "raw", "S2A_1", [0, 2], TEXTS, odd) == encode("raw")


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"VV": ARRAYS["VV"]}, "decoded no array B02"),
        (ARRAYS | {"B02": ARRAYS["B02"].astype(np.int16)}, r"declared uint16\[2, 3\].*decoded int16\[2, 3\]"),
        (ARRAYS | {"B02": ARRAYS["B02"].T}, r"decoded uint16\[3, 2\]"),
    ],
)
def test_an_array_that_is_not_as_declared_is_refused_by_name(arrays, text):
    """Absent, of another dtype or of another shape: the error names sample and feature."""
    with pytest.raises(ShardError, match=f"sample S2A_1: .*{text}"):
        encode_sample(SCHEMA, "raw", "S2A_1", [], TEXTS, arrays)


def test_a_record_beyond_protobufs_limit_is_refused_before_it_is_built():
    """An untouched array of 2 GiB costs no memory; the refusal names sample and size."""
    huge = Schema((Feature("image", "uint8", (2**31,)),), (), ())
    with pytest.raises(ShardError, match=r"sample tile-7: its record would hold 21474\d+ bytes"):
        encode_sample(huge, "raw", "tile-7", [], (), {"image": np.zeros(2**31, np.uint8)})
    assert MAX_PAYLOAD_BYTES < 2**31


def test_a_schema_that_cannot_be_stored_is_refused():
    """Keys used twice, numbers that the lists would change, and unknown encodings."""
    for schema, encoding, text in [
        (Schema((Feature("labels", "uint8", (1,)),), (), ()), "raw", "labels twice"),
        (Schema((Feature("x", "float64", (1,)),), (), ()), "int64", "float64 does not fit"),
        (Schema((Feature("x", "uint64", (1,)),), (), ()), "int64", "uint64 does not fit"),
        (SCHEMA, "zip", "known: raw, zlib, int64"),
    ]:
        with pytest.raises(ConfigError, match=text):
            encode_sample(schema, encoding, "a", [], (), {})


def test_decoding_takes_what_protobuf_takes():
    """Unpacked lists, unknown fields, a feature without kind, a repeated key (the last counts), a replaced kind."""
    unpacked = bytes.fromhex("0a110a0161120c1a0a080108000a0281010807").replace(b"\x0a\x11", b"\x0a\x11")
    no_kind = bytes.fromhex("0a050a01621200")
    unknown = bytes.fromhex("18052101000000000000002a01783501000000")
    replaced = bytes.fromhex("0a0f0a0163120a0a030a01781a030a0109")
    repeated = encode_feature("d", np.array([1])) + encode_feature("d", np.array([2]))
    inner = unpacked + no_kind + unknown + replaced + repeated
    payload = unknown + b"\x0a" + bytes([len(inner)]) + inner

    decoded = decode_example(payload)

    from tensorflow.core.example import example_pb2

    parsed = example_pb2.Example.FromString(payload).features.feature
    assert sorted(decoded) == sorted(parsed) == ["a", "b", "c", "d"]
    for name in "acd":
        assert list(decoded[name]) == list(parsed[name].int64_list.value)
    assert decoded["b"] is None and parsed["b"].WhichOneof("kind") is None


@given(st.binary(max_size=200))
def test_decoding_any_bytes_answers_or_refuses(data):
    """Never another exception than the one documented."""
    try:
        decode_example(data)
    except ShardError as error:
        assert "not a tf.train.Example" in str(error)


@pytest.fixture
def shard(tmp_path) -> Path:
    """Five records of ours with their index."""
    path = tmp_path / "train-0123456789ab.tfrecord"
    write_shard(path, [encode("raw", f"S2A_{number}") for number in range(5)])
    return path


IDS = [f"S2A_{number}" for number in range(5)]


def test_tensorflow_reads_what_we_write(shard):
    """Framing and payload pass TensorFlow's own reader and parser, in order."""
    import tensorflow as tf

    payloads = list(tf.data.TFRecordDataset(str(shard)).as_numpy_iterator())
    assert payloads == [encode("raw", name) for name in IDS]
    parsed = tf.io.parse_single_example(
        payloads[3], {"sample_id": tf.io.FixedLenFeature([], tf.string), "B02": tf.io.FixedLenFeature([], tf.string)}
    )
    assert parsed["sample_id"] == b"S2A_3"
    assert tf.reduce_all(tf.reshape(tf.io.decode_raw(parsed["B02"], tf.uint16), (2, 3)) == ARRAYS["B02"])


def test_we_read_what_tensorflow_writes(tmp_path):
    """Spans, payloads and md5 of a file written by TensorFlow; an empty payload is a record too."""
    import tensorflow as tf

    path = tmp_path / "theirs.tfrecord"
    payloads = [b"", b"x", bytes(range(256)) * 9000]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
    spans = list(scan_records(path))
    assert [length - 16 for _, length in spans] == [len(payload) for payload in payloads]
    assert [read_record(path, offset) for offset, _ in spans] == payloads
    verified = verify_file(path, records=3)
    assert verified.faults == () and verified.records == 3
    assert (verified.bytes, verified.md5) == (path.stat().st_size, hashlib.md5(path.read_bytes()).hexdigest())


def test_a_sound_shard_has_no_fault(shard):
    """With everything given: records, size, md5, index and sample ids."""
    content = shard.read_bytes()
    md5 = hashlib.md5(content).hexdigest()
    index = shard.with_suffix(".index")
    assert kinds(shard, records=5, size=len(content), md5=md5, index=index, sample_ids=IDS) == []
    assert list(scan_records(shard)) == read_index(index)


def test_a_cut_is_found_wherever_it_falls(shard):
    """Between two records as within one: the first record that is missing or not whole is named."""
    content = shard.read_bytes()
    starts = [offset for offset, _ in read_index(shard.with_suffix(".index"))]
    for size in range(len(content)):
        shard.write_bytes(content[:size])
        record = sum(start <= size for start in starts) - 1
        if size in starts:
            assert kinds(shard, records=5) == [(record, size, "missing_records")]
        elif size > 4:
            assert kinds(shard, records=5) == [(record, starts[record], "truncated_in_record")]
        else:
            assert kinds(shard, records=5)


def test_every_flipped_byte_is_found(shard):
    """A damaged length, length CRC, payload or payload CRC: kind, record and byte are named, and the md5 differs."""
    content = shard.read_bytes()
    spans = read_index(shard.with_suffix(".index"))
    md5 = hashlib.md5(content).hexdigest()
    for record, (offset, length) in enumerate(spans):
        for at in range(offset, offset + length):
            shard.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
            kind = "length_crc" if at < offset + 12 else "data_crc"
            assert kinds(shard, records=5, md5=md5) == [(record, offset, kind), (None, 0, "md5")]


def test_two_damaged_payloads_are_both_named(shard):
    """A wrong payload does not hide the next one, since its length is known."""
    content = bytearray(shard.read_bytes())
    spans = read_index(shard.with_suffix(".index"))
    for record in (1, 3):
        content[spans[record][0] + 40] ^= 1
    shard.write_bytes(content)
    assert kinds(shard, records=5) == [(record, spans[record][0], "data_crc") for record in (1, 3)]


def test_a_crafted_length_neither_crashes_nor_allocates(shard):
    """A huge length under a right length CRC, which makes TensorFlow's reader crash, is a cut record here."""
    length = struct.pack("<Q", 2**63)
    header = length + struct.pack("<I", mask_crc(google_crc32c.value(length)))
    shard.write_bytes(header + shard.read_bytes()[12:])
    assert kinds(shard, records=5, sample_ids=IDS) == [(0, 0, "truncated_in_record")]
    with pytest.raises(ShardError, match=r"train-0123456789ab\.tfrecord, record 0, byte 0: the record should end at"):
        list(scan_records(shard))


def test_what_is_no_shard_is_said_plainly(tmp_path):
    """Compressed files, text and empty files, each by its own kind."""
    path = tmp_path / "notes.tfrecord"
    record = b"".join(frame(encode("raw")))
    for content, kind in [
        (gzip.compress(record), "compressed"),
        (b"patch,label\nS2A_1,Pastures\n", "not_tfrecord"),
        (b"\x89PNG\r\n\x1a\n" + bytes(30), "not_tfrecord"),
        (b"a,b", "truncated_in_record"),
        (b"\x00\x01\x02", "truncated_in_record"),
        (bytes(64), "length_crc"),
        (b"", "missing_records"),
    ]:
        path.write_bytes(content)
        assert [fault.kind for fault in verify_file(path, records=5).faults] == [kind]
    with pytest.raises(FileNotFoundError):
        verify_file(tmp_path / "absent.tfrecord")


def test_bytes_and_records_too_many_are_found(shard):
    """Garbage after the last record, or a record more than the plan has."""
    content, size = shard.read_bytes(), shard.stat().st_size
    for extra in (b"\0", b"".join(frame(b"more"))):
        shard.write_bytes(content + extra)
        assert kinds(shard, records=5, size=size) == [(None, size, "trailing_bytes"), (None, 0, "size")]
    assert verify_file(shard).records == 6


def test_a_swapped_or_foreign_record_is_found(shard):
    """Sound records in another order, without an id, or no Example at all."""
    frames = [b"".join(frame(encode("raw", name))) for name in IDS]
    frames[1], frames[2] = frames[2], frames[1]
    frames[3] = b"".join(frame(encode_example({"label": np.array([1])})))
    frames[4] = b"".join(frame(b"\xff\xff"))
    shard.write_bytes(b"".join(frames))
    verified = verify_file(shard, sample_ids=IDS)
    assert [(fault.record, fault.kind) for fault in verified.faults] == [(r, "wrong_sample") for r in (1, 2, 3, 4)]
    assert "expected sample S2A_1, found S2A_2" in verified.faults[0].detail
    assert "found no sample_id" in verified.faults[2].detail


def test_an_index_that_does_not_fit_is_found(shard):
    """Absent, of another shard, too short, or no index at all."""
    index = shard.with_suffix(".index")
    content = index.read_bytes()
    spans = parse_index(content)
    for wrong, fault in [
        (b"".join(content.splitlines(keepends=True)[:3]), (3, spans[3][0], "wrong_index")),
        (format_index([100, 200]), (0, 0, "wrong_index")),
        (b"0 12\n", (None, 0, "wrong_index")),
        (b"0 40\n41 40\n", (None, 0, "wrong_index")),
        (b"8 40\n", (None, 0, "wrong_index")),
        (b"zero forty\n", (None, 0, "wrong_index")),
        (b"\xb2 40\n", (None, 0, "wrong_index")),
        (b"", (0, 0, "wrong_index")),
    ]:
        index.write_bytes(wrong)
        assert kinds(shard, records=5, index=index) == [fault]
    index.unlink()
    assert kinds(shard, index=index) == [(None, 0, "missing_index")]
    with pytest.raises(ShardError, match=r"index does not exist"):
        read_index(index)


@given(st.lists(st.integers(16, 10**12), max_size=50))
def test_an_index_comes_back(lengths):
    """What is written is read: offsets add up the lengths."""
    spans = parse_index(format_index(lengths))
    assert [length for _, length in spans] == lengths
    assert [offset for offset, _ in spans] == [sum(lengths[:place]) for place in range(len(lengths))]


@given(st.binary(max_size=300), st.binary(max_size=200))
def test_any_bytes_give_an_answer(tmp_path_factory, data, index):
    """Neither scanner nor index reader ever fails otherwise than documented, and bad bytes are never called good."""
    path = tmp_path_factory.getbasetemp() / "fuzz.tfrecord"
    path.write_bytes(data)
    path.with_suffix(".index").write_bytes(index)
    verified = verify_file(path, sample_ids=IDS[:1], index=path.with_suffix(".index"))
    assert verified.bytes == len(data) and verified.md5 == hashlib.md5(data).hexdigest()
    assert verified.faults
    for read in (lambda: list(scan_records(path)), lambda: read_record(path, len(data) // 2)):
        try:
            read()
        except ShardError as error:
            assert "fuzz.tfrecord" in str(error)


@given(st.data())
def test_any_damage_to_a_sound_shard_is_found(tmp_path_factory, data):
    """Bytes replaced, removed or put in anywhere: the record check alone finds it, without the md5."""
    sound = b"".join(b"".join(frame(encode("raw", name))) for name in IDS)
    start = data.draw(st.integers(0, len(sound)))
    stop = data.draw(st.integers(start, min(len(sound), start + 40)))
    damaged = sound[:start] + data.draw(st.binary(max_size=40)) + sound[stop:]
    path = tmp_path_factory.getbasetemp() / "damaged.tfrecord"
    path.write_bytes(damaged)
    faults = verify_file(path, sample_ids=IDS).faults
    assert bool(faults) == (damaged != sound)
    assert all(isinstance(fault, Fault) and fault.detail for fault in faults)


def test_a_damaged_record_is_named_when_it_is_read(shard):
    """Reading one record checks it: file and byte are in the error."""
    offset, _ = read_index(shard.with_suffix(".index"))[2]
    content = bytearray(shard.read_bytes())
    content[offset + 30] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ShardError, match=rf"\.tfrecord, byte {offset}: CRC of the payload: stored \w{{8}}"):
        read_record(shard, offset)
    with pytest.raises(ShardError, match="the file ends within the header"):
        read_record(shard, len(content))
