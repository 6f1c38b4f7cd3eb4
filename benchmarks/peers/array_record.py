"""array_record: pickled samples, one ArrayRecordWriter a process, one record a group for random access."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path

from array_record.python.array_record_module import ArrayRecordWriter

from benchmarks.peers.sample import Read, Row


def write(rows: Iterable[Row], read: Read, out: Path) -> int:
    """As documented, which compresses every record with Zstandard."""
    return _write(rows, read, out, "group_size:1")


def write_uncompressed(rows: Iterable[Row], read: Read, out: Path) -> int:
    """The same without compression."""
    return _write(rows, read, out, "group_size:1,uncompressed")


def _write(rows: Iterable[Row], read: Read, out: Path, options: str) -> int:
    writer = ArrayRecordWriter(str(out / "part.array_record"), options)
    count = 0
    for row in rows:
        sample = read(row)
        record = {"sample_id": sample.id, "labels": list(sample.labels), **sample.arrays, **sample.images}
        writer.write(pickle.dumps(record, protocol=pickle.HIGHEST_PROTOCOL))
        count += 1
    writer.close()
    return count
