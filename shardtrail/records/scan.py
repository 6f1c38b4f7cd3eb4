"""Reading shards without TensorFlow, whose reader names no file and crashes on some damaged lengths.

    verified = verify_file(path, records=4096, md5="…", index=path.with_suffix(".index"))
    verified.faults  # empty when the shard is sound

Nothing here trusts a byte it has not checked: any file gives an answer, in the memory of its largest record.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from shardtrail.errors import ShardError
from shardtrail.records.features import Declared, RecordCheck
from shardtrail.records.frames import Bytes, Frame, Source, check_data, check_header, read_frames, what_it_is
from shardtrail.records.framing import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES
from shardtrail.records.index import Span, format_index, parse_index
from shardtrail.records.places import Fault, compare, count

__all__ = ["Fault", "Verified", "read_record", "scan_records", "verify_file"]


@dataclass(frozen=True, slots=True)
class Verified:
    """What a shard holds: ``records`` that are framed, ``bytes`` and ``md5`` of the whole file, ``faults``."""

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
            kind, detail, length = check_header(file.read(HEADER_BYTES), offset, size)
            if kind:
                raise ShardError(f"{path}, record {record}, byte {offset}: {detail}")
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
        kind, detail, length = check_header(file.read(HEADER_BYTES), offset, size)
        payload = b"" if kind else file.read(length)
        if not kind:
            kind, detail = check_data(google_crc32c.value(payload), file.read(FOOTER_BYTES))
    if kind:
        raise ShardError(f"{path}, byte {offset}: {detail}; see what else is: shardtrail verify --deep")
    return payload


def verify_file(
    path: Path,
    *,
    records: int | None = None,
    size: int | None = None,
    md5: str | None = None,
    index: Path | None = None,
    sample_ids: Sequence[str] | None = None,
    declared: Declared | None = None,
) -> Verified:
    """Check every byte of a shard in one pass; what is not given is not checked.

    Reading goes on behind whatever is damaged, so that every fault is named.

    Args:
        path: the shard.
        records: how many it should hold; TFRecord has no footer, so nothing else tells a cut between two records.
        size: expected bytes.
        md5: expected md5 in hex.
        index: the file that should name exactly its records.
        sample_ids: expected ``sample_id`` of each record, in order; sets ``records``.
        declared: what every record should hold.

    Raises:
        OSError: the file is absent or the disk cannot be read; that is no fault of the content.
    """
    check = RecordCheck(declared)
    parse = sample_ids is not None or declared is not None

    def look(payload: Bytes) -> tuple[bytes | None, tuple[str, ...]] | None:
        if not parse:
            return None
        try:
            return check(payload.data)
        except ShardError as error:
            return None, (f"the record is {error}",)

    named, index_faults = _read_index(index) if index is not None else ([], [])
    with open(path, "rb", buffering=0, opener=_at_once) as file:
        if not path.is_file():
            raise OSError(errno.EINVAL, "Not a file; move it away", str(path))
        source = Source(file.fileno())
        follows = {offset: offset + length for offset, length in named}
        frames = list(read_frames(source, look, follows))
        found_size, found_md5 = source.finish()
        faults = _nature(frames, source)
    if not faults and sample_ids is not None:
        faults = compare(frames, sample_ids, found_size)
    elif not faults:
        faults = count(frames, records, found_size)
    if size is not None and found_size != size:
        faults.append(Fault(None, 0, "size", f"the file has {found_size} bytes, expected {size}"))
    if md5 is not None and found_md5 != md5:
        faults.append(Fault(None, 0, "md5", f"md5 is {found_md5}, expected {md5}"))
    spans = [(frame.offset, frame.end - frame.offset) for frame in frames if frame.single]
    if index is not None:
        faults += index_faults or _check_index(index, named, spans)
    return Verified(len(spans), found_size, found_md5, tuple(faults))


def _at_once(path: str, flags: int) -> int:
    """Not blocking: a named pipe in place of a shard must not hang a worker."""
    return os.open(path, flags | os.O_NONBLOCK)


def _nature(frames: Sequence[Frame], source: Source) -> list[Fault]:
    """What a file is in which no header is sound, if that can be told."""
    if frames and all(frame.kind in ("length_crc", "truncated_in_record") for frame in frames):
        kind, detail = what_it_is(source.read(0, 4096).tobytes())
        if kind:
            return [Fault(None, 0, kind, detail)]
    return []


def _read_index(index: Path) -> tuple[list[Span], list[Fault]]:
    if not index.is_file():
        if index.exists():
            return [], [Fault(None, 0, "wrong_index", f"{index.name} is not a file")]
        return [], [Fault(None, 0, "missing_index", f"{index.name} does not exist")]
    try:
        content = index.read_bytes()
        spans = parse_index(content)
    except ValueError as error:
        return [], [Fault(None, 0, "wrong_index", f"{index.name}: {error}")]
    if content != format_index(length for _, length in spans):
        detail = f"{index.name} is not written as indexes are (`offset length`, one line a record)"
        return spans, [Fault(None, 0, "wrong_index", detail)]
    return spans, []


def _check_index(index: Path, named: Sequence[Span], spans: Sequence[Span]) -> list[Fault]:
    if list(named) == list(spans):
        return []
    record = next(
        (r for r, (a, b) in enumerate(zip(named, spans, strict=False)) if a != b), min(len(named), len(spans))
    )
    offset = spans[record][0] if record < len(spans) else 0
    detail = f"{index.name} names {len(named)} records, {len(spans)} are in the shard; they differ from record {record}"
    return [Fault(record, offset, "wrong_index", detail)]
