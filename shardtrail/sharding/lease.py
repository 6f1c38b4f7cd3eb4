"""The lease on a working folder: one builder at a time writes plan, dataset.json and the view.

    with lease(job.folder, job.progress.say):
        ...

On one machine, containers included, it is an ``flock``, which the kernel gives back however its holder ends: a
dead builder is taken over at once. Machines that share the folder may not share its locks (NFS mounted with
``nolock``, most object mounts). So the holder also keeps a note in ``.shardtrail/lease`` and counts on in it while
it lives. A holder on another machine is taken for dead when its note was watched for ``STILL_SECONDS`` and did
not change: clocks are not compared, nor are pids, which every container counts from 1.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shardtrail.errors import LeaseHeld, PipelineError
from shardtrail.folder import Folder

BEAT_SECONDS = 10.0
"""How often a holder counts on."""

STILL_SECONDS = 60.0
"""How long the note of another machine has to stand still until its writer is taken for dead."""

LOOK_SECONDS = 1.0
"""How often it is looked at meanwhile."""

_NOTE_BYTES = 1024
"""A note is always written as a whole, so that nobody reads parts of two."""


def _kernel() -> str:
    """Names the running kernel: the processes that have the same one share its locks. A new one after every boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return socket.gethostname()


KERNEL = _kernel()

_lock = threading.Lock()
_held: dict[Path, _Hold] = {}


@contextlib.contextmanager
def lease(folder: Folder, say: Callable[[str], None] = lambda line: None) -> Iterator[None]:
    """Hold the lease on ``folder``. A process that holds it already may take it again.

    Args:
        say: told when a holder on another machine has to be watched, which takes up to ``STILL_SECONDS``.

    Raises:
        LeaseHeld: a live process holds it, or took it over while this one stood still for so long that it was taken
            for dead; the text names its pid, its host and since when.
    """
    path = folder.state / "lease"
    with _lock:
        if path not in _held:
            _held[path] = _acquire(path, say)
        hold = _held[path]
        hold.times += 1
    try:
        hold.confirm()
        yield
        hold.confirm()
    finally:
        with _lock:
            hold.times -= 1
            if not hold.times:
                del _held[path]
                hold.release()


class _Hold:
    """The lease as this process holds it: a locked file, and a note that a thread renews."""

    def __init__(self, path: Path, descriptor: int, before: Mapping[str, Any] | None) -> None:
        self.times = 0
        self._path, self._descriptor = path, descriptor
        self._owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "kernel": KERNEL,
            "token": os.urandom(8).hex(),
        }
        # On a full disk the note of who held it before may stay.
        self._known = {self._owner["token"], before["token"] if before else ""}
        self._beat = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._count_on, name="lease", daemon=True)
        self._note()

    def start(self) -> None:
        """Begin to count on."""
        self._thread.start()

    def confirm(self) -> None:
        """Make sure that the note is still ours; a missing or unreadable one is nobody's."""
        owner = _read(self._path)
        if owner and owner["token"] not in self._known:
            raise LeaseHeld(
                f"{self._path.parent.parent} is being built by {_named(owner)}, which found this process at a "
                "standstill and took over. Wait for it to end, then run again"
            )

    def release(self) -> None:
        """Give the lease back."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError, LeaseHeld):
            self.confirm()
            os.truncate(self._path, 0)
        os.close(self._descriptor)

    def _count_on(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self.confirm()
            except LeaseHeld:
                return
            self._beat += 1
            self._note()

    def _note(self) -> None:
        # On a full disk there is no note, and still the lock: `gc` must be able to make room.
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                os.pwrite(descriptor, json.dumps({**self._owner, "beat": self._beat}).encode().ljust(_NOTE_BYTES), 0)
                os.ftruncate(descriptor, _NOTE_BYTES)
            finally:
                os.close(descriptor)  # sends it to the server of a shared file system


def _acquire(path: Path, say: Callable[[str], None]) -> _Hold:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name("lease.lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise PipelineError(f"{lock} cannot be opened ({error.strerror}); a build has to write there") from error
    try:
        _flock(lock, descriptor)
        before = _read(path)
        foreign = before is not None and before["kernel"] != KERNEL
        if before and foreign:
            _watch(path, before, say)
        hold = _Hold(path, descriptor, before)
        if foreign:  # another machine may have watched as well: of two notes the later one counts
            time.sleep(2 * LOOK_SECONDS)
            hold.confirm()
        hold.start()
    except BaseException:
        os.close(descriptor)
        raise
    return hold


def _flock(lock: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = _read(lock.with_name("lease"))
        raise LeaseHeld(
            f"{lock.parent.parent} is being built by {_named(owner) if owner else 'another process'}. Wait for it to "
            "end, or end it; a process that died holds nothing."
        ) from None
    except OSError as error:
        raise PipelineError(
            f"{lock} cannot be locked ({error.strerror}); put the working folder on a file system that knows flock "
            "(NFS without a lock server knows it when mounted with nolock)"
        ) from error


def _watch(path: Path, before: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Return when the note stood still for long enough.

    Raises:
        LeaseHeld: it changed.
    """
    say(
        f"{path.parent.parent} was last built by {_named(before)}, whose lock cannot be seen from here: "
        f"if its note stands still for {STILL_SECONDS:.0f} s, it is dead and taken over"
    )
    end = time.monotonic() + STILL_SECONDS
    while time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        owner = _read(path)
        if owner is None:  # given back
            return
        if owner != before:
            raise LeaseHeld(f"{path.parent.parent} is being built by {_named(owner)}. Wait for it to end, or end it")


def _read(path: Path) -> dict[str, Any] | None:
    """The note; None if there is none, or none that is as a holder writes it."""
    try:
        with path.open("rb") as file:  # opened each time: only so does NFS look at what is on the server
            owner = json.loads(file.read(_NOTE_BYTES))
        return owner if {"pid", "host", "started", "kernel", "token", "beat"} <= owner.keys() else None
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def _named(owner: Mapping[str, Any]) -> str:
    return f"process {owner['pid']} on {owner['host']} since {owner['started']}"
