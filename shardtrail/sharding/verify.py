"""Compare the shards on disk with what plan, dataset.json and receipts say, and rebuild those that differ.

    verification = verify(job, deep=True)
    repaired = repair(job, verification)

Without ``deep``, a shard whose size and modification time are those of its receipt is taken as
right and not opened; any other is read. With ``deep``, every shard is read: only this finds bytes
that changed under an unchanged time stamp, as on a failing disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardtrail.dataset import load_dataset
from shardtrail.errors import ConfigError
from shardtrail.folder import Folder
from shardtrail.job import Job
from shardtrail.manifest import read_table
from shardtrail.records.features import Declared
from shardtrail.sharding.build import build_shards
from shardtrail.sharding.check import CheckedShard, check_shard
from shardtrail.sharding.entries import known_md5, planned_shards, shard_check
from shardtrail.sharding.entry import ShardCheck
from shardtrail.sharding.lease import lease
from shardtrail.sharding.receipts import Receipt, all_receipts, is_done


@dataclass(frozen=True, slots=True)
class ShardFault:
    """One thing wrong with a shard.

    Attributes:
        shard: its address in the plan; its name if the plan does not hold it.
        file: its file in ``data/shards/``.
        record: place in the file from 0; None where the whole file is meant.
        offset: byte at which the record starts.
        kind: of ``records.scan.Fault``, or ``missing_shard``, ``unreadable``, ``stale_receipt``
            (right bytes, but the receipt names others or is damaged), ``foreign_shard`` (no plan,
            dataset.json or receipt names the file).
        detail: a sentence with what was expected and found.
    """

    shard: str
    file: str
    record: int | None
    offset: int
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What ``verify`` found.

    Attributes:
        shards: how many there should be.
        records: how many the sound ones of them hold.
        faults: in plan order; foreign files last.
    """

    shards: int
    records: int
    faults: tuple[ShardFault, ...]


def verify(job: Job, deep: bool = False) -> Verification:
    """Check every shard of the plan and of dataset.json. Nothing is written.

    Raises:
        ConfigError: there is neither plan nor dataset.json, or dataset.json was edited.
    """
    folder = job.folder
    expected = _expected(folder)
    receipts = all_receipts(folder.receipts)
    checks = [check for check in expected if deep or not _vouched(check, receipts.get(check.name))]
    found: dict[str, CheckedShard] = {}
    unreadable: dict[str, str] = {}
    if checks:
        job.progress.start("verify", len(checks), "shards")
        for outcome in job.mapper("verify", check_shard, [(check.address, check) for check in checks]):
            if outcome.value is None:
                unreadable[outcome.label] = outcome.error
            else:
                found[outcome.label] = outcome.value
            job.progress.advance()
    faults = []
    owners = {check.md5: check for check in expected if check.md5}
    written = {path.stem[:12] for path in folder.receipts.glob("*.json")}  # a shard's name holds as much
    for check in checks:
        if check.address in unreadable:
            faults.append(_fault(check, "unreadable", unreadable[check.address]))
        else:
            receipt = receipts.get(check.name)
            lost = receipt is None and check.name[-12:] in written
            faults += _faults(check, found[check.address], receipt, lost, owners)
    bad = {fault.shard for fault in faults}
    faults += _foreign(folder, expected, receipts)
    if checks:
        job.progress.finish(f"{len(expected) - len(bad)} of {len(expected)} shards are sound")
    return Verification(
        shards=len(expected),
        records=sum(check.records for check in expected if check.address not in bad),
        faults=tuple(faults),
    )


