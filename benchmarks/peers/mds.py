"""mosaicml-streaming: an MDSWriter a process below one folder, then its merge_index, as its page on parallel
conversion does. Without compression and without ``hashes``, which are its defaults."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from streaming import MDSWriter
from streaming.base.util import merge_index

from benchmarks.peers.sample import Read, Row, Sample


def write(rows: Sequence[Row], read: Read, out: Path) -> int:
    """MDS shards of the default size."""
    count = 0
    with MDSWriter(columns=_columns(read(rows[0])), out=str(out), exist_ok=True) as writer:
        for sample in map(read, rows):
            writer.write({"sample_id": sample.id, "labels": list(sample.labels), **sample.arrays, **sample.images})
            count += 1
    return count


def merge(out: Path) -> None:
    """One index of all parts."""
    merge_index(str(out), keep_local=True)


def _columns(sample: Sample) -> dict[str, str]:
    columns = {"sample_id": "str", "labels": "json"}
    for name, array in sample.arrays.items():
        columns[name] = f"ndarray:{array.dtype}:{','.join(map(str, array.shape))}"
    return columns | dict.fromkeys(sample.images, "bytes")
