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
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import context
from typing import Any, Generic, Protocol, TypeVar

U = TypeVar("U")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """What came of one unit: a value, or the text of what went wrong."""

    label: str
    value: R | None
    error: str = ""


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
        return Outcome(label, None, f"{type(error).__name__}: {error}")


def run_units(
    stage: str, function: Callable[[U], R], units: Sequence[tuple[str, U]], executor: Executor, ahead: int = 64
) -> Iterator[Outcome[R]]:
    """The plain mapper: at most ``ahead`` units are handed to the executor at a time."""
    waiting = iter(units)
    running: dict[Future[Outcome[R]], str] = {}
    while True:
        while len(running) < ahead and (entry := next(waiting, None)) is not None:
            label, unit = entry
            running[executor.submit(guarded, function, label, unit)] = label
        if not running:
            return
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            label = running.pop(future)
            yield settle(label, future)


def settle(label: str, future: Future[Outcome[R]]) -> Outcome[R]:
    """The outcome of a finished future, a dead worker included."""
    try:
        return future.result()
    except BrokenProcessPool:
        return Outcome(label, None, "WorkerDied: a worker process died (killed, or out of memory); run again")
    except Exception as error:
        return Outcome(label, None, f"{type(error).__name__}: {error}")


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


@contextlib.contextmanager
def process_pool(workers: int = 0) -> Iterator[Executor]:
    """A pool of spawned worker processes; on an exception they are killed, not waited for.

    Args:
        workers: processes; 0 means as many as there are usable cores.
    """
    executor = ProcessPoolExecutor(workers or cores(), mp_context=_QuietContext(), initializer=_start_worker)
    try:
        yield executor
    except BaseException:
        # shutdown() forgets the processes, so they are listed before it.
        children = list((executor._processes or {}).values())
        for child in children:
            child.kill()
        executor.shutdown(wait=False, cancel_futures=True)
        raise
    executor.shutdown(wait=True)


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
    "cores",
    "guarded",
    "local_mapper",
    "process_pool",
    "run_units",
    "serial_mapper",
    "settle",
]
