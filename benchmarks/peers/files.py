"""The floors: copying the raw files, and reading them without writing anything."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.peers.sample import Read, Row


def copy(rows: Iterable[Row], read: Read, out: Path) -> int:
    """Copy every raw file into one file: what the disk and the kernel allow."""
    count = 0
    with (out / "all.bin").open("wb", buffering=4 * 2**20) as file:
        for row in rows:
            for path in row.files.values():
                file.write(Path(path).read_bytes())
            count += 1
    return count


def only_read(rows: Iterable[Row], read: Read, out: Path) -> int:
    """Read and decode, and write nothing: the part that is the same for every peer."""
    return sum(1 for row in rows if read(row).id)
