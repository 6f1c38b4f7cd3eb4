"""Workers of a Dask cluster: one that is up elsewhere, or one of processes of this machine.

A cluster on several machines works on one shared folder: every worker proves that it sees the working folder and the
raw data, and that it has this shardtrail, before it is given a unit.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import distributed
from distributed import KilledWorker

from shardtrail.errors import ConfigError, StoreUnavailable
from shardtrail.execution.in_worker import Place, faults, here, run
from shardtrail.execution.processes import cores, killed_on_error
from shardtrail.execution.units import Workers, WorkersKilled
from shardtrail.folder import Folder

R = TypeVar("R")

PATIENCE_SECONDS = 15
"""How long a scheduler, and then the first of its workers, is waited for."""


@contextlib.contextmanager
def dask_workers(address: str, workers: int, folder: Folder, raw: Path) -> Iterator[Workers]:
    """Workers of a Dask cluster; on an exception those of this machine are killed, not waited for.

    Units that a cluster elsewhere has begun are not interrupted by an exception: their results are dropped, and a shard
    that is written late has the bytes that its retry gives it.

    Args:
        address: of the scheduler, such as ``tcp://host:8786``; empty for a cluster of this machine's own, which ends
            with the block, or with this process however that ends.
        workers: single-threaded processes of a cluster of this machine's own; 0 means as many as there are cores.
        folder, raw: the working folder and the root of the raw tree, which every worker must see.

    Raises:
        StoreUnavailable: nothing answers at ``address``, or no worker is there.
        ConfigError: a worker does not see the folders or has another shardtrail; its host is named.
    """
    with contextlib.ExitStack() as stack:
        cluster: DaskWorkers
        if address:
            place = stack.enter_context(_marked(folder, raw))
            client = stack.enter_context(_connected(address))
            _check(client, place, address)
            cluster = RemoteWorkers(client, place, address)
        else:
            cluster = LocalWorkers(workers or cores(), here(folder.root))
        stack.enter_context(killed_on_error(cluster))
        yield cluster


@dataclass(frozen=True, slots=True)
class Member:
    """One worker of a cluster, as ``members`` found it."""

    host: str
    threads: int
    faults: tuple[str, ...]


def members(address: str, folder: Folder, raw: Path) -> list[Member]:
    """The workers of a cluster that is up, and what keeps each from building in this folder.

    Raises:
        StoreUnavailable: as ``dask_workers``.
    """
    with _marked(folder, raw) as place, _connected(address) as client:
        return _members(client, place)


class DaskWorkers(Workers):
    """A Dask client as the workers of a stage.

    ``Client.get_executor()`` would do but for one thing: where the connection breaks while a result is fetched, its
    future is never settled, and who waits for it waits for ever. Here every future that was given out is settled.
    """

    deadly: tuple[type[BaseException], ...] = (KilledWorker,)

    def __init__(self, size: int, client: Any, place: Place) -> None:
        super().__init__(size)
        self._place = place
        self._client = client
        self._lock = threading.Lock()
        self._pending: dict[Future[Any], Any] = {}

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """As ``concurrent.futures.Executor.submit``.

        Raises:
            StoreUnavailable: the scheduler has been gone for too long.
        """
        # Pickled here, so that Dask neither looks into the unit nor unpickles it before the worker can import it.
        work = pickle.dumps((fn, args, kwargs))
        with self._lock:
            if self.killed:
                raise WorkersKilled
            future: Future[R] = Future()
            try:
                self._pending[future] = remote = self._ready().submit(run, self._place, work, pure=False)
            except (OSError, RuntimeError) as error:  # by Dask, of a connection that closed just now
                raise StoreUnavailable(self.cut_off) from error
        remote.add_done_callback(functools.partial(self._settle, future))
        return future

    def _ready(self) -> Any:
        """The client to submit to."""
        return self._client

    def _settle(self, future: Future[Any], remote: Any) -> None:
        try:
            result = remote.result(timeout=PATIENCE_SECONDS)
        except (CancelledError, asyncio.CancelledError, OSError):
            self._drop([future])
        except Exception as error:
            if self._pending.pop(future, None) is not None:
                future.set_exception(error)
        else:
            if self._pending.pop(future, None) is not None:
                future.set_result(result)

    def _drop(self, lost: Iterable[Future[Any]]) -> None:
        """Cancel what has not been settled; ``pop`` lets one thread alone settle a future."""
        for future in lost:
            if self._pending.pop(future, None) is not None and future.cancel():
                future.set_running_or_notify_cancel()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As ``concurrent.futures.Executor.shutdown``."""
        if wait and not cancel_futures:
            futures.wait(list(self._pending))
            return
        with contextlib.suppress(Exception):  # of a scheduler that is gone
            self._client.cancel(list(self._pending.values()))
        self._drop(list(self._pending))


