"""Missing shards."""

from __future__ import annotations

from collections.abc import Sequence

from shardtrail.job import Job
from shardtrail.stages import shard as stage
from tasks.stage import run_stage


def shard(job: Job, only: Sequence[str] = ()) -> stage.Build:
    """Write the shards that the plan names and the disk lacks; a shard's name fixes its bytes."""
    return run_stage("shard", lambda: stage.shard(job, only))
