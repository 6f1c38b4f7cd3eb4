"""``python -m shardtrail.execution.local_cluster WORKERS SCRATCH``: a Dask cluster that ends with its parent.

It listens on loopback alone and prints its scheduler's address. A process of its own, so that the parent's
``__main__`` and packages stay out of the workers, and all of it is one process group to kill.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from typing import Any


def _leave_with_parent(scratch: str) -> None:
    """The parent holds the other end of standard input, so that this ends however the parent went."""
    sys.stdin.buffer.read()
    shutil.rmtree(scratch, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def main(workers: int, scratch: str) -> None:
    """Serve until the parent is gone or kills the group."""
    threading.Thread(target=_leave_with_parent, args=(scratch,), daemon=True).start()
    import dask
    import distributed

    cluster_of: Any = distributed.LocalCluster
    settings = {
        # A unit whose worker died fails at once and is run again alone, see `mapper`; and of those that wait,
        # none lies with a worker that may die under another.
        "distributed.scheduler.allowed-failures": 0,
        "distributed.scheduler.worker-saturation": 1.0,
        "temporary-directory": scratch,
    }
    with (
        dask.config.set(settings),
        cluster_of(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            memory_limit=0,  # as for the pool, the machine's memory is the limit
            silence_logs="ERROR",
        ) as cluster,
    ):
        print(cluster.scheduler_address, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
