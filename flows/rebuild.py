"""Source -> validated, sharded, hashed, recorded TFRecord dataset."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from shardtrail.record import DATA_STAGES
from tasks.download import download
from tasks.hash import hash_shards
from tasks.mapping import MOST_RUNS
from tasks.record import record
from tasks.shard import shard
from tasks.stage import building
from tasks.validate import validate

_runner: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=MOST_RUNS)


@flow(name="rebuild", task_runner=_runner, persist_result=False, validate_parameters=False)
def rebuild(folder: str = ".", until: str = "record", only: tuple[str, ...] = ()) -> str:
    """Bring the dataset up to date with its source; rebuild only what changed.

    Args:
        folder: the working folder.
        until: the last step to take, such as ``validate``.
        only: addresses or names of the only shards to write.

    Returns:
        The dataset's digest; empty when it did not come that far.
    """
    with building(folder) as job:
        steps = {
            "download": lambda: download(job),
            "validate": lambda: validate(job),
            "shard": lambda: shard(job, only),
            "hash": lambda: hash_shards(job).digest,
            "record": lambda: record(job, DATA_STAGES),
        }
        done: dict[str, Any] = {}
        for step, run in steps.items():
            done[step] = run()
            if step == until or (step == "shard" and not done["shard"].complete):
                break
    digest: str = done.get("hash", "")
    return digest
