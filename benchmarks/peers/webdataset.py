"""webdataset: a ShardWriter a process, ``.npy`` for bands, encoded images as they are, labels as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from webdataset import ShardWriter

from benchmarks.peers.sample import Read, Row


def write(rows: Iterable[Row], read: Read, out: Path) -> int:
    """Tar shards of its default size."""
    count = 0
    with ShardWriter(str(out / "part-%06d.tar"), verbose=0) as writer:
        for row in rows:
            sample = read(row)
            entries = {f"{name.lower()}.npy": array for name, array in sample.arrays.items()}
            images = {f"{name}.jpg": image for name, image in sample.images.items()}
            writer.write({"__key__": sample.id, "labels.json": list(sample.labels), **entries, **images})
            count += 1
    return count
