"""Faults of every kind, drawn by seed, put into a built set: found, located, mended, and nothing else touched.

``SHARDTRAIL_FAULTS`` sets how many; ``make faults`` takes 1,000.
"""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import lzma
import os
import random
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zstandard
from builds import build_all, copied, digests, new_folder, stamps

from shardtrail.dataset import Shard, load_dataset
from shardtrail.job import Job
from shardtrail.records.example import decode_example, encode_example, encode_sample
from shardtrail.records.features import Declared
from shardtrail.records.framing import HEADER_BYTES, frame
from shardtrail.records.index import format_index, read_index
from shardtrail.records.scan import read_record, verify_file
from shardtrail.samples import Feature, Schema
from shardtrail.sharding.receipts import read_receipt, write_receipt
from shardtrail.sharding.verify import ShardFault, repair, verify

pytest_plugins = ["build_fixtures"]

PAGE = 4096


@dataclass(frozen=True)
class Truth:
    """What the injector did: ``verify`` must name the shard, and record, offset and kind where they are given."""

    shard: str
    kinds: tuple[str, ...]
    record: int | None = None
    offset: int | None = None

    def told_by(self, fault: ShardFault) -> bool:
        return (
            fault.shard == self.shard
            and fault.kind in self.kinds
            and (self.record is None or fault.record == self.record)
            and (self.offset is None or fault.offset == self.offset)
        )


class Target:
    """One shard of the set that a fault is put into, and the draws that say where."""

    def __init__(self, job: Job, draw: random.Random) -> None:
        self.job, self.draw = job, draw
        self.dataset = load_dataset(job.folder.dataset)
        self.shard, self.other = draw.sample([s for s in self.dataset.shards if s.records > 2], 2)
        self.path, self.index = self.files(self.shard)
        self.spans = read_index(self.index)
        self.record = draw.randrange(len(self.spans))
        self.offset, self.length = self.spans[self.record]

    def files(self, shard: Shard) -> tuple[Path, Path]:
        return self.job.folder.shards / shard.file, self.job.folder.shards / shard.index

    def truth(self, *kinds: str, record: int | None = None, offset: int | None = None) -> list[Truth]:
        return [Truth(self.shard.address, kinds, record, offset)]

    def here(self, *kinds: str) -> list[Truth]:
        return self.truth(*kinds, record=self.record, offset=self.offset)

    def patch(self, offset: int, content: bytes) -> None:
        """Write into the file itself, as a failing disk or a careless program does."""
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(content)

    def flip(self, offset: int) -> None:
        with self.path.open("rb") as file:
            file.seek(offset)
            (byte,) = file.read(1)
        self.patch(offset, bytes([byte ^ 1 << self.draw.randrange(8)]))

    def frames(self, path: Path | None = None) -> list[bytes]:
        content = (path or self.path).read_bytes()
        index = (path or self.path).with_suffix(".index")
        return [content[offset : offset + length] for offset, length in read_index(index)]

    def write_frames(self, frames: Sequence[bytes], index: bool = True) -> None:
        self.path.write_bytes(b"".join(frames))
        if index:
            self.index.write_bytes(format_index(map(len, frames)))

    def overlapping(self, start: int, end: int) -> list[int]:
        """Records that have bytes between two offsets."""
        return [r for r, (offset, length) in enumerate(self.spans) if offset < end and start < offset + length]


Inject = Callable[[Target], list[Truth]]
KINDS: dict[str, Inject] = {}
DAMAGED = ("length_crc", "data_crc", "truncated_in_record")


def kind(inject: Inject) -> Inject:
    KINDS[inject.__name__.replace("_", " ")] = inject
    return inject


@kind
def flip_in_length(t: Target) -> list[Truth]:
    t.flip(t.offset + t.draw.randrange(8))
    return t.here("length_crc")


@kind
def flip_in_length_crc(t: Target) -> list[Truth]:
    t.flip(t.offset + 8 + t.draw.randrange(4))
    return t.here("length_crc")


@kind
def flip_in_payload(t: Target) -> list[Truth]:
    t.flip(t.offset + HEADER_BYTES + t.draw.randrange(t.length - 16))
    return t.here("data_crc")


