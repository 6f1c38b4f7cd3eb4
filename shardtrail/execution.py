"""How the units of a stage are run: in workers that import nothing heavy and die with their parent.

    with process_pool(workers) as executor:
        for outcome in run_units("shard", write_shard, [("train-00017", entry), ...], executor):
            ...

A *mapper* is ``run_units`` with its executor filled in; flows give stages one that makes task runs.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import context
from typing import Any, Generic, Protocol, TypeVar

from shardtrail.errors import PipelineError, StoreUnavailable

U = TypeVar("U")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """What came of one unit: a value, or the text of what went wrong."""

    label: str
    value: R | None
    error: str = ""
    transient: bool = False
    """Time may mend the error: an unavailable store, a worker that was killed."""


class Mapper(Protocol):
    """Runs ``function`` on every ``(label, unit)`` and yields outcomes as they come, in any order.

    ``function`` is at module level; it and the units pickle. A unit that fails gives an
    outcome with ``error``; the others are still tried.
    """

    def __call__(
        self, stage: str, function: Callable[[U], R], units: Sequence[tuple[str, U]]
    ) -> Iterator[Outcome[R]]: ...


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def guarded(function: Callable[[U], R], label: str, unit: U) -> Outcome[R]:
    """Run one unit in a worker. Never raises: an exception may not survive pickling, its text does."""
    try:
        return Outcome(label, function(unit))
    except Exception as error:
        return Outcome(label, None, _text(error), isinstance(error, StoreUnavailable))


def _text(error: BaseException) -> str:
    """Our own errors speak for themselves; of others the type is part of the message."""
    return str(error) if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"


def run_units(
    stage: str, function: Callable[[U], R], units: Sequence[tuple[str, U]], executor: Executor, ahead: int = 16
) -> Iterator[Outcome[R]]:
    """The plain mapper: at most ``ahead`` units are handed to the executor at a time.

    The death of one worker breaks a whole pool. The units in flight are then run again, each alone in a
    fresh worker, so that only the one that kills its worker fails.
    """
    waiting = iter(units)
    running: dict[Future[Outcome[R]], tuple[str, U]] = {}
    while True:
        while len(running) < ahead and (entry := next(waiting, None)) is not None:
            label, unit = entry
            try:
                running[executor.submit(guarded, function, label, unit)] = entry
            except PoolKilled as error:
                yield Outcome(label, None, str(error))
        if not running:
            return
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            label, unit = running.pop(future)
            try:
                yield future.result()
            except (BrokenProcessPool, CancelledError):
                if isinstance(executor, WorkerPool) and executor.killed:
                    yield Outcome(label, None, str(PoolKilled()))
                else:
                    yield _alone(function, label, unit)
            except Exception as error:
                yield Outcome(label, None, _text(error))


class PoolKilled(PipelineError, RuntimeError):
    """The pool was ended while units were in flight: they were interrupted, not at fault."""

    def __init__(self) -> None:
        super().__init__("interrupted")


_alone_lock = threading.Lock()


def _alone(function: Callable[[U], R], label: str, unit: U) -> Outcome[R]:
    with _alone_lock, process_pool(1) as pool:
        try:
            return pool.submit(guarded, function, label, unit).result()
        except BrokenProcessPool:
            text = "its worker process died (killed, or out of memory), and again when it ran alone"
            return Outcome(label, None, text, transient=True)


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


class WorkerPool(Executor):
    """Spawned worker processes; when one dies, the pool is replaced at the next submission."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self._pool = self._new()
        self.killed = False

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._workers, mp_context=_QuietContext(), initializer=_start_worker)

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """As ``concurrent.futures.Executor.submit``."""
        with self._lock:
            if self.killed:
                raise PoolKilled
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
            self.killed = True
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
def process_pool(workers: int = 0) -> Iterator[Executor]:
    """A pool of spawned worker processes; on an exception they are killed, not waited for.

    Args:
        workers: processes; 0 means as many as there are usable cores.
    """
    pool = WorkerPool(workers or cores())
    try:
        yield pool
    except BaseException:
        pool.kill()
        raise
    pool.shutdown(wait=True)


@contextlib.contextmanager
def local_mapper(workers: int = 0) -> Iterator[Mapper]:
    """A mapper over a process pool of its own, started on first use."""
    with contextlib.ExitStack() as stack:
        pool: list[Executor] = []

        def mapper(stage: str, function: Callable[[U], R], units: Sequence[tuple[str, U]]) -> Iterator[Outcome[R]]:
            if units and not pool:
                pool.append(stack.enter_context(process_pool(workers)))
            return run_units(stage, function, units, pool[0]) if units else iter(())

        yield mapper


def serial_mapper(stage: str, function: Callable[[U], R], units: Sequence[tuple[str, U]]) -> Iterator[Outcome[R]]:
    """Every unit in this process, one after the other: for tests and debugging."""
    return (guarded(function, label, unit) for label, unit in units)


__all__ = [
    "Mapper",
    "Outcome",
    "WorkerPool",
    "cores",
    "guarded",
    "local_mapper",
    "process_pool",
    "run_units",
    "serial_mapper",
]
