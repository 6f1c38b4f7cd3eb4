"""The floors: copying the raw files, and reading them without writing anything."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from benchmarks.peers.sample import Read, Row


def copy(rows: Iterable[Row], read: Read, out: Path) -> int:
    """Copy every raw file into one file: what the disk and the kernel allow."""
    return _copy(rows, out, durably=False)


def copy_durably(rows: Iterable[Row], read: Read, out: Path) -> int:
    """The same, and wait until it is on the disk: the floor for a writer that does."""
    return _copy(rows, out, durably=True)


def only_read(rows: Iterable[Row], read: Read, out: Path) -> int:
    """Read and decode, and write nothing: the part that is the same for every peer."""
    return sum(1 for row in rows if read(row).id)


def _copy(rows: Iterable[Row], out: Path, durably: bool) -> int:
    count = 0
    with (out / "all.bin").open("wb", buffering=4 * 2**20) as file:
        for row in rows:
            for path in row.files.values():
                file.write(Path(path).read_bytes())
            count += 1
        if durably:
            file.flush()
            os.fsync(file.fileno())
    return count
