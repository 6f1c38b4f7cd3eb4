"""The plan that a build would make now, and what it would write. Nothing is written here."""

from __future__ import annotations

from dataclasses import dataclass

from shardtrail.job import Job
from shardtrail.manifest import manifest_schema, read_manifest, read_table
from shardtrail.planning.plan import make_plan
from shardtrail.planning.summary import Change, Summary, cost_of_change, shard_table, summarise


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan before it is built.

    Attributes:
        summary: shards and sizes per split and group, warnings.
        sizes: nominal bytes of every shard, in plan order.
        change: what would be written, against the plan built last and the shards on disk.
    """

    summary: Summary
    sizes: tuple[int, ...]
    change: Change


def preview(job: Job) -> Preview:
    """Plan the manifest under the job's parameters.

    Raises:
        ConfigError: there is no manifest yet, or it has no column to group by.
    """
    folder = job.folder
    manifest = read_manifest(folder.manifest)
    plan = make_plan(manifest, manifest_schema(manifest), job.config.shard)
    built = read_table(folder.plan) if folder.plan.exists() else None
    on_disk = {path.stem for place in (folder.shards, folder.retired) for path in place.glob("*.tfrecord")}
    return Preview(
        summary=summarise(plan),
        sizes=tuple(shard_table(plan)["bytes"].to_pylist()),
        change=cost_of_change(built, plan, on_disk),
    )
