"""A record against the declared schema: which feature is absent, of another kind or of another size.

    check = RecordCheck(Declared(schema, "raw"))
    sample_id, problems = check(payload)
    problems  # ("feature B02 has 28798 bytes, expected 28800 (uint16[120, 120])",)

Arrays are not decoded, but for compressed ones, which only inflating tells from others: kind and length say whether one
is as declared, and where it is stored as its own bytes, all that precedes them is the same in every record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from shardtrail.records.compression import decompress
from shardtrail.records.encoded import image_fault
from shardtrail.records.example import decode_example, encode_example, encode_feature
from shardtrail.samples import Feature, Schema

_KINDS = {0x0A: "bytes", 0x12: "float32", 0x1A: "int64"}
"""Tag of a list in a ``Feature`` -> what it holds."""

_LARGE = 1 << 20
"""Arrays of this size and more are looked at entry by entry: what precedes them is found by encoding one."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What every record of a dataset holds, and how."""

    schema: Schema
    encoding: str


@dataclass(frozen=True, slots=True)
class Stored:
    """One feature as it lies in a record: its kind, and the content of its list."""

    kind: str
    content: memoryview

    def values(self) -> list[memoryview]:
        """The values of a list of bytes."""
        found, at = [], 0
        while at < len(self.content):
            start, at = _delimited(self.content, at, 0x0A)
            found.append(self.content[start:at])
        return found

    def numbers(self) -> memoryview:
        """The numbers of a list, packed."""
        values = self.values()
        if len(values) > 1:
            raise ValueError("numbers in more than one piece")
        return values[0] if values else self.content

    def count(self) -> int:
        """How many values, of any kind."""
        if self.kind == "bytes":
            return len(self.values())
        if self.kind == "float32":
            return len(self.numbers()) // 4
        return int(np.count_nonzero(np.frombuffer(self.numbers(), np.uint8) < 0x80))

    def integers(self) -> list[int]:
        """The values of a list of integers; one below 0 comes out as its 64-bit two's complement."""
        found, at, numbers = [], 0, self.numbers()
        while at < len(numbers):
            value, at = _varint(numbers, at)
            found.append(value)
        return found


Features: TypeAlias = "dict[str, Stored | None]"
"""By name; None where the bytes before the value already say that it is as declared."""

Problem: TypeAlias = Callable[[Stored, Mapping[str, "Stored | None"]], str]
"""What is wrong with a stored feature, given all of its record; empty if nothing is."""


class RecordCheck:
    """Compares payloads with a declaration; without one, only the sample's id is found."""

    def __init__(self, declared: Declared | None) -> None:
        self._problems = _problems(declared) if declared else {}
        self._heads = _heads(declared, sorted(self._problems)) if declared else []

    def __call__(self, payload: bytes | memoryview) -> tuple[bytes | None, tuple[str, ...]]:
        """The ``sample_id`` (None if there is none) and what is wrong with the features, one sentence each.

        Raises:
            ShardError: the payload is not a ``tf.train.Example``.
        """
        try:
            return self._judge(self._walk(memoryview(payload)))
        except (ValueError, IndexError):
            # Not as we write it. What else protobuf takes is read by the full parser and written as ours.
            example = decode_example(bytes(payload))
            known = {name: values for name, values in example.items() if values is not None}
            return self._judge(self._walk(memoryview(encode_example(known))))

    def _judge(self, features: Features) -> tuple[bytes | None, tuple[str, ...]]:
        stored = features.get("sample_id")
        values = stored.values() if stored and stored.kind == "bytes" else []
        sample_id = bytes(values[0]) if len(values) == 1 else None
        problems = []
        for name, problem in self._problems.items():
            if name not in features:
                problems.append(f"feature {name} is missing")
            elif (found := features[name]) and (said := problem(found, features)):
                problems.append(f"feature {name} {said}")
        return sample_id, tuple(problems)

    def _walk(self, payload: memoryview) -> Features:
        features: Features = {}
        if not len(payload):
            return features
        at, end = _delimited(payload, 0, 0x0A)
        if end != len(payload):
            raise ValueError("something follows the features")
        for name, head, length in self._heads:
            if head and payload[at : at + len(head)] == head:
                features[name] = None
                at += len(head) + length
            elif at < end:
                name, features[name], at = _entry(payload, at)
        while at < end:
            name, features[name], at = _entry(payload, at)
        if at > end:
            raise ValueError("a feature reaches beyond its record")
        return features


def _heads(declared: Declared, names: list[str]) -> list[tuple[str, bytes, int]]:
    """Every feature in stored order, with what precedes its value where that is constant, and the value's bytes."""
    plain = [f for f in declared.schema.features if declared.encoding == "raw" and not f.format]
    arrays = {f.name: f for f in plain if 0 < f.nbytes < _LARGE}
    found = []
    for name in names:
        length = arrays[name].nbytes if name in arrays else 0
        head = encode_feature(name, [bytes(length)])[:-length] if length else b""
        found.append((name, head, length))
    return found


