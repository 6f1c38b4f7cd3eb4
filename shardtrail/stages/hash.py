"""Stage ``hash``: plan and receipts -> ``data/dataset.json``, and the view for other tools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shardtrail.dataset import Dataset, Shard, schema_from_json
from shardtrail.errors import ConfigError, StageFailed
from shardtrail.files import write_atomic
from shardtrail.job import Job
from shardtrail.sharding.lease import lease

if TYPE_CHECKING:
    from shardtrail.sharding.entries import PlannedShard
    from shardtrail.sharding.receipts import Receipt


def hash_shards(job: Job) -> Dataset:
    """Name every shard's bytes. The digests are those computed while writing: a shard is read only
    where its stat is not that of its receipt, as after ``dvc checkout``.

    Raises:
        ConfigError: there is no plan, or no statistics.
        LeaseHeld: another process builds in this folder.
        StageFailed: shards are missing or damaged; each is named.
    """
    from shardtrail.records.example import ENCODING_VERSION
    from shardtrail.sharding.entries import read_shards
    from shardtrail.sharding.retire import retire
    from shardtrail.sharding.view import make_view

    folder = job.folder
    with lease(folder, job.progress.say):
        shards = read_shards(folder.plan)
        receipts = _receipts(job, shards)
        statistics = _statistics(job)
        dataset = Dataset(
            schema=statistics["schema"],
            encoding=job.config.shard.encoding,
            encoding_version=ENCODING_VERSION,
            shards=tuple(_shard(shard, receipts[shard.address]) for shard in shards),
            bands=statistics["bands"],
            classes=statistics["classes"],
            samples=statistics["books"],
        )
        write_atomic(folder.dataset, dataset.to_json())
        make_view(folder, dataset)
        retire(folder, {shard.name for shard in shards})
    return dataset


def _statistics(job: Job) -> Any:
    """``statistics.json`` as far as dataset.json repeats it."""
    try:
        values = json.loads(job.folder.statistics.read_bytes())
        return {
            "schema": schema_from_json(values["schema"]),
            "bands": {band: dict(figures) for band, figures in values["bands"].items()},
            "classes": {split: dict(counts) for split, counts in values["classes"].items()},
            "books": dict(values["books"]),
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        path = job.folder.relative(job.folder.statistics)
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{path} cannot be used ({why}); make it again: shardtrail run --until validate") from error


def _shard(planned: PlannedShard, receipt: Receipt) -> Shard:
    return Shard(
        address=planned.address,
        file=f"{planned.name}.tfrecord",
        fingerprint=planned.fingerprint,
        split=planned.split,
        records=receipt.records,
        bytes=receipt.bytes,
        md5=receipt.md5,
    )


def _receipts(job: Job, shards: list[PlannedShard]) -> dict[str, Receipt]:
    """A receipt that its shard's stat confirms, by address; shards without one are hashed.

    So are shards of which receipt and dataset.json name different bytes, since DVC must never be told a false md5:
    what lies on disk must then hold every planned record and be what one of the two names.
    """
    from shardtrail.manifest import read_table
    from shardtrail.sharding.check import check_shard
    from shardtrail.sharding.entries import recorded_shards, shard_check
    from shardtrail.sharding.receipts import adopted, is_done, read_receipt, write_receipt

    folder = job.folder
    recorded = recorded_shards(folder)
    before = {shard.address: read_receipt(folder.receipts, shard.fingerprint) for shard in shards}
    # The md5 of each shard by our books: one, two where they contradict each other, or none.
    books = {
        shard.address: {
            known.md5 for known in (recorded.get(shard.fingerprint), before[shard.address]) if known and known.md5
        }
        for shard in shards
    }
    done = {
        shard.address: receipt
        for shard in shards
        if (receipt := before[shard.address])
        and books[shard.address] == {receipt.md5}
        and is_done(receipt, folder.shards, shard.records)
    }
    doubtful = {shard.address: shard for shard in shards if shard.address not in done}
    if not doubtful:
        return done
    failed: dict[str, str] = {}
    plan = read_table(folder.plan)
    units = [(address, shard_check(folder, plan, shard)) for address, shard in doubtful.items()]
    job.progress.start("hash", len(units), "shards")
    for outcome in job.mapper("hash", check_shard, units):
        address, checked = outcome.label, outcome.value
        if checked is None or checked.faults:
            reason = outcome.error if checked is None else checked.faults[0].detail
            failed[address] = f"{doubtful[address].name}.tfrecord: {reason}"
        elif books[address] and checked.md5 not in books[address]:
            expected = " or ".join(sorted(books[address]))
            failed[address] = f"{doubtful[address].name}.tfrecord: md5 is {checked.md5}, expected {expected}"
        else:
            known = recorded.get(doubtful[address].fingerprint)
            if known and known.md5 != checked.md5:
                job.progress.say(f"{address}: {folder.dataset.name} named md5 {known.md5}; it is {checked.md5}")
            done[address] = adopted(checked, before[address])
            write_receipt(folder.receipts, doubtful[address].fingerprint, done[address])
        job.progress.advance()
    job.progress.finish(f"{len(done)} of {len(shards)} shards are as planned")
    if failed:
        order = [shard.address for shard in shards if shard.address in failed]
        raise StageFailed(
            "hash",
            [(address, failed[address]) for address in order],
            f"Build these first: shardtrail run --only {' '.join(order[:5])}" + (" …" if len(order) > 5 else ""),
        )
    return done