@kind
def flip_in_payload_crc(t: Target) -> list[Truth]:
    t.flip(t.offset + t.length - 1 - t.draw.randrange(4))
    return t.here("data_crc")


@kind
def flips_in_several_records(t: Target) -> list[Truth]:
    found = []
    for record in t.draw.sample(range(len(t.spans)), 2):
        offset, length = t.spans[record]
        t.flip(offset + t.draw.randrange(length))
        found += t.truth("length_crc", "data_crc", record=record, offset=offset)
    return found


@kind
def flips_and_no_index(t: Target) -> list[Truth]:
    t.index.unlink()
    return [*flips_in_several_records(t), *t.truth("missing_index")]


@kind
def header_and_index_of_another(t: Target) -> list[Truth]:
    t.index.write_bytes(t.files(t.other)[1].read_bytes()[:-1])
    t.flip(t.offset + t.draw.randrange(12))
    return t.here("length_crc")


@kind
def false_length_under_a_right_crc(t: Target) -> list[Truth]:
    header = frame(bytes(t.draw.choice([0, 3, t.length, 2 * t.length])))[0]
    t.patch(t.offset, header)
    return t.here(*DAMAGED)


@kind
def cut_in_a_record(t: Target) -> list[Truth]:
    os.truncate(t.path, t.offset + t.draw.randrange(1, t.length))
    return t.here("truncated_in_record")


@kind
def cut_between_records(t: Target) -> list[Truth]:
    os.truncate(t.path, t.offset)
    return t.here("missing_records")


@kind
def zero_bytes(t: Target) -> list[Truth]:
    os.truncate(t.path, 0)
    return t.truth("missing_records", record=0, offset=0)


@kind
def shards_swapped(t: Target) -> list[Truth]:
    aside = t.path.with_name("aside")
    other = t.files(t.other)[0]
    t.path.rename(aside)
    other.rename(t.path)
    aside.rename(other)
    return [Truth(shard.address, ("wrong_sample",), 0) for shard in (t.shard, t.other)]


@kind
def shards_and_indexes_swapped(t: Target) -> list[Truth]:
    for mine, theirs in zip(t.files(t.shard), t.files(t.other), strict=True):
        content = mine.read_bytes(), theirs.read_bytes()
        mine.write_bytes(content[1])
        theirs.write_bytes(content[0])
    return [Truth(shard.address, ("wrong_sample",), 0) for shard in (t.shard, t.other)]


