"""Temporary files that a killed builder left behind."""

from __future__ import annotations

import contextlib
import fcntl
import itertools

from shardtrail.folder import Folder


def remove_stale(folder: Folder) -> int:
    """Remove the temporary files of dead writers; how many there were. To be called under the lease, before work.

    Shards are locked while they are written, and the kernel drops the lock of whoever dies; a pid
    would not do: containers number from 1, and a dead worker may stay a zombie.
    """
    left = itertools.chain(
        folder.shards.glob(".*.tmp"),
        folder.receipts.glob(".*.tmp"),
        folder.data.glob(".plan.*.tmp"),
        folder.data.glob(".dataset.*.tmp"),
    )
    removed = 0
    for path in left:
        with contextlib.suppress(BlockingIOError, FileNotFoundError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            removed += 1
    return removed
