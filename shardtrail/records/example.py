"""``tf.train.Example`` by hand: the bytes TensorFlow would write, without TensorFlow.

    payload = encode_sample(schema, "raw", sample_id, label_indices, texts, arrays)
    decode_example(payload)["sample_id"]  # [b"S2A_…"]

An Example is a map from feature names to lists of bytes, floats or integers. Each entry has the bytes TensorFlow
gives it, numbers packed, and entries follow the byte order of their names. That is TensorFlow's deterministic
serialisation but for one point on which protobuf's own implementations differ: where one name begins another
(``x_labels``, ``x_labels_multi_hot``), the shorter comes first here.

Source: ``tensorflow/core/example/example.proto`` and ``feature.proto``; the protobuf encoding guide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shardtrail.errors import ConfigError, ShardError
from shardtrail.records.compression import compress
from shardtrail.records.encoded import image_fault
from shardtrail.records.framing import MAX_PAYLOAD_BYTES, total_bytes
from shardtrail.samples import Feature, Schema

ENCODING_VERSION = 1
"""Raised whenever the same sample would give other bytes; part of every shard's fingerprint."""

ENCODINGS = ("raw", "zlib", "int64")

Array: TypeAlias = npt.NDArray[Any]
Values: TypeAlias = "list[bytes] | Array | None"
"""One decoded feature: byte strings, float32 or int64 [count], or None where the feature has no kind."""

_BYTES, _FLOAT, _INT64 = 1, 2, 3
"""Field numbers in ``Feature`` of its three kinds of list."""


# Writing


def encode_sample(
    schema: Schema,
    encoding: str,
    sample_id: str,
    label_indices: Sequence[int],
    texts: Sequence[str],
    arrays: Mapping[str, Array | bytes],
) -> bytes:
    """One sample as the payload of a record; see ``RecordEncoder``, which is faster for many."""
    return RecordEncoder(schema, encoding).encode(sample_id, label_indices, texts, arrays)


class RecordEncoder:
    """Makes the payloads of one schema's records; what is the same in all of them is made once."""

    def __init__(self, schema: Schema, encoding: str) -> None:
        """Args:
            schema: what every record holds.
            encoding: ``raw`` (an array is its little-endian bytes, row by row), ``zlib`` (compressed, see
                ``records.compression``) or ``int64`` (integers as ``int64_list``, floats as ``float_list``, with
                BigEarthNet's own label keys).

        Raises:
            ConfigError: the schema cannot be stored in this encoding.
        """
        if encoding not in ENCODINGS:
            raise ConfigError(f"shard.encoding: no encoding is called {encoding!r}; known: {', '.join(ENCODINGS)}")
        label_key = f"{schema.label_prefix}_labels" if encoding == "int64" and schema.label_prefix else ""
        names = ["sample_id", "labels", "label_names", *schema.texts, *(feature.name for feature in schema.features)]
        names += [label_key, f"{label_key}_multi_hot"] if label_key else []
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"the layout's schema names {', '.join(twice)} twice, or uses a key that every record has"
            )
        arrays: dict[str, _Array | _Image] = {
            feature.name: _Image(feature) if feature.format else _Array(feature, _ENCODERS[encoding](feature))
            for feature in schema.features
        }
        self._schema, self._label_key = schema, label_key
        # By code point, which is the order of the names' bytes.
        self._entries = [(name, arrays.get(name)) for name in sorted(names)]
        self._labels = lru_cache(maxsize=4096)(self._encode_labels)

    def encode(
        self, sample_id: str, label_indices: Sequence[int], texts: Sequence[str], arrays: Mapping[str, Array | bytes]
    ) -> bytes:
        """One sample as the payload of a record: the parts of ``encode_parts`` in one piece."""
        return b"".join(self.encode_parts(sample_id, label_indices, texts, arrays))

    def encode_parts(
        self, sample_id: str, label_indices: Sequence[int], texts: Sequence[str], arrays: Mapping[str, Array | bytes]
    ) -> list[Any]:
        """One sample as the payload of a record, in parts that follow one another: ``bytes``, and arrays as they are.

        Args:
            sample_id: stored as ``sample_id``.
            label_indices: places in the vocabulary, stored as ``labels`` and by name as ``label_names``.
            texts: in the order of ``schema.texts``.
            arrays: by feature name, each of its feature's dtype and shape; of an encoded image its bytes.

        Raises:
            ShardError: an array or image is absent or not as declared, or the record would be too large; the sample is
                named.
        """
        others = {"sample_id": encode_feature("sample_id", [sample_id.encode()]), **self._labels(tuple(label_indices))}
        for name, text in zip(self._schema.texts, texts, strict=True):
            others[name] = encode_feature(name, [text.encode()])
        parts: list[Any] = [b""]
        for name, array in self._entries:
            if array is None:
                parts.append(others[name])
            else:
                parts += array.entry(arrays, sample_id)
        size = total_bytes(parts)
        if size > MAX_PAYLOAD_BYTES:
            raise ShardError(
                f"sample {sample_id}: its record would hold {size} bytes, more than the {MAX_PAYLOAD_BYTES} that "
                "readers of protobuf accept; cut the image into smaller samples"
            )
        parts[0] = b"\x0a" + _varint(size)
        return parts

    def _encode_labels(self, indices: tuple[int, ...]) -> dict[str, bytes]:
        """The entries that depend on labels alone: few sets of labels are many samples'."""
        vocabulary = self._schema.vocabulary
        names = [vocabulary[index].encode() for index in indices]
        entries = {
            "labels": encode_feature("labels", np.asarray(indices, dtype=np.int64)),
            "label_names": encode_feature("label_names", names),
        }
        if self._label_key:
            key = f"{self._label_key}_multi_hot"
            present = np.asarray([index in indices for index in range(len(vocabulary))], dtype=np.int64)
            entries |= {self._label_key: encode_feature(self._label_key, names), key: encode_feature(key, present)}
        return entries


