"""Mappers: how a stage has its units run on workers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import TYPE_CHECKING, TypeVar

from shardtrail.errors import PipelineError
from shardtrail.execution.processes import WorkerPool, process_pool
from shardtrail.execution.units import Mapper, Outcome, Workers, WorkersKilled, attempt, failure, guarded

if TYPE_CHECKING:
    from shardtrail.job import Job

U = TypeVar("U")
R = TypeVar("R")

Log = Callable[[int, str], None]
"""Takes a level and a line."""


def _log(level: int, text: str) -> None:
    logging.getLogger("shardtrail").log(level, text)


def run_units(
    stage: str,
    function: Callable[[U], R],
    units: Sequence[tuple[str, U]],
    workers: Workers,
    ahead: int = 0,
    log: Log = _log,
) -> Iterator[Outcome[R]]:
    """The plain mapper: few units are handed to the workers at a time, so that few are held in memory.

    The death of one worker takes units with it that did nothing wrong. Those in flight are run again, each alone in
    a fresh worker, so that only the one that kills its worker fails.

    Args:
        ahead: units in flight; 0: four a worker.
        log: takes what units logged, each line with its unit's label.
    """
    waiting = iter(units)
    running: dict[Future[Outcome[R]], tuple[str, U]] = {}
    while True:
        while len(running) < (ahead or 4 * workers.size) and (entry := next(waiting, None)) is not None:
            label, unit = entry
            try:
                running[workers.submit(guarded, function, label, unit)] = entry
            except PipelineError as error:
                yield failure(label, error)
        if not running:
            return
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            outcome = _settled(future, function, *running.pop(future), workers)
            for level, text in outcome.log:
                log(level, f"{outcome.label}: {text}")
            yield outcome


def _settled(
    future: Future[Outcome[R]], function: Callable[[U], R], label: str, unit: U, workers: Workers
) -> Outcome[R]:
    """The outcome of a unit that is through; where its worker died, of a second attempt."""
    try:
        return future.result()
    except workers.deadly as error:
        return _again(function, label, unit, workers, type(error).__name__)
    except CancelledError:
        return Outcome(label, None, str(WorkersKilled()) if workers.killed else workers.cut_off, transient=True)
    except Exception as error:
        return failure(label, error)


def _again(function: Callable[[U], R], label: str, unit: U, workers: Workers, death: str) -> Outcome[R]:
    try:
        with _alone(workers) as worker:
            return worker.submit(guarded, function, label, unit).result()
    except WorkersKilled as error:
        return failure(label, error)
    except workers.deadly + WorkerPool.deadly:
        if workers.killed:
            return failure(label, WorkersKilled())
        text = f"its worker process died ({death}: killed, or out of memory), and again when it ran alone"
        return Outcome(label, None, text, transient=True)


@contextlib.contextmanager
def _alone(workers: Workers) -> Iterator[Workers]:
    """A fresh worker on this machine that runs nothing else; one such at a time."""
    with workers.turn, process_pool(1) as pool:
        workers.lone = pool
        try:
            if workers.killed:
                raise WorkersKilled
            yield pool
        finally:
            workers.lone = None


@contextlib.contextmanager
def open_workers(job: Job) -> Iterator[Workers]:
    """The workers that ``compute`` in the job's parameters asks for; on an exception they are killed, not waited for.

    Raises:
        StoreUnavailable: no Dask scheduler answers at ``compute.address``, or it has no workers.
        ConfigError: a worker of that cluster does not see the folders or has another shardtrail.
    """
    compute = job.config.compute
    if compute.executor == "process":
        with process_pool(compute.workers) as pool:
            yield pool
        return
    from shardtrail.execution.dask import dask_workers

    with dask_workers(compute.address, compute.workers, job.folder, job.raw) as cluster:
        yield cluster


@contextlib.contextmanager
def open_mapper(job: Job) -> Iterator[Mapper]:
    """The plain mapper over the workers that the job's parameters ask for, started on first use."""
    with _started_on_use(lambda: open_workers(job)) as mapper:
        yield mapper


@contextlib.contextmanager
def local_mapper(workers: int = 0) -> Iterator[Mapper]:
    """The plain mapper over a process pool of its own, started on first use; 0: as many workers as cores."""
    with _started_on_use(lambda: process_pool(workers)) as mapper:
        yield mapper


@contextlib.contextmanager
def _started_on_use(start: Callable[[], contextlib.AbstractContextManager[Workers]]) -> Iterator[Mapper]:
    with contextlib.ExitStack() as stack:
        started: list[Workers] = []

        def mapper(stage: str, function: Callable[[U], R], units: Sequence[tuple[str, U]]) -> Iterator[Outcome[R]]:
            if not units:
                return iter(())
            if not started:
                started.append(stack.enter_context(start()))
            return run_units(stage, function, units, started[0])

        yield mapper


def serial_mapper(stage: str, function: Callable[[U], R], units: Sequence[tuple[str, U]]) -> Iterator[Outcome[R]]:
    """Every unit in this process, one after the other: for tests and debugging."""
    return (attempt(function, label, unit) for label, unit in units)
