"""The frames of a shard, also of a damaged one: read once, hashed once, taken up again behind whatever is broken.

After a header that cannot be trusted, the next frame is where the index says, or at the next place where a header with
a right checksum stands; of 12 random bytes one draw in 2^32 looks like one, and few of those fit into the file.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from shardtrail.records.framing import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, mask_crc, parse_footer, parse_header

Bytes = npt.NDArray[np.uint8]

_CHUNK = 1 << 20
"""Bytes read and hashed at a time: they are still in the processor's cache when they are looked at."""

_MAGIC = (
    (b"\x28\xb5\x2f\xfd", "Zstandard"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"BZh", "bzip2"),
    (b"\x04\x22\x4d\x18", "LZ4"),
    (b"PK\x03\x04", "ZIP"),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One record, or a stretch of bytes that holds no sound header.

    Attributes:
        offset, end: where it begins, and where the next begins.
        kind: of ``scan.Fault``; empty if both checksums are right.
        detail: stored and expected values.
        single: False where it is not known how many records were written to these bytes.
        content: what was found in the payload of a sound record.
    """

    offset: int
    end: int
    kind: str = ""
    detail: str = ""
    single: bool = True
    content: Any = None


class Source:
    """A file read from front to end: its md5 gets each byte once, whatever is looked at again.

    Memory is that of the largest record.
    """

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor
        self.size = os.fstat(descriptor).st_size
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._hashed = 0
        self._buffer: Bytes = np.empty(_CHUNK, np.uint8)
        self._found: tuple[int, int] = (0, 0)

    def read(self, offset: int, count: int) -> Bytes:
        """``count`` bytes from ``offset`` on, fewer at the file's end. They last until the next call."""
        while self._hashed < offset and self._fill(self._hashed, min(_CHUNK, offset - self._hashed)):
            pass
        got = self._fill(offset, count)
        return self._buffer[:got]

    def finish(self) -> tuple[int, str]:
        """Size and md5 of the whole file, its rest read."""
        while self._fill(self._hashed, _CHUNK):
            pass
        return self._hashed, self._md5.hexdigest()

    def _fill(self, offset: int, count: int) -> int:
        """Read into the buffer, and hash what is new."""
        if count > self._buffer.size:
            self._buffer = np.empty(count, np.uint8)
        view = self._buffer.data
        done = 0
        while done < count:
            got = os.preadv(self._file, [view[done : min(count, done + _CHUNK)]], offset + done)
            if not got:
                break
            done += got
            fresh = offset + done - self._hashed
            if fresh > 0:
                self._md5.update(view[max(0, done - fresh) : done])
                self._hashed = offset + done
        return done

    def next_header(self, start: int) -> int:
        """The first byte from ``start`` on at which a sound header stands; the file's size if there is none.

        Headers of 4 GiB and more are not looked for: nobody can read such a record.
        """
        if self._found[0] <= start <= self._found[1]:
            return self._found[1]
        place = self.size
        for offset in range(start, self.size - FRAME_BYTES + 1, _CHUNK):
            found = _first_header(np.frombuffer(os.pread(self._file, _CHUNK + HEADER_BYTES - 1, offset), np.uint8))
            found = [at for at in found if offset + at[0] + FRAME_BYTES + at[1] <= self.size]
            if found:
                place = offset + found[0][0]
                break
        self._found = (start, place)
        return place


def read_frames(source: Source, look: Callable[[Bytes], Any], index: Mapping[int, int]) -> Iterator[Frame]:
    """Every frame from byte 0 to the file's end, without a gap.

    Args:
        source: the file.
        look: is given each sound payload; the array is valid during the call only.
        index: offset of a record -> offset of the next one, as the index says. Only asked behind damage.
    """
    offset = 0
    header = source.read(0, HEADER_BYTES).tobytes()
    while offset < source.size:
        kind, detail, length = check_header(header, offset, source.size)
        single, content = not kind, None
        end = offset + FRAME_BYTES + length
        if not kind:
            # Payload, footer and the next header in one go.
            body = source.read(offset + HEADER_BYTES, length + FOOTER_BYTES + HEADER_BYTES)
            payload = body[:length]
            footer = body[length : length + FOOTER_BYTES].tobytes()
            header = body[length + FOOTER_BYTES :].tobytes()
            kind, detail = check_data(google_crc32c.value(payload), footer)
            if not kind:
                content = look(payload)
            elif end != index.get(offset) and end < source.size and check_header(header, end, source.size)[0]:
                # Nothing bears the length out: it may be of another record.
                single = (found := _resume(source, offset, index)) > end
                end = end if single else found
                header = source.read(end, HEADER_BYTES).tobytes()
        else:
            end = _resume(source, offset, index)
            single = end == index.get(offset)
            header = source.read(end, HEADER_BYTES).tobytes()
        yield Frame(offset, end, kind, detail, single, content)
        offset = end


def _resume(source: Source, offset: int, index: Mapping[int, int]) -> int:
    """Where to go on behind a frame of unknown extent."""
    named = index.get(offset, source.size + 1)
    if named == source.size:
        return named
    if named < source.size:
        header = source.read(named, HEADER_BYTES).tobytes()
        if not check_header(header, named, source.size)[0]:
            return named
    return min(named, source.next_header(offset + 1))


def check_header(header: bytes, offset: int, size: int) -> tuple[str, str, int]:
    """Kind and detail of what is wrong with the frame that ``header`` begins, and its payload's length if nothing is.

    Args:
        header: the 12 bytes at ``offset``, fewer at the file's end.
        offset: where it stands.
        size: of the file.
    """
    if len(header) < HEADER_BYTES:
        return "truncated_in_record", f"the file ends within the header, at byte {size}", 0
    length, stored, computed = parse_header(header)
    if stored != computed:
        return "length_crc", f"CRC of the length: stored {stored:08x}, computed {computed:08x}", 0
    end = offset + FRAME_BYTES + length
    if end > size:
        return "truncated_in_record", f"the record should end at byte {end}, the file ends at {size}", 0
    return "", "", length


def check_data(crc: int, footer: bytes) -> tuple[str, str]:
    """Kind and detail of what is wrong with a payload of CRC ``crc``."""
    if len(footer) < FOOTER_BYTES:
        return "truncated_in_record", "the file became shorter while it was read"
    stored, computed = parse_footer(footer), mask_crc(crc)
    if stored == computed:
        return "", ""
    return "data_crc", f"CRC of the payload: stored {stored:08x}, computed {computed:08x}"


def what_it_is(head: bytes) -> tuple[str, str]:
    """Kind and detail of a file without one sound frame, by its first bytes; empty if they tell nothing."""
    name = next((name for magic, name in _MAGIC if head.startswith(magic)), "") or _deflated(head)
    if name:
        return "compressed", f"the file is {name}; shards are never compressed as a whole"
    if len(head) >= 8 and 0 not in head[:8]:
        # As a length this would be 72 petabytes or more; text and images begin so.
        return "not_tfrecord", f"the file is no TFRecord: it begins with {head[:8]!r}"
    return "", ""


def _deflated(head: bytes) -> str:
    """GZIP or zlib, which have short marks: told by unpacking a little."""
    try:
        unpacked = zlib.decompressobj(wbits=47).decompress(head, 64)
    except zlib.error:
        return ""
    return ("GZIP" if head.startswith(b"\x1f\x8b") else "zlib") if unpacked else ""


def _first_header(data: Bytes) -> list[tuple[int, int]]:
    """Place and payload length of each sound header in ``data``, for lengths below 4 GiB."""
    count = data.size - HEADER_BYTES + 1
    if count <= 0 or not data.any():  # a hole; the checksum of length 0 is not 0
        return []
    high = data[4 : 4 + count] | data[5 : 5 + count] | data[6 : 6 + count] | data[7 : 7 + count]
    places = np.flatnonzero(high == 0)
    crc = np.full(places.size, google_crc32c.value(bytes(8)), np.uint32)
    length = np.zeros(places.size, np.int64)
    stored = np.zeros(places.size, np.uint32)
    for byte, table in enumerate(_crc_tables()):
        values = data[places + byte]
        crc ^= table[values]
        length |= values.astype(np.int64) << 8 * byte
        stored |= data[places + 8 + byte].astype(np.uint32) << np.uint32(8 * byte)
    masked = (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(0xA282EAD8)
    return [(int(places[at]), int(length[at])) for at in np.flatnonzero(masked == stored)]


@lru_cache(maxsize=1)
def _crc_tables() -> list[npt.NDArray[np.uint32]]:
    """What each value of the four low bytes of a length adds (by XOR) to the CRC of the length 0."""
    zero = google_crc32c.value(bytes(8))
    return [
        np.array([google_crc32c.value((value << 8 * byte).to_bytes(8, "little")) ^ zero for value in range(256)], "u4")
        for byte in range(4)
    ]
