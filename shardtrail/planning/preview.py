"""The plan that a build would make now, and what it would write. Nothing is written here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardtrail.config import ShardParams
from shardtrail.execution import cores
from shardtrail.job import Job
from shardtrail.manifest import read_table
from shardtrail.planning.growth import Growth, growth_of
from shardtrail.planning.plan import plan_manifest
from shardtrail.planning.summary import Change, Summary, cost_of_change, shard_table, summarise


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan before it is built.

    Attributes:
        summary: shards and sizes per split and group, warnings.
        sizes: nominal bytes of every shard, in plan order.
        change: what would be written, against the plan built last and the shards on disk.
        growth: what new samples would cost after that.
    """

    summary: Summary
    sizes: tuple[int, ...]
    change: Change
    growth: tuple[Growth, ...]


def preview(job: Job) -> Preview:
    """Plan the manifest under the job's parameters.

    Raises:
        ConfigError: there is no manifest yet, or it has no column to group by.
    """
    folder, params = job.folder, job.config.shard
    plan = plan_manifest(folder.manifest, params)
    built = read_table(folder.plan, ["shard"]) if folder.plan.exists() else None
    on_disk = {path.stem for place in (folder.shards, folder.retired) for path in place.glob("*.tfrecord")}
    summary, growth = summarise(plan, params, _readers(job)), growth_of(folder.manifest, params)
    return Preview(
        summary=replace(summary, warnings=(*summary.warnings, *_of_growth(growth, params))),
        sizes=tuple(shard_table(plan)["bytes"].to_pylist()),
        change=cost_of_change(built, plan, on_disk),
        growth=growth,
    )


def _of_growth(growth: Sequence[Growth], params: ShardParams) -> Iterator[str]:
    """What is unwise for a set that grows."""
    if params.cut == "exact" and growth and growth[0].shards > 2:
        yield (
            f"shard.cut: exact moves every cut behind a new sample: one would rewrite {growth[0].shards:,} of "
            f"{growth[0].of_shards:,} shards; for a set that grows, use stable"
        )


def _readers(job: Job) -> int:
    """Who shares the shards: the workers that write and check them, or the replicas that train on them."""
    train = job.config.train
    replicas = train.replicas if train.strategy == "mirrored" else 1
    return max(job.config.compute.workers or cores(), replicas)
