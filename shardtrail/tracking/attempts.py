"""Runs that are ended, or continued, whatever killed their process."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from shardtrail.errors import LeaseHeld
from shardtrail.tracking.store import Store


@contextlib.contextmanager
def attempt(store: Store, state: Path, experiment: str, key: str, name: str) -> Iterator[str]:
    """A run that is FINISHED when the block is left, FAILED on an exception, KILLED on SIGTERM or Ctrl-C.

    A marker in ``state / "runs"`` names the run and stays locked while its process lives. A marker that is not
    locked belongs to a process that is gone: with the same ``key`` its run is continued, with another one it is
    ended as KILLED, so that no run is shown as running for ever.

    Args:
        experiment: id of the experiment.
        key: what the run is the attempt of.
        name: shown for a new run.

    Yields:
        The run's id.

    Raises:
        LeaseHeld: another live process is at the same key.
    """
    folder = state / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    own = folder / f"{hashlib.sha256(f'{store.address} {experiment} {key}'.encode()).hexdigest()[:32]}.json"
    _end_orphans(store, folder, own)
    with own.open("a+", encoding="utf-8") as marker:
        if not _lock(marker):
            raise LeaseHeld(f"another process is recording {name} from this folder; wait for it or end it: {own}")
        run_id = _continued(store, marker) or _created(store, marker, experiment, name)
        try:
            with _sigterm_exits():
                yield run_id
        except BaseException as error:
            status = "FAILED" if isinstance(error, Exception) else "KILLED"
            _end(store, run_id, status)
            raise
        store.client.set_terminated(run_id, "FINISHED")
        own.unlink(missing_ok=True)


def _continued(store: Store, marker: IO[str]) -> str | None:
    """The run that the marker names, set running again; None if there is none to go on with."""
    from mlflow.exceptions import MlflowException

    content = _read(marker)
    if not content:
        return None
    run_id: str = content["run_id"]
    try:
        info = store.client.get_run(run_id).info
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    if info.lifecycle_stage != "active" or info.status == "FINISHED":
        return None
    store.client.update_run(run_id, status="RUNNING")
    return run_id


def _created(store: Store, marker: IO[str], experiment: str, name: str) -> str:
    run_id: str = store.client.create_run(experiment, run_name=name).info.run_id
    marker.seek(0)
    marker.truncate()
    json.dump({"address": store.address, "run_id": run_id}, marker)
    marker.flush()
    os.fsync(marker.fileno())
    return run_id


def _end_orphans(store: Store, folder: Path, own: Path) -> None:
    for path in sorted(folder.glob("*.json")):
        if path == own:
            continue
        with contextlib.suppress(FileNotFoundError), path.open("r+", encoding="utf-8") as marker:
            if not _lock(marker):
                continue
            content = _read(marker)
            if content and content["address"] == store.address:
                _end(store, content["run_id"], "KILLED", only_running=True)


def _end(store: Store, run_id: str, status: str, only_running: bool = False) -> None:
    """End a run if the server can be reached; an unreachable one is told by the next attempt."""
    from mlflow.exceptions import MlflowException

    with contextlib.suppress(MlflowException):
        if not only_running or store.client.get_run(run_id).info.status == "RUNNING":
            store.client.set_terminated(run_id, status)


def _read(marker: IO[str]) -> dict[str, Any] | None:
    marker.seek(0)
    try:
        content: dict[str, Any] = json.load(marker)
    except ValueError:  # killed before the run's id was written
        return None
    return content


def _lock(file: IO[str]) -> bool:
    """Lock a file until it is closed; the kernel lets go of it when the process dies."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _sigterm_exits() -> Iterator[None]:
    """SIGTERM raises SystemExit inside the block, unless somebody already handles it."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
