"""Figures about a plan for people: shards and sizes per split and group, warnings, and what a change would cost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtrail.dataset import SPLITS

MIB = 2**20
LARGE_SHARD = 1024 * MIB
SMALL_SHARD = 32 * MIB


@dataclass(frozen=True, slots=True)
class Figures:
    """Shards of one split, or of one group in it. Sizes are nominal payload bytes of a shard."""

    split: str
    group: str
    shards: int
    samples: int
    bytes: int
    smallest: int
    median: int
    largest: int


@dataclass(frozen=True, slots=True)
class Summary:
    """A plan in figures: ``splits`` as a whole, ``groups`` in plan order, ``warnings`` as sentences."""

    splits: tuple[Figures, ...]
    groups: tuple[Figures, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """What stands between an old plan and a new one.

    Attributes:
        kept: shards that both plans name.
        written: shards of the new plan that neither the old plan names nor the disk holds.
        found: shards of the new plan alone that the disk holds already, from an earlier build.
        dropped: shards of the old plan alone; once ``hash`` is done they lie in ``data/retired/``.
        samples: records to write.
        bytes: nominal payload to write.
    """

    kept: int
    written: tuple[str, ...]
    found: tuple[str, ...]
    dropped: tuple[str, ...]
    samples: int
    bytes: int


def summarise(plan: pa.Table) -> Summary:
    """Shards and sizes of a plan, with what is worth a second look."""
    shards = shard_table(plan)
    by_split = [_figures(shards.filter(pc.equal(shards["split"], split)), split, "") for split in SPLITS]
    splits = tuple(figures for figures in by_split if figures.shards)
    sections = shards.group_by(["split", "group"], use_threads=False).aggregate([]).to_pylist()
    groups = tuple(
        _figures(
            shards.filter(pc.and_(pc.equal(shards["split"], row["split"]), pc.equal(shards["group"], row["group"]))),
            row["split"],
            row["group"],
        )
        for row in sections
    )
    return Summary(splits, groups, _warnings(splits, shards))


def shard_table(plan: pa.Table) -> pa.Table:
    """One row a shard, in plan order: ``shard``, ``split``, ``group``, ``samples``, ``bytes``."""
    grouped = plan.group_by(["shard", "split", "group"], use_threads=False)
    table = grouped.aggregate([("sample_id", "count"), ("bytes", "sum")])
    return table.rename_columns({"sample_id_count": "samples", "bytes_sum": "bytes"})


def cost_of_change(old: pa.Table | None, new: pa.Table, on_disk: Collection[str] = ()) -> Change:
    """What building ``new`` would write.

    Args:
        old: the plan built last; None where there is none.
        new: the plan to be built.
        on_disk: names of the shards that are there, whatever plan named them.
    """
    before = set(pc.unique(old["shard"]).to_pylist()) if old is not None else set()
    shards = shard_table(new)
    names = shards["shard"].to_pylist()
    held = set(on_disk)
    written = tuple(name for name in names if name not in before and name not in held)
    to_write = shards.filter(pc.is_in(shards["shard"], pa.array(written, pa.string())))
    return Change(
        kept=sum(name in before for name in names),
        written=written,
        found=tuple(name for name in names if name not in before and name in held),
        dropped=tuple(sorted(before.difference(names))),
        samples=pc.sum(to_write["samples"], min_count=0).as_py(),
        bytes=pc.sum(to_write["bytes"], min_count=0).as_py(),
    )


def _figures(shards: pa.Table, split: str, group: str) -> Figures:
    sizes = shards["bytes"].to_numpy() if len(shards) else np.zeros(1, np.int64)
    samples = pc.sum(shards["samples"], min_count=0).as_py()
    smallest, median, largest = int(sizes.min()), int(np.median(sizes)), int(sizes.max())
    return Figures(split, group, len(shards), samples, int(sizes.sum()), smallest, median, largest)


def _warnings(splits: Sequence[Figures], shards: pa.Table) -> tuple[str, ...]:
    """What is odd at real sizes: a set of less than 1 GiB may be cut as its owner likes."""
    warnings = []
    sizes = shards["bytes"].to_numpy()
    large = int((sizes > LARGE_SHARD).sum())
    if large:
        warnings.append(
            f"{large} of {len(sizes)} shards hold more than 1 GiB (up to {sizes.max() / MIB:,.0f} MiB): one changed "
            "sample rewrites all of that; lower shard.target_mib or shard.target_samples"
        )
    small = int((sizes < SMALL_SHARD).sum())
    if sizes.sum() >= LARGE_SHARD and 2 * small > len(sizes):
        warnings.append(
            f"{small} of {len(sizes)} shards hold less than 32 MiB: many small files are slow on object stores; "
            "raise the target, or choose a coarser shard.group"
        )
    for figures in splits:
        if figures.split == "train" and figures.shards == 1 and figures.samples > 1:
            warnings.append(
                "the train split has one shard: one worker writes it, and one changed sample rewrites all of it; "
                "lower shard.target_mib or shard.target_samples"
            )
    return tuple(warnings)
