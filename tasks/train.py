"""A trained model."""

from __future__ import annotations

from shardtrail.job import Job
from shardtrail.stages import train as stage
from tasks.stage import run_stage


def train(job: Job) -> stage.Trained:
    """Train on the dataset as it is on disk; an interrupted run goes on from its last checkpoint."""
    return run_stage("train", lambda: stage.train(job))
