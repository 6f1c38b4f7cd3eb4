"""Figures about a plan for people: shards and sizes per split and group, warnings, and what a change would cost."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardtrail.config import ShardParams
from shardtrail.planning.plan import DEFAULT_TARGET_MIB

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


def summarise(plan: pa.Table, params: ShardParams | None = None, readers: int = 1) -> Summary:
    """Shards and sizes of a plan, with what is worth a second look.

    Args:
        plan: columns of ``PLAN_SCHEMA``.
        params: what the plan was made with; the defaults if not given.
        readers: processes or replicas that are to share the train split.
    """
    shards = shard_table(plan)
    sizes, samples = shards["bytes"].to_numpy(), shards["samples"].to_numpy()
    split_of = shards["split"].to_pylist()
    group_of = shards["group"].to_pylist()

    def figures(start: int, stop: int, group: str) -> Figures:
        return _figures(split_of[start], group, sizes[start:stop], samples[start:stop])

    split_edges, group_edges = _edges(split_of), _edges(list(zip(split_of, group_of, strict=True)))
    splits = tuple(figures(start, stop, "") for start, stop in itertools.pairwise(split_edges))
    groups = tuple(figures(start, stop, group_of[start]) for start, stop in itertools.pairwise(group_edges))
    return Summary(splits, groups, _warnings(splits, groups, sizes, params or ShardParams(), readers))


def _edges(keys: Sequence[object]) -> list[int]:
    """Where runs of equal keys start, and the end."""
    return [row for row, key in enumerate(keys) if row == 0 or key != keys[row - 1]] + [len(keys)] * bool(keys)


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


def _figures(split: str, group: str, sizes: npt.NDArray[np.int64], samples: npt.NDArray[np.int64]) -> Figures:
    smallest, median, largest = int(sizes.min()), int(np.median(sizes)), int(sizes.max())
    return Figures(split, group, len(sizes), int(samples.sum()), int(sizes.sum()), smallest, median, largest)


def _warnings(
    splits: Sequence[Figures],
    groups: Sequence[Figures],
    sizes: npt.NDArray[np.int64],
    params: ShardParams,
    readers: int,
) -> tuple[str, ...]:
    """What is odd at real sizes: a set of less than 1 GiB may be cut as its owner likes."""
    warnings = []
    real = int(sizes.sum()) >= LARGE_SHARD
    large = int((sizes > LARGE_SHARD).sum())
    if large:
        warnings.append(
            f"{large:,} of {len(sizes):,} shards hold more than 1 GiB (up to {sizes.max() / MIB:,.0f} MiB): one "
            "changed sample rewrites all of that; lower shard.target_mib or shard.target_samples"
        )
    small = int((sizes < SMALL_SHARD).sum())
    if real and 2 * small > len(sizes):
        warnings.append(
            f"{small:,} of {len(sizes):,} shards hold less than 32 MiB: many small files are slow on object stores; "
            "raise the target, or choose a coarser shard.group"
        )
    for figures in splits:
        if figures.split == "train" and figures.shards == 1 and figures.samples > 1:
            warnings.append(
                "the train split has one shard: one worker writes it, and one changed sample rewrites all of it; "
                "lower shard.target_mib or shard.target_samples"
            )
        elif figures.split == "train" and figures.shards < min(readers, figures.samples):
            warnings.append(
                f"the train split has {figures.shards} shards for {readers} readers: some would share a shard or wait; "
                "lower shard.target_mib or shard.target_samples"
            )
    if params.group != "none":
        warnings += _of_groups(groups, params)
    return tuple(warnings)


def _of_groups(groups: Sequence[Figures], params: ShardParams) -> Iterator[str]:
    """What is odd about the groups."""
    total = sum(figures.samples for figures in groups)
    by_name: Counter[str] = Counter()
    for figures in groups:
        by_name[figures.group] += figures.samples
    if by_name[""]:
        what = "coordinates" if params.group == "grid" else params.group
        yield f"{by_name['']:,} of {total:,} samples have no {what}: they are a group of their own"
    (largest, held), *_ = by_name.most_common(1) or [("", 0)]
    if len(by_name) > 2 and 2 * held > total:
        yield (
            f"the group {largest or '(none)'} holds {held / total:.0%} of the samples: grouping by {params.group} "
            "hardly divides them; choose a finer group, or none"
        )
    target = params.target_mib or DEFAULT_TARGET_MIB
    goal = params.target_samples or target * MIB
    tiny = sum((figures.samples if params.target_samples else figures.bytes) < goal / 2 for figures in groups)
    if len(groups) >= 1000 and 2 * tiny > len(groups):
        yield (
            f"{tiny:,} of {len(groups):,} groups do not fill half a shard: each costs a file of its own; "
            f"choose a coarser group{' (shard.grid_degrees)' if params.group == 'grid' else ''}, or a smaller target"
        )
