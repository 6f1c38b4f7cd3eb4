"""From the plan and the manifest to what workers are given."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtrail.dataset import Shard, load_dataset
from shardtrail.errors import ConfigError, SourceChanged
from shardtrail.folder import Folder
from shardtrail.job import Job
from shardtrail.layouts import get_layout
from shardtrail.manifest import manifest_schema, read_table
from shardtrail.records.features import Declared
from shardtrail.sharding.entry import UNKNOWN, PackedRecords, ShardCheck, ShardEntry, pack_records
from shardtrail.sharding.receipts import is_done, read_receipt
from shardtrail.stat_cache import Stat

BLOCK_RECORDS = 256
"""Records that are packed together: a worker holds one block of them as objects."""

Digests = Callable[[Iterable[str]], Mapping[str, tuple[Stat, str]]]
"""``StatCache.digests``: paths -> {path: (stat, md5)} of the files that are known."""


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """One shard of a plan: ``records`` rows of it from row ``first``."""

    address: str
    name: str
    fingerprint: str
    split: str
    first: int
    records: int


def planned_shards(plan: pa.Table) -> list[PlannedShard]:
    """The shards of a plan, in its order."""
    # Without pyarrow.compute and to_numpy(): both import pandas, which takes longer than a small set's whole night.
    record = np.concatenate([np.from_dlpack(chunk) for chunk in plan["record"].chunks])
    starts = np.flatnonzero(record == 0).tolist()

    def firsts(name: str) -> list[str]:
        column = plan[name]
        return [column[row].as_py() for row in starts]

    names = map(firsts, ("address", "shard", "fingerprint", "split"))
    bounds = itertools.pairwise([*starts, plan.num_rows])
    return [
        PlannedShard(address, name, fingerprint, split, first, end - first)
        for address, name, fingerprint, split, (first, end) in zip(*names, bounds, strict=True)
    ]


def read_shards(plan: Path) -> list[PlannedShard]:
    """The shards of ``data/plan.parquet``, of which only the columns that name them are read.

    Raises:
        ConfigError: see ``read_table``.
    """
    return planned_shards(read_table(plan, ["address", "shard", "fingerprint", "split", "record"]))


def recorded_shards(folder: Folder) -> dict[str, Shard]:
    """The shards of ``dataset.json`` by fingerprint; none if there is no usable one."""
    with contextlib.suppress(ConfigError):
        return {shard.fingerprint: shard for shard in load_dataset(folder.dataset).shards}
    return {}


def shard_check(
    folder: Folder, plan: pa.Table, shard: PlannedShard, md5: str = "", declared: Declared | None = None
) -> ShardCheck:
    """What to compare a planned shard with."""
    return ShardCheck(
        address=shard.address,
        name=shard.name,
        shards=folder.shards,
        sample_ids=tuple(plan["sample_id"].slice(shard.first, shard.records).to_pylist()),
        records=shard.records,
        md5=md5,
        declared=declared,
    )


def known_md5(folder: Folder, shard: PlannedShard, recorded: Mapping[str, Shard]) -> str:
    """The md5 that a shard has by dataset.json or else by its receipt; empty if it was never written."""
    known = recorded.get(shard.fingerprint) or read_receipt(folder.receipts, shard.fingerprint)
    return known.md5 if known else ""


def vouched_for(folder: Folder, shard: PlannedShard, recorded: Mapping[str, Shard]) -> bool:
    """Whether a shard need not be opened: its receipt's stat is that on disk, and dataset.json names the same bytes."""
    receipt = read_receipt(folder.receipts, shard.fingerprint)
    known = recorded.get(shard.fingerprint)
    return is_done(receipt, folder.shards, shard.records) and (
        known is None or (receipt is not None and receipt.md5 == known.md5)
    )


class Entries(Sequence[tuple[str, ShardEntry]]):
    """``(address, entry)`` of shards to build, each made when it is asked for: all at once are too many to hold."""

    def __init__(
        self, job: Job, plan: pa.Table, manifest: pa.Table, shards: Sequence[PlannedShard], digests: Digests
    ) -> None:
        """Args:
            plan, manifest: the tables; every planned sample is in the manifest.
            shards: which to build.
            digests: what is known of raw files whose stat has not changed.

        Raises:
            SourceChanged: the plan is of another manifest.
        """
        self._job, self._plan = job, plan
        self._manifest = manifest.select(["sample_id", "labels", "texts", "files"])
        self._shards, self._digests = shards, digests
        self._layout, self._schema = get_layout(job.config), manifest_schema(manifest)
        self._recorded = recorded_shards(job.folder)
        self._declared = Declared(self._schema, job.config.shard.encoding)
        self._rows = _manifest_rows(plan, manifest)

    def __len__(self) -> int:
        return len(self._shards)

    @overload
    def __getitem__(self, index: int) -> tuple[str, ShardEntry]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[str, ShardEntry]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        shard = self._shards[index]
        folder, config = self._job.folder, self._job.config
        entry = ShardEntry(
            check=shard_check(folder, self._plan, shard, known_md5(folder, shard, self._recorded), self._declared),
            fingerprint=shard.fingerprint,
            raw=str(self._job.raw),
            receipts=folder.receipts,
            layout=self._layout,
            schema=self._schema,
            encoding=config.shard.encoding,
            full=self._job.full,
            packed=tuple(
                self._packed(shard.first + start, min(BLOCK_RECORDS, shard.records - start))
                for start in range(0, shard.records, BLOCK_RECORDS)
            ),
        )
        return shard.address, entry

    def _packed(self, first: int, records: int) -> PackedRecords:
        """These rows of the plan. By column: a Python object for every struct would take longer than all the rest."""
        rows = self._manifest.take(self._rows[first : first + records])
        files = rows["files"].combine_chunks()
        roles, paths, sizes, md5s = (column.to_pylist() for column in files.flatten().flatten())
        known = {} if self._job.full else self._digests(paths)
        return pack_records(
            sample_ids=rows["sample_id"].to_pylist(),
            labels=rows["labels"].to_pylist(),
            texts=rows["texts"].to_pylist(),
            counts=pc.list_value_length(files).to_pylist(),
            roles=roles,
            paths=paths,
            sizes=sizes,
            md5s=md5s,
            stats=list(map(partial(_evidence, known), paths, sizes, md5s)),
        )


def _evidence(known: Mapping[str, tuple[Stat, str]], path: str, size: int, md5: str) -> tuple[int, int, int]:
    """The stat that vouches for a manifest's file, without its size; ``UNKNOWN`` if none does."""
    stat, of_stat = known.get(path, (None, ""))
    return stat[1:] if stat is not None and of_stat == md5 and stat[0] == size else (0, 0, UNKNOWN)


def _manifest_rows(plan: pa.Table, manifest: pa.Table) -> pa.Array:
    """Row of the manifest for every row of the plan."""
    ids = plan["sample_id"].combine_chunks()
    rows = pc.index_in(ids, value_set=manifest["sample_id"].combine_chunks())
    if rows.null_count == 0:
        other = pc.not_equal(manifest["digest"].take(rows), plan["digest"])
    else:
        other = pc.is_null(rows)
    changed = ids.filter(other.combine_chunks() if isinstance(other, pa.ChunkedArray) else other)
    if len(changed):
        raise SourceChanged(
            f"{len(changed)} samples of the plan, such as {changed[0]}, are not those of the manifest; "
            "plan again: shardtrail run --until shard"
        )
    return rows
