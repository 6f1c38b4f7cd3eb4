"""Write one shard: a pure function of its entry and the raw files.

    receipt = write_shard(entry)

Shard and index are written under temporary names in their folder, flushed, fsynced and renamed; the
receipt follows. Two writers of the same shard waste work and cannot harm each other: its name fixes
its bytes. Imports neither TensorFlow, Prefect nor pyarrow: this runs in workers.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from shardtrail.errors import PipelineError, ShardError, SourceChanged, SourceError
from shardtrail.files import sync_folder, write_atomic
from shardtrail.records.example import RecordEncoder
from shardtrail.records.framing import frame, total_bytes
from shardtrail.records.index import format_index
from shardtrail.records.scan import scan_records
from shardtrail.sharding.check import check_shard
from shardtrail.sharding.entry import RecordEntry, ShardEntry
from shardtrail.sharding.receipts import Receipt, adopted, read_receipt, write_receipt
from shardtrail.sharding.sources import confirm_source, read_source

BLOCK_BYTES = 2**19
"""Records are gathered to blocks of this size, small enough to stay in the processor's cache until they are written."""

WRITE_BACK_BYTES = 4 * 2**20
"""So much at a time is sent on its way to the disk, so that the final fsync has little to wait for."""

MOST_NAMED = 10
"""Raw files that an error names before it gives up looking for more."""


@dataclass(frozen=True, slots=True)
class Built:
    """A shard that is there now; ``written`` is False if it was there already and only lacked its receipt."""

    receipt: Receipt
    written: bool


def build_shard(entry: ShardEntry) -> Built:
    """Take in the shard on disk if its content is right to the last byte, else write it.

    Raises:
        As ``write_shard``.
    """
    before = read_receipt(entry.receipts, entry.fingerprint)
    checked = check_shard(entry.check) if entry.check.shard.exists() else None
    if checked is not None and checked.index_only:
        write_atomic(entry.check.index, format_index(length for _, length in scan_records(entry.check.shard)))
        checked = check_shard(entry.check)
    if checked is None or checked.faults:
        return Built(write_shard(entry, on_disk=checked.md5 if checked else ""), written=True)
    receipt = adopted(checked, before)
    write_receipt(entry.receipts, entry.fingerprint, receipt)
    return Built(receipt, written=False)


def write_shard(entry: ShardEntry, on_disk: str = "") -> Receipt:
    """Write shard, index and receipt. On an error nothing of it stays and what was there before is untouched.

    Args:
        on_disk: md5 of the shard as it lies there. Where the raw files give just that, two witnesses
            stand against the recorded md5, and it is the record that is wrong.

    Raises:
        SourceChanged: raw files are missing, unreadable or other than validated; up to ``MOST_NAMED`` are named.
        ShardError: a sample cannot be decoded or encoded, the disk is full, or the shard was
            written before with another md5.
    """
    began = time.monotonic()
    before = read_receipt(entry.receipts, entry.fingerprint)
    shard, index = entry.check.shard, entry.check.index
    try:
        entry.check.shards.mkdir(parents=True, exist_ok=True)
        with _temporary(index) as (index_tmp, index_file), _temporary(shard) as (shard_tmp, shard_file):
            md5, lengths = _write_records(entry, shard_file)
            if entry.check.md5 not in ("", md5) and on_disk != md5:
                raise ShardError(
                    f"the same raw files now give other bytes: md5 {md5}, recorded {entry.check.md5}. Use the versions "
                    f"of shardtrail and its libraries that built it; to accept the new bytes, remove .shardtrail/"
                    f"receipts/{entry.fingerprint}.json and data/dataset.json, then build again"
                )
            content = format_index(lengths)
            index_file.write(content)
            index_stat, shard_stat = _settle(index_file), _settle(shard_file)
            # The index first: a shard under its final name is never without one.
            os.replace(index_tmp, index)
            os.replace(shard_tmp, shard)
        sync_folder(entry.check.shards)
    except PipelineError:
        raise
    except OSError as error:
        raise ShardError(f"it cannot be written to {entry.check.shards}: {error.strerror or error}") from error
    receipt = Receipt(
        shard=entry.check.name,
        status="done",
        md5=md5,
        bytes=shard_stat.st_size,
        records=len(lengths),
        mtime_ns=shard_stat.st_mtime_ns,
        index_md5=hashlib.md5(content, usedforsecurity=False).hexdigest(),
        index_bytes=index_stat.st_size,
        index_mtime_ns=index_stat.st_mtime_ns,
        attempts=1 + (before.attempts if before else 0),
        seconds=round(time.monotonic() - began, 3),
    )
    write_receipt(entry.receipts, entry.fingerprint, receipt)
    return receipt


