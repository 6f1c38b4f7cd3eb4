"""The raw tree and its inventory."""

from __future__ import annotations

from shardtrail.job import Job
from shardtrail.stages import download as stage
from tasks.stage import run_stage


def download(job: Job) -> stage.Inventory:
    """Fetch what the source has; an interrupted transfer goes on where it stopped, so repeating is safe."""
    return run_stage("download", lambda: stage.download(job), retries=4)
