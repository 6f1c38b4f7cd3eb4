"""Records: the same bytes as TensorFlow's, and an answer for any bytes at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

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
from shardtrail.records.framing import MAX_PAYLOAD_BYTES, frame
from shardtrail.records.index import format_index, read_index
from shardtrail.records.scan import verify_file
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
TEXTS = {"patch_name_s1": "S1A_1", "patch_name_s2": "S2A_1"}

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
    assert encode_sample(SCHEMA, "raw", "S2A_1", [0, 2], ["S1A_1", "S2A_1"], odd) == encode("raw")


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
        encode_sample(huge, "raw", "tile-7", [], {}, {"image": np.zeros(2**31, np.uint8)})
    assert MAX_PAYLOAD_BYTES < 2**31


def test_a_schema_that_cannot_be_stored_is_refused():
    """Keys used twice, numbers that the lists would change, and unknown encodings."""
    for schema, encoding, text in [
        (Schema((Feature("labels", "uint8", (1,)),), (), ()), "raw", "labels twice"),
        (Schema((Feature("x", "float64", (1,)),), (), ()), "int64", "float64 does not fit"),
        (Schema((Feature("x", "uint64", (1,)),), (), ()), "int64", "uint64 does not fit"),
        (SCHEMA, "zip", "known: raw, int64"),
    ]:
        with pytest.raises(ConfigError, match=text):
            encode_sample(schema, encoding, "a", [], {}, {})


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