def _problems(declared: Declared) -> dict[str, Problem]:
    """What every feature of a record is asked."""
    schema = declared.schema
    found: dict[str, Problem] = {"sample_id": _one_text, "labels": _indices(schema), "label_names": _names(schema)}
    found |= dict.fromkeys(schema.texts, _one_text)
    found |= {feature.name: _array(feature, declared.encoding) for feature in schema.features}
    if declared.encoding == "int64" and schema.label_prefix:
        key = f"{schema.label_prefix}_labels"
        found |= {key: _names(schema), f"{key}_multi_hot": _numbers("int64", len(schema.vocabulary), "one a class")}
    return found


def _array(feature: Feature, encoding: str) -> Problem:
    if feature.format:
        return _image(feature)
    declared = f"{feature.dtype}{list(feature.shape)}"
    if encoding == "int64":
        kind = "float32" if np.dtype(feature.dtype).kind == "f" else "int64"
        return _numbers(kind, int(np.prod(feature.fixed_shape, dtype=np.int64)), declared)

    if encoding == "zlib":
        return _compressed(feature, declared)

    def problem(stored: Stored, _: Mapping[str, Stored | None]) -> str:
        if said := _one_value(stored):
            return said
        size = len(stored.values()[0])
        return "" if size == feature.nbytes else f"has {size} bytes, expected {feature.nbytes} ({declared})"

    return problem


def _compressed(feature: Feature, declared: str) -> Problem:
    def problem(stored: Stored, _: Mapping[str, Stored | None]) -> str:
        if said := _one_value(stored):
            return said
        try:
            decompress(stored.values()[0], feature.dtype, feature.fixed_shape)
        except ValueError as error:
            return f"is not {declared}: {error}"
        return ""

    return problem


def _image(feature: Feature) -> Problem:
    def problem(stored: Stored, _: Mapping[str, Stored | None]) -> str:
        return _one_value(stored) or image_fault(feature, stored.values()[0])

    return problem


def _numbers(kind: str, count: int, declared: str) -> Problem:
    def problem(stored: Stored, _: Mapping[str, Stored | None]) -> str:
        if stored.kind != kind:
            return f"is a list of {stored.kind}, expected {kind}"
        found = stored.count()
        return "" if found == count else f"has {found} values, expected {count} ({declared})"

    return problem


def _one_value(stored: Stored) -> str:
    if stored.kind != "bytes":
        return f"is a list of {stored.kind}, expected bytes"
    count = len(stored.values())
    return "" if count == 1 else f"has {count} values, expected 1"


def _one_text(stored: Stored, _: Mapping[str, Stored | None]) -> str:
    return _one_value(stored)


def _indices(schema: Schema) -> Problem:
    classes = len(schema.vocabulary)

    def problem(stored: Stored, _: Mapping[str, Stored | None]) -> str:
        if stored.kind != "int64":
            return f"is a list of {stored.kind}, expected int64"
        strange = [index for index in stored.integers() if index >= classes]
        return f"names class {strange[0]} of a vocabulary of {classes}" if strange else ""

    return problem


def _names(schema: Schema) -> Problem:
    names = [name.encode() for name in schema.vocabulary]
    known = frozenset(names)

    def problem(stored: Stored, features: Mapping[str, Stored | None]) -> str:
        if stored.kind != "bytes":
            return f"is a list of {stored.kind}, expected bytes"
        found = [bytes(value) for value in stored.values()]
        for name in found:
            if name not in known:
                return f"names {name.decode(errors='replace')!r}, which the vocabulary does not"
        labels = features.get("labels")
        indices = labels.integers() if labels and labels.kind == "int64" else []
        if found != [names[index] for index in indices if index < len(names)]:
            return "does not name the classes of labels"
        return ""

    return problem


def _entry(payload: memoryview, at: int) -> tuple[str, Stored, int]:
    """Name and content of the entry of a feature map at byte ``at``, and where the next begins.

    Raises:
        ValueError, IndexError: it is none, or not of the plain form in which entries are written.
    """
    start, end = _delimited(payload, at, 0x0A)
    name_start, name_end = _delimited(payload, start, 0x0A)
    feature_start, feature_end = _delimited(payload, name_end, 0x12)
    tag = payload[feature_start]
    list_start, list_end = _delimited(payload, feature_start, tag)
    if not (end == feature_end == list_end <= len(payload)):
        raise ValueError("lengths that do not fit each other")
    return str(payload[name_start:name_end], "utf-8"), Stored(_kind(tag), payload[list_start:list_end]), end


def _kind(tag: int) -> str:
    if tag not in _KINDS:
        raise ValueError(f"no list begins with {tag:#04x}")
    return _KINDS[tag]


def _delimited(data: memoryview, at: int, tag: int) -> tuple[int, int]:
    """Where the content of a length-delimited field begins and ends."""
    if data[at] != tag:
        raise ValueError(f"tag {data[at]:#04x} in place of {tag:#04x}")
    length, start = data[at + 1], at + 2
    if length > 0x7F:
        length, start = _varint(data, at + 1)
    if start + length > len(data):
        raise ValueError("a field reaches beyond its message")
    return start, start + length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 10 bytes")
