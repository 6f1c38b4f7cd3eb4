"""What a worker is given to build one shard. Imports nothing heavy: workers load this module."""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shardtrail.records.features import Declared
from shardtrail.samples import Schema, SourceFile

if TYPE_CHECKING:
    from shardtrail.layouts import Layout


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """One record to be written. ``labels`` are indices in the vocabulary, ``texts`` in the schema's order."""

    sample_id: str
    labels: tuple[int, ...]
    texts: tuple[str, ...]
    files: tuple[SourceFile, ...]


@dataclass(frozen=True, slots=True)
class ShardCheck:
    """What must be known of a shard to tell whether its bytes are right.

    Attributes:
        address: its place in the plan, such as ``train-00017``.
        name: of its files, such as ``train-3f9a2c71d0b4``.
        shards: folder in which it lies.
        sample_ids: what it holds, in record order; none where only ``records`` and ``md5`` are known.
        records: how many it holds.
        md5: hex digest it had before; empty if it was never written.
        declared: what each record should hold; None where that is not known.
    """

    address: str
    name: str
    shards: Path
    sample_ids: tuple[str, ...] | None
    records: int
    md5: str = ""
    declared: Declared | None = None

    @property
    def shard(self) -> Path:
        return self.shards / f"{self.name}.tfrecord"

    @property
    def index(self) -> Path:
        return self.shards / f"{self.name}.index"


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard to be built: with the raw files, all that decides its bytes.

    Attributes:
        check: which shard it is.
        fingerprint: names its receipt.
        raw: root of the raw tree.
        receipts: folder of the receipts.
        layout: decodes the samples.
        schema, encoding: what a record holds and how.
        full: hash every raw file, also where its stat vouches for it.
        packed: the records, some at a time: many entries wait, and a worker unpacks but a block of its own.
    """

    check: ShardCheck
    fingerprint: str
    raw: str
    receipts: Path
    layout: Layout
    schema: Schema
    encoding: str
    full: bool
    packed: tuple[PackedRecords, ...]

    def records(self) -> Iterator[RecordEntry]:
        """What to write, in order."""
        for block in self.packed:
            yield from block.unpack()


class PackedRecords(NamedTuple):
    """Some records by column, as they wait and travel: about a fifth of what they take as objects.

    Attributes:
        texts: compressed JSON of the columns of text, and of the number of files of each record.
        md5s: of all files, 16 bytes each.
        stats: sizes of all files, then modification times, change times and inodes; ``UNKNOWN`` without a stat.
    """

    texts: bytes
    md5s: bytes
    stats: array[int]

    def unpack(self) -> Iterator[RecordEntry]:
        """The records, in order."""
        sample_ids, labels, texts, counts, roles, paths = json.loads(zlib.decompress(self.texts))
        hexadecimal, files = self.md5s.hex(), len(paths)
        md5s = (hexadecimal[place : place + 32] for place in range(0, 32 * files, 32))
        columns = [self.stats[start : start + files] for start in range(0, 4 * files, files)]
        stats = (stat if stat[3] != UNKNOWN else None for stat in zip(*columns, strict=True))
        sources = map(SourceFile, roles, paths, columns[0], md5s, stats)
        for sample_id, indices, values, count in zip(sample_ids, labels, texts, counts, strict=True):
            yield RecordEntry(sample_id, tuple(indices), tuple(values), tuple(islice(sources, count)))


UNKNOWN = -1
"""Stands for the inode where there is no stat: none is negative."""


def pack_records(
    sample_ids: Sequence[str],
    labels: Sequence[Sequence[int]],
    texts: Sequence[Sequence[str]],
    counts: Sequence[int],
    roles: Sequence[str],
    paths: Sequence[str],
    sizes: Sequence[int],
    md5s: Sequence[str],
    stats: Sequence[tuple[int, int, int]],
) -> PackedRecords:
    """Pack the columns of some records and of their files.

    Args:
        sample_ids, labels, texts, counts: by record; ``counts`` says how many files each has.
        roles, paths, sizes, md5s: by file, in the order of the records.
        stats: ``(mtime_ns, ctime_ns, inode)`` by file; ``UNKNOWN`` for the inode where none vouches for the md5.
    """
    columns = json.dumps([sample_ids, labels, texts, counts, roles, paths])
    numbers = array("q", sizes)
    for column in zip(*stats, strict=True):
        numbers.extend(column)
    return PackedRecords(zlib.compress(columns.encode(), 1), bytes.fromhex("".join(md5s)), numbers)
