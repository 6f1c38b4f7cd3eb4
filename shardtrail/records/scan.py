"""Reading shards without TensorFlow, whose reader names no file and crashes on some damaged lengths.

    verified = verify_file(path, records=4096, md5="…", index=path.with_suffix(".index"))
    verified.faults  # empty when the shard is sound

Nothing here trusts a byte it has not checked: any file gives an answer, in memory that a chunk bounds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from shardtrail.errors import ShardError
from shardtrail.records.example import decode_example
from shardtrail.records.framing import (
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    mask_crc,
    parse_footer,
    parse_header,
)
from shardtrail.records.index import Span, parse_index

_CHUNK = 1 << 20
_MAGIC = ((b"\x1f\x8b", "GZIP"), (b"\x28\xb5\x2f\xfd", "Zstandard"), (b"BZh", "bzip2"), (b"PK\x03\x04", "ZIP"))


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a shard.

    Attributes:
        record: place in the file from 0; None where the whole file is meant.
        offset: byte at which the record starts.
        kind: ``compressed``, ``not_tfrecord``, ``length_crc``, ``data_crc``, ``truncated_in_record``,
            ``missing_records`` (cut between two records), ``trailing_bytes``, ``wrong_sample``, ``size``, ``md5``,
            ``missing_index`` or ``wrong_index``.
        detail: a sentence with stored and expected values.
    """

    record: int | None
    offset: int
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What a shard holds: ``records`` that could be read, ``bytes`` and ``md5`` of the whole file, ``faults``."""

    records: int
    bytes: int
    md5: str
    faults: tuple[Fault, ...]


def scan_records(path: Path) -> Iterator[Span]:
    """Offset and length in bytes of every framed record, from the headers alone.

    Raises:
        ShardError: a header is damaged or the file ends within a record; names file, record and byte.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        offset = record = 0
        while offset < size:
            file.seek(offset)
            fault, length = _check_header(file.read(HEADER_BYTES), record, offset, size)
            if fault:
                raise ShardError(f"{path}, record {record}, byte {offset}: {fault.detail}")
            yield offset, FRAME_BYTES + length
            offset += FRAME_BYTES + length
            record += 1


def read_record(path: Path, offset: int) -> bytes:
    """The payload of the record that starts at byte ``offset``, its checksums checked.

    Raises:
        ShardError: there is no sound record; names file and byte.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(offset)
        fault, length = _check_header(file.read(HEADER_BYTES), 0, offset, size)
        payload = b"" if fault else file.read(length)
        fault = fault or _check_data(google_crc32c.value(payload), file.read(FOOTER_BYTES), 0, offset)
    if fault:
        raise ShardError(f"{path}, byte {offset}: {fault.detail}; see what else is: shardtrail verify --deep")
    return payload


def verify_file(
    path: Path,
    *,
    records: int | None = None,
    size: int | None = None,
    md5: str | None = None,
    index: Path | None = None,
    sample_ids: Sequence[str] | None = None,
) -> Verified:
    """Check every byte of a shard in one pass; what is not given is not checked.

    Args:
        path: the shard.
        records: how many it should hold; TFRecord has no footer, so nothing else tells a cut between two records.
        size: expected bytes.
        md5: expected md5 in hex.
        index: the file that should name exactly its records.
        sample_ids: expected ``sample_id`` of each record, in order; sets ``records``.

    Raises:
        OSError: the file is absent or the disk cannot be read; that is no fault of the content.
    """
    expected = len(sample_ids) if sample_ids is not None else records
    with path.open("rb", buffering=_CHUNK) as file:
        source = _Source(file, path.stat().st_size)
        faults, spans = _check_records(source, expected, sample_ids)
        while source.read(_CHUNK):
            pass
    if size is not None and source.offset != size:
        faults.append(Fault(None, 0, "size", f"the file has {source.offset} bytes, expected {size}"))
    if md5 is not None and source.md5.hexdigest() != md5:
        faults.append(Fault(None, 0, "md5", f"md5 is {source.md5.hexdigest()}, expected {md5}"))
    if index is not None:
        faults += _check_index(index, spans)
    return Verified(len(spans), source.offset, source.md5.hexdigest(), tuple(faults))


class _Source:
    """A file read once from front to end; its md5 covers what was read."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self.size = size
        self.offset = 0
        self.md5 = hashlib.md5(usedforsecurity=False)

    def read(self, count: int) -> bytes:
        data = self._file.read(count)
        self.md5.update(data)
        self.offset += len(data)
        return data

    def read_payload(self, length: int, keep: bool) -> tuple[int, bytes]:
        """CRC of the next ``length`` bytes, and the bytes themselves if ``keep``."""
        crc, kept = 0, []
        while length and (data := self.read(min(length, _CHUNK))):
            crc = google_crc32c.extend(crc, data)
            length -= len(data)
            if keep:
                kept.append(data)
        return crc, b"".join(kept)