class RemoteWorkers(DaskWorkers):
    """The workers of a cluster that was there before and stays."""

    def __init__(self, client: Any, place: Place, address: str) -> None:
        super().__init__(sum(client.nthreads().values()), client, place)
        self.cut_off = f"the connection to the Dask scheduler at {address} was lost"
        self._address = address

    def _ready(self) -> Any:
        if self._client.status in ("closed", "closing"):
            self._drop(list(self._pending))
            self._client = _connect(self._address)
        return self._client

    def kill(self) -> None:
        """Drop what was submitted; what has begun runs to its end over there."""
        with self._lock:
            super().kill()
        self.shutdown(wait=False)


class LocalWorkers(DaskWorkers):
    """A cluster of this machine's own: scheduler and workers in a process group that ends with this process.

    Where it has died, the next submission starts another, as with the pool.
    """

    deadly = (KilledWorker, CancelledError)
    cut_off = "the Dask cluster of this machine ended"

    def __init__(self, size: int, place: Place) -> None:
        self._cluster = _LocalCluster(size)
        super().__init__(size, self._cluster.client(), place)

    def _ready(self) -> Any:
        if not self._cluster.alive:
            self._end()
            self._cluster = _LocalCluster(self.size)
            self._client = self._cluster.client()
        return self._client

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As ``concurrent.futures.Executor.shutdown``."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        self._end()

    def kill(self) -> None:
        """End the workers at once, whatever they are doing."""
        with self._lock:
            super().kill()
        self._end()

    def _end(self) -> None:
        self._cluster.kill()
        self._client.close(timeout=2)
        self._drop(list(self._pending))


class _LocalCluster:
    """``python -m shardtrail.execution.local_cluster`` in a session of its own."""

    def __init__(self, size: int) -> None:
        # Short, since sockets may lie within; the process removes it if this one cannot.
        self._scratch = tempfile.mkdtemp(prefix="shardtrail-dask-")
        log = Path(self._scratch, "log")
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "shardtrail.execution.local_cluster", str(size), self._scratch],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # its group is ours to kill, and Ctrl-C does not reach it
            )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        if not self.address:
            said = log.read_text(errors="replace").strip()
            self.kill()
            raise StoreUnavailable(f"the Dask cluster of this machine did not start:\n{said}")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def client(self) -> Any:
        try:
            return _connect(self.address)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End scheduler and workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


_client: Any = distributed.Client


def _connect(address: str) -> Any:
    # Dask tells the terminal of every lost connection; those who wait for a unit are told by its outcome.
    for name in ("distributed", "distributed.client", "distributed.core", "distributed.batched"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        return _client(address, timeout=PATIENCE_SECONDS, set_as_default=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"compute.address {address} cannot be used: {error}; for tls:// set distributed.comm.tls (ca-file, client "
            "key and cert) in Dask's own configuration"
        ) from error
    except OSError as error:
        raise StoreUnavailable(
            f"no Dask scheduler answers at {address} ({error}); start it and its workers (dask scheduler, dask worker "
            f"{address} --nthreads 1), or correct compute.address"
        ) from error


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Any]:
    client = _connect(address)
    try:
        try:
            client.wait_for_workers(1, timeout=PATIENCE_SECONDS)
        except TimeoutError as error:
            raise StoreUnavailable(
                f"the Dask scheduler at {address} has no workers; start some: dask worker {address} --nthreads 1"
            ) from error
        yield client
    finally:
        client.close(timeout=2)


@contextlib.contextmanager
def _marked(folder: Folder, raw: Path) -> Iterator[Place]:
    """The place to work in, marked by a file: only who sees the very folder reads its content."""
    folder.state.mkdir(parents=True, exist_ok=True)
    token = os.urandom(16).hex()
    mark = folder.state / f"dask.{os.getpid()}-{token[:8]}.tmp"
    mark.write_text(token)
    try:
        yield here(folder.root, (str(raw),) if raw.exists() else (), str(mark), token)
    finally:
        mark.unlink(missing_ok=True)


def _members(client: Any, place: Place) -> list[Member]:
    found: Mapping[str, Any] = client.run(faults, place, on_error="return")
    threads = client.nthreads()
    return [
        Member(
            host=worker.partition("://")[2],
            threads=threads.get(worker, 0),
            faults=(f"{type(answer).__name__}: {answer}",) if isinstance(answer, BaseException) else answer,
        )
        for worker, answer in sorted(found.items())
    ]


def _check(client: Any, place: Place, address: str) -> None:
    bad = [member for member in _members(client, place) if member.faults]
    if bad:
        lines = [f"  {member.host}: {'; '.join(member.faults)}" for member in bad]
        raise ConfigError(
            f"workers of the Dask cluster at {address} cannot build here:\n"
            + "\n".join(lines)
            + "\nAll machines must see the folders under the same paths and have the same shardtrail"
        )
