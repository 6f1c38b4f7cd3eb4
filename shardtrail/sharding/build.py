"""Have shards built by a job's mapper, and keep account of what failed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence

import pyarrow as pa

from shardtrail.dataset import Shard
from shardtrail.folder import Folder
from shardtrail.job import Job
from shardtrail.manifest import read_manifest
from shardtrail.sharding.entries import Entries, PlannedShard, recorded_shards
from shardtrail.sharding.receipts import Receipt, read_receipt, write_receipt
from shardtrail.sharding.write import Built, build_shard
from shardtrail.stat_cache import StatCache


def build_shards(job: Job, plan: pa.Table, shards: Sequence[PlannedShard]) -> tuple[dict[str, Built], dict[str, str]]:
    """Build these shards of the plan; every one is tried.

    Returns:
        What was built and why the others failed, each by address.
    """
    built: dict[str, Built] = {}
    failed: dict[str, str] = {}
    if not shards:
        return built, failed
    recorded = recorded_shards(job.folder)
    by_address = {shard.address: shard for shard in shards}
    size = 0
    job.progress.start("shard", len(shards), "shards")
    with StatCache(job.folder.stat_cache, say=job.progress.say) as cache:
        entries = Entries(job, plan, read_manifest(job.folder.manifest), shards, cache.digests)
        for outcome in job.mapper("shard", build_shard, entries):
            shard = by_address[outcome.label]
            if outcome.value is None:
                failed[shard.address] = f"{shard.name}.tfrecord: {outcome.error}"
                _note_failure(job.folder, shard, outcome.error)
            else:
                built[shard.address] = outcome.value
                _note_false_record(job, shard, outcome.value.receipt, recorded)
                size += outcome.value.receipt.bytes
            job.progress.advance(note=f"{size / 2**20:,.0f} MiB" + (f", {len(failed)} failed" if failed else ""))
    job.progress.finish(
        f"{len(built)} of {len(shards)} shards, {size:,} bytes, in {job.folder.relative(job.folder.shards)}"
    )
    return built, failed


def _note_false_record(job: Job, shard: PlannedShard, receipt: Receipt, recorded: Mapping[str, Shard]) -> None:
    known = recorded.get(shard.fingerprint)
    if known and known.md5 != receipt.md5:
        job.progress.say(
            f"{shard.address}: the raw files give the very bytes on disk (md5 {receipt.md5}), so that "
            f"{job.folder.dataset.name} named a false one ({known.md5}); to correct it: shardtrail run --until hash"
        )


def _note_failure(folder: Folder, shard: PlannedShard, error: str) -> None:
    """Leave a receipt that says so. Written here, since a worker that was killed can write none."""
    before = read_receipt(folder.receipts, shard.fingerprint) or Receipt(shard.name, "failed")
    receipt = dataclasses.replace(before, status="failed", attempts=before.attempts + 1, error=error)
    with contextlib.suppress(OSError):  # on a full disk, the error that led here is the one to tell
        write_receipt(folder.receipts, shard.fingerprint, receipt)