def _write_records(entry: ShardEntry, file: BinaryIO) -> tuple[str, list[int]]:
    """Write every record; one sample is in memory at a time. Returns the md5 and the records' lengths."""
    encoder = _encoder(entry.schema, entry.encoding)
    blocks = _Blocks(file)
    lengths: list[int] = []
    faults: list[str] = []
    for record in entry.records():
        contents = _read(entry, record, faults)
        if len(faults) >= MOST_NAMED:
            break
        if not faults:  # else the other raw files are only looked at, to name all that are wrong
            lengths.append(blocks.add(frame(*_encode(entry, encoder, record, contents))))
    if faults:
        named = "; ".join(faults[:MOST_NAMED])
        more = "; and perhaps more" if len(faults) >= MOST_NAMED else ""
        raise SourceChanged(
            f"raw files are not as they were validated: {named}{more}. "
            "Restore them and run again, or take the change in: shardtrail run"
        )
    return blocks.finish(), lengths


class _Blocks:
    """Gathers records to blocks, each hashed and written at once."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.md5(usedforsecurity=False)
        self._parts: list[Any] = []
        self._gathered = self._written = self._sent = 0

    def add(self, parts: list[Any]) -> int:
        """Take a record in parts; how long it is."""
        length = total_bytes(parts)
        self._parts += parts
        self._gathered += length
        if self._gathered >= BLOCK_BYTES:
            self._flush()
        return length

    def finish(self) -> str:
        """Write what is left; md5 of everything."""
        self._flush()
        return self._digest.hexdigest()

    def _flush(self) -> None:
        # Joined, many small parts cost less; a large sample would lie in memory twice.
        large = self._gathered > 2 * BLOCK_BYTES
        for part in self._parts if large else [b"".join(self._parts)]:
            self._digest.update(part)
            self._file.write(part)
        self._written += self._gathered
        self._parts, self._gathered = [], 0
        if self._written - self._sent >= WRITE_BACK_BYTES:
            _start_write_back(self._file, self._sent, self._written - self._sent)
            self._sent = self._written


def _start_write_back(file: BinaryIO, start: int, length: int) -> None:
    """Have the kernel begin to write these bytes to the disk, without waiting. Only a hint."""
    if hasattr(os, "posix_fadvise"):  # not on macOS
        with contextlib.suppress(OSError):
            # On Linux this begins to write dirty pages; they stay in the cache while there is memory for them.
            os.posix_fadvise(file.fileno(), start, length, os.POSIX_FADV_DONTNEED)


_encoder = lru_cache(maxsize=4)(RecordEncoder)
"""Kept from shard to shard: those of one build are of one schema."""


def _read(entry: ShardEntry, record: RecordEntry, faults: list[str]) -> list[bytes]:
    """The bytes of a sample's files, ``b""`` for those that its layout does not decode; what is wrong goes to
    ``faults``."""
    roles, contents = getattr(entry.layout, "decode_roles", None), []
    for source in record.files:
        try:
            if roles is None or source.role in roles:
                contents.append(read_source(entry.raw, source, entry.full))
            else:
                confirm_source(entry.raw, source, entry.full)
                contents.append(b"")
        except (SourceChanged, SourceError) as error:
            faults.append(str(error))
    return contents


def _encode(entry: ShardEntry, encoder: RecordEncoder, record: RecordEntry, contents: list[bytes]) -> list[Any]:
    try:
        arrays = entry.layout.decode(record.files, contents)
    except Exception as error:
        raise ShardError(
            f"sample {record.sample_id} cannot be decoded ({type(error).__name__}: {error}), although it "
            "was found good; validate it again with check_sources: full"
        ) from error
    return encoder.encode_parts(record.sample_id, record.labels, record.texts, arrays)


@contextlib.contextmanager
def _temporary(final: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file beside ``final``, gone afterwards unless it was renamed.

    It is locked as long as its writer lives: see ``stale.remove_stale``.
    """
    path = final.with_name(f".{final.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    file = path.open("xb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path, file
    finally:
        path.unlink(missing_ok=True)
        # On a full disk closing fails once more; the first error says why.
        with contextlib.suppress(OSError):
            file.close()


def _settle(file: BinaryIO) -> os.stat_result:
    """Bring all that was written to the disk; the file's stat."""
    file.flush()
    os.fsync(file.fileno())
    return os.fstat(file.fileno())