@kind
def two_shards_at_once(t: Target) -> list[Truth]:
    path, index = t.files(t.other)
    offset, length = read_index(index)[-1]
    os.truncate(path, offset + length // 2)
    return [*flip_in_payload(t), Truth(t.other.address, ("truncated_in_record",), t.other.records - 1, offset)]


@kind
def another_shard_under_its_name(t: Target) -> list[Truth]:
    shutil.copyfile(t.files(t.other)[0], t.path)
    return t.truth("wrong_sample", record=0)


@kind
def a_damaged_other_shard_under_its_name(t: Target) -> list[Truth]:
    shutil.copyfile(t.files(t.other)[0], t.path)
    t.flip(t.path.stat().st_size - 1)
    return t.truth("wrong_sample", record=0)


@kind
def records_swapped(t: Target) -> list[Truth]:
    frames = t.frames()
    a, b = t.draw.sample(range(len(frames)), 2)
    frames[a], frames[b] = frames[b], frames[a]
    t.write_frames(frames)
    return [*t.truth("wrong_sample", record=a), *t.truth("wrong_sample", record=b)]


@kind
def record_twice(t: Target) -> list[Truth]:
    frames = t.frames()
    place = t.draw.choice([p for p in range(len(frames) + 1) if p not in (t.record, t.record + 1)])
    frames.insert(place, frames[t.record])
    t.write_frames(frames)
    last = place == len(t.spans)
    return t.truth("trailing_bytes") if last else t.truth("wrong_sample", record=place, offset=t.spans[place][0])


@kind
def record_over_another(t: Target) -> list[Truth]:
    frames = t.frames()
    frames[t.record] = frames[t.record - 1]
    t.write_frames(frames)
    return t.truth("wrong_sample", "missing_records", record=t.record)


@kind
def record_gone(t: Target) -> list[Truth]:
    frames = t.frames()
    del frames[t.record]
    t.write_frames(frames)
    return t.truth("missing_records", record=t.record, offset=t.offset)


@kind
def record_of_another_shard(t: Target) -> list[Truth]:
    frames = t.frames()
    frames[t.record] = t.frames(t.files(t.other)[0])[0]
    t.write_frames(frames)
    return t.here("wrong_sample")


@kind
def record_of_another_shard_put_in(t: Target) -> list[Truth]:
    frames = t.frames()
    frames.insert(t.record, t.frames(t.files(t.other)[0])[0])
    t.write_frames(frames)
    return t.here("wrong_sample")


@kind
def shard_gone(t: Target) -> list[Truth]:
    t.path.unlink()
    return t.truth("missing_shard")


@kind
def shard_and_index_gone(t: Target) -> list[Truth]:
    t.index.unlink()
    return shard_gone(t)


@kind
def index_gone(t: Target) -> list[Truth]:
    t.index.unlink()
    return t.truth("missing_index")


@kind
def index_moved(t: Target) -> list[Truth]:
    lines = [f"{offset + t.draw.choice([-1, 1, 16])} {length}\n" for offset, length in t.spans]
    t.index.write_text("".join(lines))
    return t.truth("wrong_index")


@kind
def index_with_a_line_too_many(t: Target) -> list[Truth]:
    lengths = [length for _, length in t.spans]
    t.index.write_bytes(format_index([*lengths, lengths[-1]]))
    return t.truth("wrong_index", record=len(lengths))


@kind
def index_with_a_line_too_few(t: Target) -> list[Truth]:
    t.index.write_bytes(format_index(length for _, length in t.spans[: t.record]))
    return t.here("wrong_index")


@kind
def index_with_other_lengths(t: Target) -> list[Truth]:
    lengths = [length for _, length in t.spans]
    t.index.write_bytes(format_index([*lengths[: t.record], 17, *lengths[t.record + 1 :]]))
    return t.here("wrong_index")


@kind
def index_of_other_bytes(t: Target) -> list[Truth]:
    content = t.index.read_bytes()
    forms = [b"", b"\0" * len(content), content.replace(b"\n", b"\r\n"), content + b"\n", b"offset length\n" + content]
    t.index.write_bytes(t.draw.choice(forms))
    return t.truth("wrong_index")


@kind
def receipt_of_other_bytes(t: Target) -> list[Truth]:
    receipts, fingerprint = t.job.folder.receipts, t.shard.fingerprint
    receipt = read_receipt(receipts, fingerprint)
    assert receipt is not None
    changes = [{"md5": t.other.md5}, {"bytes": 7}, {"records": 1}, {"index_md5": "0" * 32}]
    write_receipt(receipts, fingerprint, dataclasses.replace(receipt, mtime_ns=1, **t.draw.choice(changes)))
    return t.truth("stale_receipt")


@kind
def receipt_damaged(t: Target) -> list[Truth]:
    path = t.job.folder.receipts / f"{t.shard.fingerprint}.json"
    content = path.read_bytes()
    path.write_bytes(t.draw.choice([b"", content[: len(content) // 2], b"[]", content.replace(b"done", b"gone")]))
    return t.truth("stale_receipt")


@kind
def compressed(t: Target) -> list[Truth]:
    packers = [gzip.compress, zlib.compress, bz2.compress, lzma.compress, zstandard.ZstdCompressor().compress]
    t.path.write_bytes(t.draw.choice(packers)(t.path.read_bytes()))
    return t.truth("compressed")


@kind
def text_in_its_place(t: Target) -> list[Truth]:
    t.path.write_bytes(
        t.draw.choice([b"patch,label\n" * 900, b"Notes on the archive\n", "\u65e5\u672c\n".encode() * 40])
    )
    return t.truth("not_tfrecord")


@kind
def garbage_after_the_end(t: Target) -> list[Truth]:
    size = t.path.stat().st_size
    t.patch(size, t.draw.choice([t.draw.randbytes(t.draw.randrange(1, 9000)), bytes(20), t.frames()[0]]))
    return t.truth("trailing_bytes", offset=size)


@kind
def hole_of_zeros(t: Target) -> list[Truth]:
    """One to forty pages lost: a sparse stretch reads as zeros."""
    size = t.path.stat().st_size
    start = PAGE * t.draw.randrange(size // PAGE)
    end = min(size, start + PAGE * t.draw.choice([1, 2, 40]))
    t.patch(start, bytes(end - start))
    found = []
    for record in t.overlapping(start, end):
        found += t.truth("length_crc", "data_crc", record=record, offset=t.spans[record][0])
    return found


@kind
def page_of_another_file(t: Target) -> list[Truth]:
    start = PAGE * t.draw.randrange(t.path.stat().st_size // PAGE)
    page = t.draw.choice([t.draw.randbytes(PAGE), (b"a,b,c\n" * PAGE)[:PAGE], t.files(t.other)[0].read_bytes()[:PAGE]])
    t.patch(start, page[: t.path.stat().st_size - start])
    found = []
    for record in t.overlapping(start, start + PAGE):
        found += t.truth(*DAMAGED, "wrong_sample", record=record)
    return found


@kind
def wrong_feature(t: Target) -> list[Truth]:
    """Framing, checksums, sample and index right; one feature is not as declared."""
    features = decode_example(read_record(t.path, t.offset))
    name = t.draw.choice(["B02", "VH", "labels", "label_names", "patch_name_s2"])
    values = features[name]
    if t.draw.random() < 0.3:
        del features[name]
    elif name == "labels":
        features[name] = np.array(t.draw.choice([[19], [-1], [2**40]]))
    elif isinstance(values, list):
        features[name] = t.draw.choice([[*values, b"more"], [], np.array([1]), [values[0][:-2], values[0][:2]]])
    else:
        assert values is not None
        features[name] = t.draw.choice([values[:-1], np.empty(0, values.dtype), [values.tobytes()]])
    frames = t.frames()
    frames[t.record] = b"".join(frame(encode_example({k: v for k, v in features.items() if v is not None})))
    t.write_frames(frames)
    return t.here("wrong_feature")


@kind
def no_example_at_all(t: Target) -> list[Truth]:
    frames = t.frames()
    frames[t.record] = b"".join(frame(t.draw.choice([b"", b"\xff\xff", b"not an example", bytes(99)])))
    t.write_frames(frames)
    return t.here("wrong_sample")


@kind
def foreign_file(t: Target) -> list[Truth]:
    name = t.draw.choice(["train-00000-of-00003.tfrecord", "notes.tfrecord", "labels.csv", "old.index"])
    (t.job.folder.shards / name).write_bytes(t.draw.choice([b"a,b\n", t.path.read_bytes()]))
    return [Truth(name, ("foreign_shard",))]


NEVER_NEW = {  # what a fault of this kind must leave alone, though it is of the shard that was hit
    **dict.fromkeys([name for name in KINDS if name.startswith("index")], ".tfrecord"),
    **dict.fromkeys([name for name in KINDS if name.startswith("receipt")], ""),
}
FAULTS = int(os.environ.get("SHARDTRAIL_FAULTS", 60))


@pytest.fixture(scope="module")
def sets(finished: Job, raw: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Job]:
    """Built sets of the test's own, one of each encoding."""
    int64 = new_folder(tmp_path_factory.mktemp("int64"), raw, "int64")
    build_all(int64)
    return [copied(finished, tmp_path_factory.mktemp("faults") / "raw"), int64]


@pytest.mark.timeout(3600)
def test_every_injected_fault_is_found_located_and_repaired(sets: list[Job], tmp_path: Path) -> None:
    """Deep verification names shard, record and byte of each; repair restores every byte and rewrites nothing else."""
    table: dict[str, Counter[str]] = {name: Counter() for name in KINDS}
    before = [digests(job.folder.data) for job in sets]
    misses = []
    for number in range(FAULTS):
        name = list(KINDS)[number % len(KINDS)]
        draw = random.Random(f"{number} {name}")
        which = draw.randrange(len(sets))
        outcome = inject_and_repair(sets[which], name, draw, before[which], tmp_path / f"links-{number}")
        table[name].update({"injected": 1} | dict.fromkeys(outcome.reached, 1))
        if outcome.said:
            misses.append(f"fault {number}, {name}: {outcome.said}")
    columns = ("injected", "found", "located", "repaired")
    print("\n" + "".join(f"{column:>10}" for column in columns) + "  kind")
    for name, row in {**table, "in all": sum(table.values(), Counter())}.items():
        print("".join(f"{row[column]:10}" for column in columns) + f"  {name}")
    assert not misses, "\n".join(misses)


@dataclass
class Outcome:
    reached: tuple[str, ...]
    said: str = ""


def inject_and_repair(job: Job, name: str, draw: random.Random, sound: dict[str, str], links: Path) -> Outcome:
    """One fault. Half of them keep the files' old times; a third of the files have a second name, as DVC gives them."""
    shards = job.folder.shards
    if draw.random() < 0.3:
        links.mkdir()
        for path in shards.iterdir():
            os.link(path, links / path.name)
    times = {path: path.stat() for path in shards.iterdir()}
    untouched = stamps(job.folder.data)
    truths = KINDS[name](Target(job, draw))
    if draw.random() < 0.5:
        for path, stat in times.items():
            if path.exists():
                os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    found = verify(job, deep=True).faults
    hit = {truth.shard for truth in truths}
    if not hit <= {fault.shard for fault in found}:
        return Outcome((), f"not found; {truths}; {found}")
    strays = [fault for fault in found if fault.shard not in hit]
    if strays or not all(any(truth.told_by(fault) for fault in found) for truth in truths):
        return Outcome(("found",), f"wanted {truths}; found {found}")

    repaired = repair(job, verify(job, deep=True))
    for truth in truths:
        if truth.kinds == ("foreign_shard",):
            assert (shards / truth.shard).exists()
            (shards / truth.shard).unlink()
            hit.discard(truth.shard)
    if set(repaired) != hit or digests(job.folder.data) != sound or verify(job, deep=True).faults:
        return Outcome(("found", "located"), f"repaired {repaired}; {verify(job, deep=True).faults}")
    may_be_new = {
        f"shards/{file}"
        for shard in load_dataset(job.folder.dataset).shards
        if shard.address in hit
        for file in (shard.file, shard.index)
        if not file.endswith(NEVER_NEW.get(name, "nothing"))
    }
    now = stamps(job.folder.data)
    rewritten = {path for path in untouched if now[path][0] != untouched[path][0]} - may_be_new
    if rewritten:
        return Outcome(("found", "located"), f"rewritten without need: {rewritten}")
    return Outcome(("found", "located", "repaired"))


DTYPES = ("uint8", "uint16", "float32")


def test_sound_sets_raise_no_alarm(tmp_path: Path) -> None:
    """200 sets of any schema, in either encoding, are found sound with all that can be asked of them."""
    for number in range(200):
        draw = random.Random(number)
        features = [Feature(f"{draw.choice('Bxz')}{n}", draw.choice(DTYPES), (n, 3)) for n in range(draw.randrange(5))]
        vocabulary = tuple(f"class {n}" for n in range(draw.randrange(1, 200)))
        prefix = draw.choice(["", "BigEarthNet-19"])
        schema = Schema(tuple(features), draw.choice([(), ("place",)]), vocabulary, prefix)
        encoding = draw.choice(["raw", "int64"])
        path = tmp_path / "set.tfrecord"
        ids = [f"sample {n}" for n in range(draw.randrange(9))]
        frames = []
        for sample_id in ids:
            arrays = {f.name: np.frombuffer(draw.randbytes(f.nbytes), f.dtype).reshape(f.shape) for f in features}
            labels = sorted(draw.sample(range(len(vocabulary)), draw.randrange(min(4, len(vocabulary)))))
            texts = ["Ødemark" * draw.randrange(30)] * len(schema.texts)
            with np.errstate(invalid="ignore"):
                frames.append(b"".join(frame(encode_sample(schema, encoding, sample_id, labels, texts, arrays))))
        path.write_bytes(b"".join(frames))
        path.with_suffix(".index").write_bytes(format_index(map(len, frames)))

        verified = verify_file(
            path, index=path.with_suffix(".index"), sample_ids=ids, declared=Declared(schema, encoding)
        )

        assert (verified.faults, verified.records) == ((), len(ids)), number
