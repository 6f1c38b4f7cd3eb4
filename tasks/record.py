"""DVC and git learn what was built."""

from __future__ import annotations

from collections.abc import Sequence

from shardtrail import record as library
from shardtrail.job import Job
from tasks.stage import run_stage


def record(job: Job, stages: Sequence[str]) -> library.Recorded:
    """Commit the stages' outs as they lie on disk; repeating it without a change runs nothing."""
    return run_stage("record", lambda: library.record(job, stages))
