"""Look at one shard's every byte. Imports nothing heavy: this runs in workers."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

from shardtrail.records.scan import Fault, verify_file
from shardtrail.sharding.entry import ShardCheck

MOST_FAULTS = 100
"""Faults reported of one shard; the last then says how many more there are."""

_INDEX_FAULTS = {"missing_index", "wrong_index"}
_OF_WHOLE_FILE = {"size", "md5"}


@dataclass(frozen=True, slots=True)
class CheckedShard:
    """What a shard on disk holds, and what is wrong with it; see ``Receipt`` for the figures."""

    name: str
    md5: str = ""
    bytes: int = 0
    records: int = 0
    mtime_ns: int = 0
    index_md5: str = ""
    index_bytes: int = 0
    index_mtime_ns: int = 0
    faults: tuple[Fault, ...] = ()

    @property
    def index_only(self) -> bool:
        """The shard is sound, its index is not."""
        return bool(self.faults) and all(fault.kind in _INDEX_FAULTS for fault in self.faults)


def check_shard(check: ShardCheck) -> CheckedShard:
    """Compare a shard with what it should be: framing, CRCs, samples and their order, features, index,
    md5.

    Raises:
        OSError: the disk cannot be read.
    """
    try:
        # Before reading: what is written to the file meanwhile then shows as another time.
        stat = check.shard.stat()
        verified = verify_file(
            check.shard,
            records=check.records,
            md5=check.md5 or None,
            index=check.index,
            sample_ids=check.sample_ids,
            declared=check.declared,
        )
    except FileNotFoundError:
        missing = Fault(None, 0, "missing_shard", f"{check.shard.name} does not exist")
        return CheckedShard(check.name, faults=(missing,))
    index_stat, index = None, b""
    if check.index.is_file():
        index_stat, index = check.index.stat(), check.index.read_bytes()
    return CheckedShard(
        name=check.name,
        md5=verified.md5,
        bytes=verified.bytes,
        records=verified.records,
        mtime_ns=stat.st_mtime_ns,
        index_md5=hashlib.md5(index, usedforsecurity=False).hexdigest(),
        index_bytes=len(index),
        index_mtime_ns=index_stat.st_mtime_ns if index_stat else 0,
        faults=_shortened(_telling(verified.faults)),
    )


def _telling(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Without faults that only follow from others: a damaged record always changes md5 and index."""
    of_records = tuple(fault for fault in faults if fault.kind not in _OF_WHOLE_FILE | _INDEX_FAULTS)
    if of_records:
        return of_records + tuple(fault for fault in faults if fault.kind == "missing_index")
    return faults


def _shortened(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    more = len(faults) - MOST_FAULTS
    if more <= 0:
        return faults
    last = faults[MOST_FAULTS - 1]
    return (
        *faults[: MOST_FAULTS - 1],
        dataclasses.replace(last, detail=f"{last.detail}; {more} more faults of this shard follow"),
    )
