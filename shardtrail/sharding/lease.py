"""The lease on a working folder: one builder at a time writes plan, dataset.json and the view.

    with lease(job.folder):
        ...

It is an ``flock`` on ``.shardtrail/lease``, which the kernel gives back however its holder ends, so a
dead builder is taken over without a timeout. The file names the holder for whoever is turned away.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from shardtrail.errors import LeaseHeld, PipelineError
from shardtrail.folder import Folder

_lock = threading.Lock()
_held: dict[Path, tuple[int, int]] = {}
"""Path of the lease -> its descriptor and how often this process holds it."""


@contextlib.contextmanager
def lease(folder: Folder) -> Iterator[None]:
    """Hold the lease on ``folder``. A process that holds it already may take it again.

    Raises:
        LeaseHeld: a live process holds it; the text names its pid, its host and since when.
    """
    path = folder.state / "lease"
    with _lock:
        descriptor, times = _held.get(path) or (_acquire(path), 0)
        _held[path] = (descriptor, times + 1)
    try:
        yield
    finally:
        with _lock:
            descriptor, times = _held.pop(path)
            if times > 1:
                _held[path] = (descriptor, times - 1)
            else:
                # Emptied, not removed: a waiting process may have the file open.
                os.ftruncate(descriptor, 0)
                os.close(descriptor)


def _acquire(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Where several hosts share the folder without sharing flock, a heartbeat has to be looked for here.
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
    except BlockingIOError:
        found = _owner(descriptor)
        os.close(descriptor)
        raise LeaseHeld(
            f"{path.parent.parent} is being built by {found}. Wait for it to end, or end it; "
            "a process that died holds nothing."
        ) from None
    except OSError as error:
        os.close(descriptor)
        raise PipelineError(
            f"{path} cannot be locked ({error.strerror}); put the working folder on a file system that knows flock"
        ) from error
    return descriptor


def _owner(descriptor: int) -> str:
    """Who holds the lease, as far as the file says: its holder may be just about to write it."""
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {owner['pid']} on {owner['host']} since {owner['started']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
