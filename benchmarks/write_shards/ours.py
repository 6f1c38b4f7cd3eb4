"""Ours, from raw patches to verified shards: download, validate, shard, hash, then every byte read back."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from shardtrail.execution import local_mapper
from shardtrail.files import write_atomic
from shardtrail.init import params_text
from shardtrail.job import open_job

LABEL = "shardtrail"


def write(raw: Path, out: Path, layout: str = "bigearthnet") -> dict[str, float]:
    """Build in a new working folder; return the seconds of each stage and the records."""
    from shardtrail.sharding.verify import verify
    from shardtrail.stages.download import download
    from shardtrail.stages.hash import hash_shards
    from shardtrail.stages.shard import shard
    from shardtrail.stages.validate import validate

    write_atomic(out / "params.yaml", params_text(str(raw), layout, target_mib=32).encode())
    seconds: dict[str, float] = {}
    with local_mapper() as mapper:
        job = open_job(out, mapper=mapper)
        for name, stage in (("download", download), ("validate", validate), ("shard", shard), ("hash", hash_shards)):
            began = time.perf_counter()
            stage(job)
            seconds[name] = time.perf_counter() - began
        began = time.perf_counter()
        found = verify(job, deep=True)
        seconds["verify"] = time.perf_counter() - began
    if found.faults:
        raise SystemExit(f"faults: {found.faults}")
    return seconds | {"records": found.records}


if __name__ == "__main__":
    print(json.dumps(write(Path(sys.argv[1]), Path(sys.argv[2]))))