def encode_example(features: Mapping[str, Sequence[bytes] | Array]) -> bytes:
    """Any ``tf.train.Example``.

    Args:
        features: by name; byte strings, or a one-dimensional array: floating (stored as float32) or integer.
    """
    entries = b"".join(encode_feature(name, features[name]) for name in sorted(features))
    return b"\x0a" + _varint(len(entries)) + entries


def encode_feature(name: str, values: Sequence[bytes] | Array) -> bytes:
    """One entry of an Example's feature map."""
    if not isinstance(values, np.ndarray):
        body = b"".join(_delimited(1, value) for value in values)
        return _entry_head(name, _BYTES, len(body)) + body
    floating = np.issubdtype(values.dtype, np.floating)
    packed = values.astype("<f4", copy=False).tobytes() if floating else _pack_varints(values).tobytes()
    head = b"\x0a" + _varint(len(packed)) if packed else b""
    return _entry_head(name, _FLOAT if floating else _INT64, len(head) + len(packed)) + head + packed


Encode: TypeAlias = "Callable[[Array], list[Any]]"
"""Gives one array's entry as parts that follow one another: ``bytes``, or contiguous arrays."""


class _Array:
    """One declared array: its feature, and how it is written."""

    __slots__ = ("_dtype", "_encode", "_feature")

    def __init__(self, feature: Feature, encode: Encode) -> None:
        self._feature, self._dtype, self._encode = feature, np.dtype(feature.dtype), encode

    def entry(self, arrays: Mapping[str, Array | bytes], sample_id: str) -> list[Any]:
        """The sample's entry of this array, once it is known to be as the schema says."""
        feature = self._feature
        array = arrays.get(feature.name)
        if not isinstance(array, np.ndarray):
            found = "no array" if array is None else f"{type(array).__name__} for array"
            raise ShardError(f"sample {sample_id}: the layout decoded {found} {feature.name}")
        # Another byte order is no other number: the encoder turns it.
        same = array.dtype == self._dtype or array.dtype.newbyteorder("=") == self._dtype
        if not same or array.shape != feature.shape:
            raise ShardError(
                f"sample {sample_id}: {feature.name} is declared {feature.dtype}{list(feature.shape)}, "
                f"the layout decoded {array.dtype}{list(array.shape)}"
            )
        return self._encode(array)


