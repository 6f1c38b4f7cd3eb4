"""A pool of processes on this machine that import nothing heavy and die with their parent."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import context
from typing import Any, TypeVar

from shardtrail.execution.units import Workers, WorkersKilled

R = TypeVar("R")


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_main_lock = threading.Lock()


class _QuietProcess(context.SpawnProcess):
    """A spawned process that does not re-run its parent's ``__main__``, which may be heavy."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        with _main_lock:
            real, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
            try:
                return context.SpawnProcess._Popen(process_obj)
            finally:
                sys.modules["__main__"] = real


class _QuietContext(context.SpawnContext):
    Process = _QuietProcess


def _start_worker() -> None:
    """Ignore Ctrl-C (the parent decides) and leave when the parent is gone, however it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class WorkerPool(Workers):
    """Spawned worker processes; when one dies, the pool is replaced at the next submission."""

    deadly = (BrokenProcessPool, CancelledError)

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._lock = threading.Lock()
        self._pool = self._new()

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self.size, mp_context=_QuietContext(), initializer=_start_worker)

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """As ``concurrent.futures.Executor.submit``."""
        with self._lock:
            if self.killed:
                raise WorkersKilled
            try:
                return self._pool.submit(fn, *args, **kwargs)
            except BrokenProcessPool:
                self._pool = self._new()
                return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As ``concurrent.futures.Executor.shutdown``."""
        self._pool.shutdown(wait=wait, cancel_futures=cancel_futures)

    def kill(self) -> None:
        """End the workers at once, whatever they are doing."""
        with self._lock:
            super().kill()
        # shutdown() forgets the processes and the manager, so they are noted before it.
        children = list((self._pool._processes or {}).values())
        manager: Any = self._pool._executor_manager_thread
        for child in children:
            child.kill()
        # Not cancelled: a cancelled future never wakes those who wait for it; a broken one does.
        self.shutdown(wait=False)
        if manager is not None:
            manager.join(5)  # or it closes its pipe just as the interpreter, on its way out, writes to it


@contextlib.contextmanager
def process_pool(workers: int = 0) -> Iterator[WorkerPool]:
    """A pool of spawned worker processes; on an exception they are killed, not waited for.

    Args:
        workers: processes; 0 means as many as there are usable cores.
    """
    pool = WorkerPool(workers or cores())
    with killed_on_error(pool):
        yield pool


@contextlib.contextmanager
def killed_on_error(workers: Workers) -> Iterator[None]:
    """Wait for the workers at the end of the block; on an exception, however it came, kill them."""
    try:
        yield
    except BaseException:
        workers.kill()
        raise
    workers.shutdown(wait=True)