def _check_records(
    source: _Source, expected: int | None, sample_ids: Sequence[str] | None
) -> tuple[list[Fault], list[Span]]:
    """Faults of the records, and the spans of those whose extent is sure. Ends where the extent is not."""
    faults: list[Fault] = []
    spans: list[Span] = []
    while source.offset < source.size:
        record, offset = len(spans), source.offset
        if record == expected:
            extra = source.size - offset
            detail = f"{extra} bytes follow the last of {expected} expected records"
            return [*faults, Fault(None, offset, "trailing_bytes", detail)], spans
        fault, length = _check_header(source.read(HEADER_BYTES), record, offset, source.size)
        if fault:
            return [*faults, fault], spans
        crc, payload = source.read_payload(length, keep=sample_ids is not None)
        fault = _check_data(crc, source.read(FOOTER_BYTES), record, offset)
        if fault is None and sample_ids is not None:
            fault = _check_sample(payload, sample_ids[record], record, offset)
        faults += [fault] if fault else []
        spans.append((offset, FRAME_BYTES + length))
    if expected is not None and len(spans) < expected:
        detail = f"the file ends after {len(spans)} of {expected} records"
        faults.append(Fault(len(spans), source.offset, "missing_records", detail))
    return faults, spans


def _check_header(header: bytes, record: int, offset: int, size: int) -> tuple[Fault | None, int]:
    """What is wrong with the record that ``header`` begins, and its payload's length if nothing is."""
    if record == 0 and offset == 0:
        for magic, name in _MAGIC:
            if header.startswith(magic):
                return Fault(None, 0, "compressed", f"the file is {name}; shards are never compressed as a whole"), 0
        if len(header) >= 8 and 0 not in header[:8]:
            # As a length this would be 72 petabytes or more; text and images begin so.
            return Fault(None, 0, "not_tfrecord", f"the file is no TFRecord: it begins with {header[:8]!r}"), 0
    if len(header) < HEADER_BYTES:
        return Fault(record, offset, "truncated_in_record", f"the file ends within the header, at byte {size}"), 0
    length, stored, computed = parse_header(header)
    if stored != computed:
        detail = f"CRC of the length: stored {stored:08x}, computed {computed:08x}"
        return Fault(record, offset, "length_crc", detail), 0
    end = offset + FRAME_BYTES + length
    if end > size:
        detail = f"the record should end at byte {end}, the file ends at {size}"
        return Fault(record, offset, "truncated_in_record", detail), 0
    return None, length


def _check_data(crc: int, footer: bytes, record: int, offset: int) -> Fault | None:
    if len(footer) < FOOTER_BYTES:
        return Fault(record, offset, "truncated_in_record", "the file became shorter while it was read")
    stored, computed = parse_footer(footer), mask_crc(crc)
    if stored == computed:
        return None
    return Fault(record, offset, "data_crc", f"CRC of the payload: stored {stored:08x}, computed {computed:08x}")


def _check_sample(payload: bytes, expected: str, record: int, offset: int) -> Fault | None:
    try:
        found = decode_example(payload).get("sample_id")
    except ShardError as error:
        return Fault(record, offset, "wrong_sample", f"expected sample {expected}; the record is {error}")
    if isinstance(found, list) and found == [expected.encode()]:
        return None
    name = found[0].decode(errors="replace") if isinstance(found, list) and found else "no sample_id"
    return Fault(record, offset, "wrong_sample", f"expected sample {expected}, found {name}")


def _check_index(index: Path, spans: Sequence[Span]) -> list[Fault]:
    try:
        named = parse_index(index.read_bytes())
    except FileNotFoundError:
        return [Fault(None, 0, "missing_index", f"{index.name} does not exist")]
    except ValueError as error:
        return [Fault(None, 0, "wrong_index", f"{index.name}: {error}")]
    if named == list(spans):
        return []
    record = next(
        (r for r, (a, b) in enumerate(zip(named, spans, strict=False)) if a != b), min(len(named), len(spans))
    )
    offset = spans[record][0] if record < len(spans) else 0
    detail = f"{index.name} names {len(named)} records, {len(spans)} are in the shard; they differ from record {record}"
    return [Fault(record, offset, "wrong_index", detail)]
