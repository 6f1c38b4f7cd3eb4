"""Which record of the plan each frame of a shard is: what is damaged, foreign, absent, twice or out of place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shardtrail.records.frames import Frame


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a shard.

    Attributes:
        record: place in the file from 0 (of a missing record: in the plan); None where the whole file is meant.
        offset: byte at which the record starts (of one in a damaged stretch: at which the stretch starts).
        kind: ``compressed``, ``not_tfrecord``, ``length_crc``, ``data_crc``, ``truncated_in_record``,
            ``missing_records``, ``trailing_bytes``, ``wrong_sample``, ``wrong_feature``, ``size``, ``md5``,
            ``missing_index`` or ``wrong_index``.
        detail: a sentence with stored and expected values.
    """

    record: int | None
    offset: int
    kind: str
    detail: str


def compare(frames: Sequence[Frame], sample_ids: Sequence[str], size: int) -> list[Fault]:
    """Faults of frames whose ``content`` is ``(sample_id, problems)``, against the samples they should hold."""
    return _Comparison(frames, sample_ids, size).faults()


def count(frames: Sequence[Frame], expected: int | None, size: int) -> list[Fault]:
    """Faults of frames of which at most the number is known."""
    faults: list[Fault] = []
    # Frames that cannot be told apart in a damaged stretch make up for what is missing.
    stretches = sum(not frame.single for frame in frames)
    hidden = max(0, (expected or 0) - len(frames)) if stretches == 1 else 0
    place = 0
    for frame in frames:
        if place == expected:
            return [*faults, _trailing(frame, expected, size)]
        faults += _own_faults(frame, place)
        place += 1 if frame.single else 1 + hidden
    if expected is not None and place < expected and not _cut(frames):
        faults.append(_ended(place, expected, size))
    return faults


class _Comparison:
    """One walk along frames and expected samples at once."""

    def __init__(self, frames: Sequence[Frame], sample_ids: Sequence[str], size: int) -> None:
        self._frames, self._size = frames, size
        self._expected = [sample_id.encode() for sample_id in sample_ids]
        self._place = {sample_id: place for place, sample_id in enumerate(self._expected)}
        self._found = [_sample(frame) for frame in frames]
        self._times = Counter(found for found in self._found if found is not None)
        self._last = {found: at for at, found in enumerate(self._found)}

    def faults(self) -> list[Fault]:
        sound = [frame for frame in self._frames if not frame.kind]
        if len(sound) > 1 and not any(found in self._place for found in self._times):
            detail = f"none of its {len(sound)} sound records is a sample of this shard; the first {_holds(sound[0])}"
            return [Fault(0, 0, "wrong_sample", detail)]
        faults: list[Fault] = []
        due = record = 0  # the expected sample that comes next, and the place in the file
        for at, frame in enumerate(self._frames):
            if not frame.kind:
                absent = self._absent(at, due)
                faults += [self._missing(due + n, frame.offset) for n in range(absent)]
                due += absent
            if due == len(self._expected):
                return [*faults, _trailing(frame, due, self._size)]
            if frame.kind:
                lost = 1 if frame.single else self._lost(at, due)
                faults += [Fault(record + n, frame.offset, frame.kind, frame.detail) for n in range(lost)]
                due, record = due + lost, record + lost
                continue
            if self._found[at] == self._expected[due]:
                faults += [Fault(record, frame.offset, "wrong_feature", problem) for problem in frame.content[1]]
                due += 1
            else:
                detail = f"expected sample {self._expected[due].decode()}, found {_name(frame)}"
                faults.append(Fault(record, frame.offset, "wrong_sample", detail))
                due += not self._put_in(at, due)
            record += 1
        if due < len(self._expected) and not _cut(self._frames):
            faults.append(_ended(due, len(self._expected), self._size))
        return faults

    def _absent(self, at: int, due: int) -> int:
        """How many of the expected samples from ``due`` on lie nowhere, so that this frame is a later one."""
        mine = self._place.get(self._found[at] or b"", -1)
        absent = 0
        while due + absent < mine and self._last.get(self._expected[due + absent], -1) < at:
            absent += 1
        return absent if due + absent == mine else 0

    def _put_in(self, at: int, due: int) -> bool:
        """Whether this frame was added between two: it is foreign or a copy, and the one that is due follows."""
        found = self._found[at]
        copy = found not in self._place or self._times[found] > 1
        return copy and at + 1 < len(self._found) and self._found[at + 1] == self._expected[due]

    def _lost(self, at: int, due: int) -> int:
        """How many records a damaged stretch held: as many as are due before the next that is known."""
        between = 0
        for later in range(at + 1, len(self._frames)):
            place = self._place.get(self._found[later] or b"", -1)
            if place >= due:
                return max(1, place - due - between)
            between += 1
        return 1 if _cut(self._frames) else max(1, len(self._expected) - due - between)

    def _missing(self, place: int, offset: int) -> Fault:
        return Fault(place, offset, "missing_records", f"sample {self._expected[place].decode()} is missing")


def _own_faults(frame: Frame, record: int) -> list[Fault]:
    if frame.kind:
        return [Fault(record, frame.offset, frame.kind, frame.detail)]
    problems = frame.content[1] if frame.content else ()
    return [Fault(record, frame.offset, "wrong_feature", problem) for problem in problems]


def _sample(frame: Frame) -> bytes | None:
    sample_id: bytes | None = frame.content[0] if frame.content else None
    return sample_id


def _holds(frame: Frame) -> str:
    return f"holds {_name(frame)}"


def _name(frame: Frame) -> str:
    sample_id = _sample(frame)
    if sample_id is not None:
        return sample_id.decode(errors="replace")
    return "; ".join(frame.content[1]) if frame.content and frame.content[1] else "no sample_id"


def _cut(frames: Sequence[Frame]) -> bool:
    """Whether the file ends within a record."""
    return bool(frames) and frames[-1].kind == "truncated_in_record"


def _trailing(frame: Frame, expected: int, size: int) -> Fault:
    detail = f"{size - frame.offset} bytes follow the last of {expected} expected records"
    return Fault(None, frame.offset, "trailing_bytes", detail)


def _ended(record: int, expected: int, size: int) -> Fault:
    return Fault(record, size, "missing_records", f"the file ends after {record} of {expected} records")
