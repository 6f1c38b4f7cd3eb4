"""The stages without Prefect, in the current folder: prints the seconds of each as JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path

from shardtrail.execution import open_mapper
from shardtrail.job import open_job
from shardtrail.stages.download import download
from shardtrail.stages.hash import hash_shards
from shardtrail.stages.shard import shard
from shardtrail.stages.validate import validate

if __name__ == "__main__":
    seconds: dict[str, float] = {}
    job = open_job(Path.cwd())
    with open_mapper(job) as mapper:
        job = open_job(Path.cwd(), mapper=mapper)
        for name, stage in (("download", download), ("validate", validate), ("shard", shard), ("hash", hash_shards)):
            began = time.perf_counter()
            stage(job)
            seconds[name] = time.perf_counter() - began
    print(json.dumps(seconds))
