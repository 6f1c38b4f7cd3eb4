"""What a worker is given to build one shard. Imports nothing heavy: workers load this module."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
    """

    address: str
    name: str
    shards: Path
    sample_ids: tuple[str, ...] | None
    records: int
    md5: str = ""

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
        packed: the records, as ``pack_records`` gives them: many entries wait at a time.
    """

    check: ShardCheck
    fingerprint: str
    raw: Path
    receipts: Path
    layout: Layout
    schema: Schema
    encoding: str
    full: bool
    packed: bytes

    def records(self) -> Iterator[RecordEntry]:
        """What to write, in order."""
        for line in zlib.decompress(self.packed).splitlines():
            sample_id, labels, texts, files = json.loads(line)
            sources = (SourceFile(role, path, size, md5, stat and tuple(stat)) for role, path, size, md5, stat in files)
            yield RecordEntry(sample_id, tuple(labels), tuple(texts), tuple(sources))


def pack_records(records: Iterable[RecordEntry]) -> bytes:
    """Records as compressed lines of JSON, about a tenth of what they take as objects."""
    packer = zlib.compressobj(level=1)
    parts = []
    for record in records:
        files = [(file.role, file.path, file.size, file.md5, file.stat) for file in record.files]
        line = json.dumps([record.sample_id, record.labels, record.texts, files])
        parts.append(packer.compress(line.encode() + b"\n"))
    return b"".join([*parts, packer.flush()])
