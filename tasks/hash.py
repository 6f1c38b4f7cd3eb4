"""dataset.json: what was built, by digest."""

from __future__ import annotations

from prefect.artifacts import create_table_artifact

from shardtrail.dataset import Dataset
from shardtrail.job import Job
from shardtrail.stages import hash as stage
from tasks.stage import run_stage

_MOST_ROWS = 1000


def hash_shards(job: Job) -> Dataset:
    """Put every shard's digest into dataset.json; publish the shard table."""
    dataset = run_stage("hash", lambda: stage.hash_shards(job))
    rows = [
        {"shard": shard.address, "file": shard.file, "records": shard.records, "bytes": shard.bytes, "md5": shard.md5}
        for shard in dataset.shards[:_MOST_ROWS]
    ]
    more = f"; the first {_MOST_ROWS} of {len(dataset.shards)}" if len(dataset.shards) > _MOST_ROWS else ""
    create_table_artifact(rows, key="shards", description=f"dataset {dataset.digest}{more}")
    return dataset
