"""Temporary files that a killed builder left behind."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from shardtrail.folder import Folder


def stale_files(folder: Folder) -> Iterator[Path]:
    """The temporary files of dead writers.

    Files are locked while they are written, and the kernel drops the lock of whoever dies; a pid
    would not do: containers number from 1, and a dead worker may stay a zombie.
    """
    return _dead_files((folder.shards, folder.receipts, folder.data, folder.state))


def remove_stale(folder: Folder) -> int:
    """Remove them; how many there were. To be called under the lease, before work."""
    return _remove(stale_files(folder))


def remove_dead(places: Iterable[Path]) -> int:
    """Remove the temporary files of dead writers from these folders; how many there were."""
    return _remove(_dead_files(places))


def _remove(paths: Iterable[Path]) -> int:
    removed = 0
    for path in paths:
        path.unlink(missing_ok=True)
        removed += 1
    return removed


def _dead_files(places: Iterable[Path]) -> Iterator[Path]:
    """Each is locked while the caller has it: no writer takes it up meanwhile."""
    for path in itertools.chain.from_iterable(place.glob(".*.tmp") for place in places):
        if path.is_symlink() or not path.is_file():  # folders of the view and of unpacking have owners of their own
            continue
        with contextlib.suppress(BlockingIOError, FileNotFoundError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield path