class _Image:
    """One declared image that stays encoded."""

    __slots__ = ("_feature",)

    def __init__(self, feature: Feature) -> None:
        self._feature = feature

    def entry(self, arrays: Mapping[str, Array | bytes], sample_id: str) -> list[Any]:
        """The sample's entry of this image, once its first bytes are known to be of the declared format: a head, then
        the very bytes."""
        feature = self._feature
        content = arrays.get(feature.name)
        if not isinstance(content, bytes):
            found = "nothing" if content is None else type(content).__name__
            raise ShardError(
                f"sample {sample_id}: {feature.name} is declared as {feature.format}, kept as it is, so the layout's "
                f"decode has to give the file's bytes (it gave {found})"
            )
        if fault := image_fault(feature, content):
            raise ShardError(f"sample {sample_id}: {feature.name} {fault}")
        return _bytes_entry(feature.name, content)


def _raw_encoder(feature: Feature) -> Encode:
    """The array's own memory behind a head that is the same in every record: no copy."""
    little_endian = np.dtype(feature.dtype).newbyteorder("<")
    value_head = b"\x0a" + _varint(feature.nbytes)
    head = _entry_head(feature.name, _BYTES, len(value_head) + feature.nbytes) + value_head

    def encode(array: Array) -> list[Any]:
        return [head, np.ascontiguousarray(array, dtype=little_endian)]

    return encode


def _zlib_encoder(feature: Feature) -> Encode:
    dtype = np.dtype(feature.dtype)
    if dtype.kind not in "uif" or dtype.itemsize > 8:
        raise ConfigError(
            f"feature {feature.name}: {feature.dtype} is no number of 1, 2, 4 or 8 bytes, which encoding zlib takes; "
            "set shard.encoding: raw"
        )
    return lambda array: _bytes_entry(feature.name, compress(array))


def _list_encoder(feature: Feature) -> Encode:
    dtype = np.dtype(feature.dtype)
    wide = np.float32 if np.issubdtype(dtype, np.floating) else np.int64
    if not np.can_cast(dtype, wide):
        raise ConfigError(
            f"feature {feature.name}: {feature.dtype} does not fit the {np.dtype(wide)} lists of encoding int64; "
            "set shard.encoding: raw"
        )
    return lambda array: [encode_feature(feature.name, array.reshape(-1))]


_ENCODERS: Mapping[str, Callable[[Feature], Encode]] = {
    "raw": _raw_encoder,
    "zlib": _zlib_encoder,
    "int64": _list_encoder,
}


def _bytes_entry(name: str, content: bytes) -> list[Any]:
    """The entry of one byte string: a head, then the very bytes."""
    value_head = b"\x0a" + _varint(len(content))
    return [_entry_head(name, _BYTES, len(value_head) + len(content)) + value_head, content]


def _entry_head(name: str, kind: int, list_length: int) -> bytes:
    """What precedes the content of a list: map entry, key, feature and list, each with its length."""
    key = _delimited(1, name.encode())
    list_head = _byte(kind << 3 | 2) + _varint(list_length)
    feature_head = b"\x12" + _varint(len(list_head) + list_length)
    entry_length = len(key) + len(feature_head) + len(list_head) + list_length
    return b"\x0a" + _varint(entry_length) + key + feature_head + list_head


def _delimited(field: int, content: bytes) -> bytes:
    return _byte(field << 3 | 2) + _varint(len(content)) + content


_byte = [bytes([value]) for value in range(128)].__getitem__


