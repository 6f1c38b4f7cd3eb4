"""One stage of the library as one Prefect task run, its units as task runs within."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from prefect.tasks import Task, exponential_backoff

from shardtrail.execution import open_workers
from shardtrail.job import Job, open_job
from shardtrail.progress import Lines, Progress
from shardtrail.sharding.lease import lease
from tasks.mapping import is_transient, task_mapper

R = TypeVar("R")

terminal: ContextVar[Progress | None] = ContextVar("terminal", default=None)
"""Set by the command: progress then goes there instead of to the run's log."""

full_check: ContextVar[bool] = ContextVar("full_check", default=False)
"""Set by ``run --full``: every raw file is hashed again."""


@contextlib.contextmanager
def building(folder: str) -> Iterator[Job]:
    """The job of a rebuild: holds the folder's lease; its units run as task runs in worker processes."""
    job = opened(folder)
    with lease(job.folder, job.progress.say), open_workers(job) as workers:
        yield dataclasses.replace(job, mapper=task_mapper(workers))


def opened(folder: str) -> Job:
    """The job of a working folder, reporting to the terminal or to the run's log."""
    progress = terminal.get() or Lines(get_run_logger().info, every_seconds=10)
    job = open_job(Path(folder), progress=progress)
    return dataclasses.replace(job, full=job.full or full_check.get())


def run_stage(name: str, stage: Callable[[], R], *, retries: int = 0) -> R:
    """Run a stage as a task run of its name; only what time may mend is tried again."""
    run: Task[[], R] = Task(
        stage,
        name=name,
        task_run_name=name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=retries,
        retry_delay_seconds=exponential_backoff(4),
        retry_jitter_factor=0.5,
        retry_condition_fn=is_transient,
    )
    result: R = run()
    return result
