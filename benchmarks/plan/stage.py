"""``python -m benchmarks.plan.stage MANIFEST OUT GROUP TARGET_SAMPLES``: read, plan, write; the cost as JSON."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from shardtrail.config import ShardParams
from shardtrail.manifest import read_table, rows_digest, write_table
from shardtrail.planning import plan_manifest

if __name__ == "__main__":
    manifest, out, group, target = sys.argv[1:]
    began = time.perf_counter()
    plan = plan_manifest(Path(manifest), ShardParams(group=group, target_samples=int(target)))
    planned = time.perf_counter()
    write_table(Path(out), plan)
    ended = time.perf_counter()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "rows": plan.num_rows,
                "plan_seconds": round(planned - began, 2),
                "write_seconds": round(ended - planned, 2),
                "seconds": round(ended - began, 2),
                "cpu_seconds": round(used.ru_utime + used.ru_stime, 2),
                "peak_mib": used.ru_maxrss // 1024,
                "digest": rows_digest(plan),
                "shards": len(set(read_table(Path(out), ["shard"])["shard"].unique().to_pylist())),
            }
        )
    )
