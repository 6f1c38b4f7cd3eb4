"""Units of a stage as Prefect task runs: at most ``MOST_RUNS`` a stage, each over a batch of units.

What is done is read from disk by the stage, never from Prefect: a retried flow run submits only
what is missing, whatever was edited, killed or restarted meanwhile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.tasks import exponential_backoff

from shardtrail.errors import PipelineError, StoreUnavailable
from shardtrail.execution import Mapper, Outcome, Workers, run_units

U = TypeVar("U")
R = TypeVar("R")

MOST_RUNS = 96
"""Of a stage; a build whose stages all have work stays below 300 task runs. A burst of more than a server's event queue
can take is lost without a word."""

Event = Outcome[Any] | PrefectFuture[None]
"""A unit is done, or a batch has come to its end."""


class UnitsFailed(PipelineError, RuntimeError):
    """Units of one batch failed; ``transient`` if time may mend all of them."""

    def __init__(self, text: str, transient: bool) -> None:
        self.transient = transient
        super().__init__(text)


@dataclass
class _Batch:
    """What a task run needs beyond its labels; reaches the runner's threads through the context."""

    stage: str
    function: Callable[[Any], Any]
    units: list[tuple[str, Any]]
    workers: Workers
    ahead: int
    events: SimpleQueue[Event]
    done: set[str] = field(default_factory=set)
    failed: dict[str, Outcome[Any]] = field(default_factory=dict)


_batch: ContextVar[_Batch] = ContextVar("batch")


def is_transient(_task: object, _run: object, state: Any) -> bool:
    """Time mends an unavailable store or a lost worker; it does not mend a bad file."""
    error = state.result(raise_on_failure=False) if state.is_failed() else None
    return isinstance(error, StoreUnavailable) or (isinstance(error, UnitsFailed) and error.transient)


@task(
    task_run_name="{stage} {units}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=3,
    retry_delay_seconds=exponential_backoff(2),  # 2, 4, 8 s
    retry_jitter_factor=0.5,
    retry_condition_fn=is_transient,
)
def run_batch(stage: str, units: str) -> None:
    """Run one batch of a stage's units. Repeating is safe: a unit's name fixes its bytes."""
    batch = _batch.get()
    batch.failed.clear()
    missing = [unit for unit in batch.units if unit[0] not in batch.done]
    for outcome in run_units(stage, batch.function, missing, batch.workers, batch.ahead, get_run_logger().log):
        if outcome.error:
            batch.failed[outcome.label] = outcome
        else:
            batch.done.add(outcome.label)
            batch.events.put(outcome)
    if batch.failed:
        raise UnitsFailed(
            "\n".join(f"{label}: {outcome.error}" for label, outcome in batch.failed.items()),
            all(outcome.transient for outcome in batch.failed.values()),
        )


def task_mapper(workers: Workers) -> Mapper:
    """The mapper that flows give to stages: every batch of units is one task run, which hands them to ``workers``."""

    def mapper(stage: str, function: Callable[[U], R], units: Sequence[tuple[str, U]]) -> Iterator[Outcome[R]]:
        if not units:
            return
        # Units may be made only when they are asked for, so few are held at a time: two to four a worker.
        batches = min(MOST_RUNS, 2 * workers.size)
        ahead = max(2, math.ceil(2 * workers.size / batches))
        events: SimpleQueue[Event] = SimpleQueue()
        parts = iter(_parts(len(units)))
        running: dict[PrefectFuture[None], _Batch] = {}
        while True:
            while len(running) < batches and (part := next(parts, None)) is not None:
                batch = _Batch(stage, function, list(units[part]), workers, ahead, events)
                future = _submit(batch)
                running[future] = batch
                future.add_done_callback(events.put)
            if not running:
                return
            event = events.get()
            if isinstance(event, Outcome):
                yield event
            else:
                event.wait()  # it has come to its end; this only makes its state known
                yield from _unfinished(running.pop(event), event.state)

    return mapper


def _submit(batch: _Batch) -> PrefectFuture[None]:
    token = _batch.set(batch)
    try:
        return run_batch.submit(batch.stage, _name(batch.units))
    finally:
        _batch.reset(token)


def _unfinished(batch: _Batch, state: Any) -> Iterator[Outcome[Any]]:
    """What a batch did not report by its end is a failure by name."""
    for label, _ in batch.units:
        if label not in batch.done:
            yield batch.failed.get(label) or Outcome(label, None, f"did not run: {state.message}")


def _parts(count: int) -> list[slice]:
    """At most ``MOST_RUNS`` batches of nearly equal length, order kept."""
    runs = min(count, MOST_RUNS)
    bounds = [count * n // runs for n in range(runs + 1)]
    return [slice(low, high) for low, high in itertools.pairwise(bounds)]


def _name(units: Sequence[tuple[str, Any]]) -> str:
    first, last = units[0][0], units[-1][0]
    return first if first == last else f"{first} to {last} ({len(units)})"
