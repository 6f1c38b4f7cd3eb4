"""A version in the registry."""

from __future__ import annotations

from shardtrail.job import Job
from shardtrail.stages import register as stage
from tasks.stage import run_stage


def register(job: Job) -> stage.Registration:
    """Register the model, once for the same data, parameters and code."""
    return run_stage("register", lambda: stage.register(job), retries=2)
