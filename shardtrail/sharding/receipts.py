"""Receipts: what is known of each shard's bytes, kept in ``.shardtrail/receipts/<fingerprint>.json``.

They are evidence, never output: a shard without one is looked at, not lost. Each carries a checksum of
itself, so that one that was edited or cut is no evidence.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shardtrail.files import canonical_json, to_json, write_atomic
from shardtrail.sharding.check import CheckedShard


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of one shard.

    Attributes:
        shard: name of the shard, such as ``train-3f9a2c71d0b4``.
        status: ``done``, or ``failed`` when the last attempt to write it failed.
        md5: hex digest of the shard; of a failed one, of the bytes it once had, if any.
        bytes, records: size of the shard.
        mtime_ns: modification time of the shard when ``md5`` was computed.
        index_md5, index_bytes, index_mtime_ns: the same of its index.
        attempts: how often it was tried to write it.
        error: why the last attempt failed.
        seconds: how long the last successful attempt took.
    """

    shard: str
    status: Literal["done", "failed"]
    md5: str = ""
    bytes: int = 0
    records: int = 0
    mtime_ns: int = 0
    index_md5: str = ""
    index_bytes: int = 0
    index_mtime_ns: int = 0
    attempts: int = 0
    error: str = ""
    seconds: float = 0.0


def read_receipt(receipts: Path, fingerprint: str) -> Receipt | None:
    """The receipt of a shard; none if there is none, or none that is as it was written."""
    path = receipts / f"{fingerprint}.json"
    if not path.is_file():  # reading a pipe would wait for ever
        return None
    try:
        values = json.loads(path.read_bytes())
        if values.pop("checksum") != _checksum(values):
            return None
        return Receipt(**values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def write_receipt(receipts: Path, fingerprint: str, receipt: Receipt) -> None:
    """Replace the receipt of a shard."""
    values = dataclasses.asdict(receipt)
    write_atomic(receipts / f"{fingerprint}.json", to_json({**values, "checksum": _checksum(values)}))


def _checksum(values: dict[str, Any]) -> str:
    """sha256 of the other fields. It tells damage from evidence; it is no signature."""
    return hashlib.sha256(canonical_json(values)).hexdigest()


def all_receipts(receipts: Path) -> dict[str, Receipt]:
    """Every receipt there is, of this plan or an older one, by shard name."""
    fingerprints = [path.stem for path in receipts.glob("*.json")]
    found = (read_receipt(receipts, fingerprint) for fingerprint in fingerprints)
    return {receipt.shard: receipt for receipt in found if receipt is not None}


def is_done(receipt: Receipt | None, shards: Path, records: int) -> bool:
    """Whether shard and index lie in ``shards`` as their receipt says: stat only, nothing is opened.

    Size and modification time vouch for the bytes. A file written to with both kept is found by
    ``shardtrail verify --deep`` alone.
    """
    if receipt is None or receipt.status != "done" or receipt.records != records:
        return False
    try:
        shard = (shards / f"{receipt.shard}.tfrecord").stat()
        index = (shards / f"{receipt.shard}.index").stat()
    except OSError:
        return False
    return (shard.st_size, shard.st_mtime_ns, index.st_size, index.st_mtime_ns) == (
        receipt.bytes,
        receipt.mtime_ns,
        receipt.index_bytes,
        receipt.index_mtime_ns,
    )


def adopted(checked: CheckedShard, before: Receipt | None) -> Receipt:
    """The receipt of a shard whose content was found right."""
    return Receipt(
        shard=checked.name,
        status="done",
        md5=checked.md5,
        bytes=checked.bytes,
        records=checked.records,
        mtime_ns=checked.mtime_ns,
        index_md5=checked.index_md5,
        index_bytes=checked.index_bytes,
        index_mtime_ns=checked.index_mtime_ns,
        attempts=before.attempts if before else 0,
        seconds=before.seconds if before else 0.0,
    )