def repair(job: Job, verification: Verification) -> tuple[str, ...]:
    """Build exactly the faulty shards again, to the md5 they had; foreign files stay.

    Where the raw data give exactly the bytes on disk, the books were false: the receipt is corrected, and the job's
    progress says what corrects dataset.json.

    A faulty shard stays where it is until the rename of its replacement. Where the raw data no
    longer give it, the job's progress and ``shardtrail status`` say why.

    Returns:
        Addresses of the shards that are right again.

    Raises:
        LeaseHeld: another process builds in this folder.
    """
    folder = job.folder
    faulty = {fault.shard: fault for fault in verification.faults if fault.kind != "foreign_shard"}
    if not faulty:
        return ()
    with lease(folder, job.progress.say):
        plan = read_table(folder.plan)
        shards = [shard for shard in planned_shards(plan) if shard.address in faulty]
        built, failed = build_shards(job, plan, shards)
    planned = {shard.address for shard in shards}
    for address in faulty.keys() - planned:
        failed[address] = "the plan does not hold it; bring plan and dataset.json together: shardtrail run --until hash"
    for address, error in failed.items():
        job.progress.say(f"{address} cannot be repaired: {error}")
    return tuple(shard.address for shard in shards if shard.address in built)


def _expected(folder: Folder) -> list[ShardCheck]:
    """The shards of the plan, then those that only dataset.json names."""
    recorded, declared = {}, None
    if folder.dataset.exists():
        dataset = load_dataset(folder.dataset)
        recorded = {shard.fingerprint: shard for shard in dataset.shards}
        declared = Declared(dataset.schema, dataset.encoding)
    checks = []
    if folder.plan.exists():
        plan = read_table(folder.plan)
        for shard in planned_shards(plan):
            # Equal fingerprints mean equal schemas; of a shard that was not hashed yet, no record says what it has.
            known = declared if shard.fingerprint in recorded else None
            checks.append(shard_check(folder, plan, shard, known_md5(folder, shard, recorded), known))
    elif not recorded:
        raise ConfigError(
            f"{folder.root} holds neither plan nor dataset.json; build first: shardtrail run --until hash"
        )
    planned = {check.name for check in checks}
    for other in recorded.values():
        name = other.file.removesuffix(".tfrecord")
        if name not in planned:
            # Its address may by now be another shard's.
            checks.append(ShardCheck(name, name, folder.shards, None, other.records, other.md5, declared))
    return checks


def _vouched(check: ShardCheck, receipt: Receipt | None) -> bool:
    """Whether the receipt's stat and md5 say that the shard is right."""
    return is_done(receipt, check.shards, check.records) and receipt is not None and receipt.md5 == check.md5


def _faults(
    check: ShardCheck, found: CheckedShard, receipt: Receipt | None, lost: bool, owners: Mapping[str, ShardCheck]
) -> list[ShardFault]:
    """Faults of one shard; ``lost``: it has a receipt that is not as written; ``owners``: the shards by md5."""
    other = owners.get(found.md5)
    if other is not None and other.name != check.name:
        detail = f"it holds the bytes of {other.address} ({other.shard.name})"
        return [ShardFault(check.address, check.shard.name, 0, 0, "wrong_sample", detail)]
    if not found.faults and lost:
        return [_fault(check, "stale_receipt", "its receipt cannot be read, or is not as it was written")]
    if not found.faults and receipt is not None and receipt.status == "done":
        stated = (receipt.md5, receipt.bytes, receipt.records, receipt.index_md5)
        if stated != (found.md5, found.bytes, found.records, found.index_md5):
            return [_fault(check, "stale_receipt", f"md5 is {found.md5}, its receipt says {receipt.md5}")]
    return [
        ShardFault(check.address, check.shard.name, fault.record, fault.offset, fault.kind, fault.detail)
        for fault in found.faults
    ]


def _fault(check: ShardCheck, kind: str, detail: str) -> ShardFault:
    return ShardFault(check.address, check.shard.name, None, 0, kind, detail)


def _foreign(folder: Folder, expected: Sequence[ShardCheck], receipts: Mapping[str, Receipt]) -> list[ShardFault]:
    """Whatever lies among the shards and nothing names. Shards of older plans have receipts."""
    known = {check.name for check in expected} | receipts.keys()
    ours = {f"{name}{suffix}" for name in known for suffix in (".tfrecord", ".index")}
    return [
        ShardFault(name, name, None, 0, "foreign_shard", "neither plan, dataset.json nor a receipt names it")
        for name in sorted(path.name for path in folder.shards.glob("[!.]*"))
        if name not in ours
    ]