def _varint(value: int) -> bytes:
    """A non-negative integer in groups of 7 bits, the lowest first."""
    if value <= 0x7F:
        return _byte(value)
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _pack_varints(values: Array) -> npt.NDArray[np.uint8]:
    """Integers as varints, one after the other; negative ones as 64-bit two's complement."""
    if values.size == 0:
        return np.empty(0, np.uint8)
    bits: Array = values.reshape(-1)
    bits = bits.astype(np.uint32) if np.can_cast(bits.dtype, np.uint32) else bits.astype(np.int64).view(np.uint64)
    width = max(1, -(-int(bits.max()).bit_length() // 7))
    groups = np.empty((bits.size, width), np.uint8)
    used = np.empty((bits.size, width), np.bool_)
    for place in range(width):
        groups[:, place] = bits & 0x7F
        used[:, place] = bits != 0
        bits = bits >> 7
    used[:, 0] = True
    groups[:, :-1] |= used[:, 1:].astype(np.uint8) << 7
    return groups[used]


# Reading


def decode_example(payload: bytes) -> dict[str, Values]:
    """The features of a ``tf.train.Example``, by name in stored order.

    Takes what protobuf takes: unpacked lists, unknown fields, features without a kind (None), repeated keys (the last
    one counts).

    Raises:
        ShardError: the bytes are not a ``tf.train.Example``.
    """
    try:
        features: dict[str, Values] = {}
        for number, wire, content in _fields(memoryview(payload)):
            if number == 1 and wire == 2:
                for inner, inner_wire, entry in _fields(content):
                    if inner == 1 and inner_wire == 2:
                        name, values = _decode_entry(entry)
                        features[name] = values
        return features
    except ValueError as error:
        raise ShardError(f"not a tf.train.Example: {error}") from error


def _decode_entry(entry: memoryview) -> tuple[str, Values]:
    name, feature = "", memoryview(b"")
    for number, wire, content in _fields(entry):
        if number == 1 and wire == 2:
            name = str(content, "utf-8")
        elif number == 2 and wire == 2:
            feature = content
    kind = 0
    lists: list[memoryview] = []
    for number, wire, content in _fields(feature):
        if number in (_BYTES, _FLOAT, _INT64) and wire == 2:
            # A oneof: a later kind replaces an earlier one, the same kind is merged.
            lists = [*lists, content] if number == kind else [content]
            kind = number
    return name, _decode_lists(kind, lists)


def _decode_lists(kind: int, lists: Sequence[memoryview]) -> Values:
    values = [(wire, content) for part in lists for number, wire, content in _fields(part) if number == 1]
    if kind == _BYTES:
        return [bytes(content) for wire, content in values if wire == 2]
    if kind == _FLOAT:
        floats = b"".join(content for wire, content in values if wire in (2, 5))
        return np.frombuffer(floats, "<f4").astype(np.float32)
    if kind == _INT64:
        return _unpack_varints(b"".join(content for wire, content in values if wire in (0, 2)))
    return None


def _unpack_varints(content: bytes) -> npt.NDArray[np.int64]:
    data = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(data < 0x80) + 1
    if data.size and (ends.size == 0 or ends[-1] != data.size):
        raise ValueError("an integer list ends within a number")
    starts = np.concatenate([[0], ends[:-1]]) if ends.size else ends
    lengths = ends - starts
    if lengths.size and lengths.max() > 10:
        raise ValueError("an integer has more than 10 bytes")
    values = np.zeros(ends.size, np.uint64)
    for place in range(int(lengths.max(initial=0))):
        longer = lengths > place
        group = (data[starts[longer] + place] & 0x7F).astype(np.uint64)
        values[longer] |= group << np.uint64(7 * place)
    return values.view(np.int64)


def _fields(message: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Field number, wire type and content (of a varint: its bytes) of every field of a message."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        number, wire = tag >> 3, tag & 7
        start = at
        if wire == 0:
            _, at = _read_varint(message, at)
        elif wire == 1:
            at += 8
        elif wire == 2:
            length, start = _read_varint(message, at)
            at = start + length
        elif wire == 5:
            at += 4
        else:
            raise ValueError(f"wire type {wire} in field {number}")
        if number == 0 or at > len(message):
            raise ValueError(f"field {number} reaches beyond its message" if number else "field number 0")
        yield number, wire, message[start:at]


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at >= len(message):
            raise ValueError("it ends within a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than 10 bytes")
