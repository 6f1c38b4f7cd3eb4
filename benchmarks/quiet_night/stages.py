"""``python -m benchmarks.quiet_night.stages FOLDER``: one night without scheduler; prints what each stage took."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from shardtrail.execution import local_mapper
from shardtrail.job import open_job
from shardtrail.stages.download import download
from shardtrail.stages.hash import hash_shards
from shardtrail.stages.shard import shard
from shardtrail.stages.validate import validate


def main() -> None:
    """Run download, validate, shard and hash."""
    seconds: dict[str, float] = {}
    peaks: dict[str, int] = {}
    with local_mapper() as mapper:
        job = open_job(Path(sys.argv[1]), mapper=mapper)
        for name, stage in (("download", download), ("validate", validate), ("shard", shard), ("hash", hash_shards)):
            began = time.perf_counter()
            stage(job)
            seconds[name] = round(time.perf_counter() - began, 2)
            peaks[name] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(json.dumps({"stages": seconds, "peak_mib_after": peaks}))


if __name__ == "__main__":
    main()
