"""How the units of a stage are run: in workers that import nothing heavy and die with their parent.

    with open_workers(job) as workers:
        for outcome in run_units("shard", build_shard, [("train-00017", entry), ...], workers):
            ...

Workers are processes of this machine or of a Dask cluster, behind the interface of ``concurrent.futures``. A *mapper*
is ``run_units`` with its workers filled in; flows give stages one that makes task runs. Importing this loads neither.
"""

from shardtrail.execution.mapper import local_mapper, open_mapper, open_workers, run_units, serial_mapper
from shardtrail.execution.processes import cores, process_pool
from shardtrail.execution.units import Mapper, Outcome, Workers, WorkersKilled

__all__ = [
    "Mapper",
    "Outcome",
    "Workers",
    "WorkersKilled",
    "cores",
    "local_mapper",
    "open_mapper",
    "open_workers",
    "process_pool",
    "run_units",
    "serial_mapper",
]
