from __future__ import annotations

import dataclasses
import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builds import copied, digests, edit, sources_of, stamps
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardtrail.dataset import Shard, load_dataset
from shardtrail.errors import ConfigError, StageFailed
from shardtrail.job import Job, open_job
from shardtrail.progress import Silent
from shardtrail.records.framing import HEADER_BYTES, frame
from shardtrail.records.index import read_index
from shardtrail.records.scan import read_record
from shardtrail.sharding.receipts import read_receipt, write_receipt
from shardtrail.sharding.verify import Verification, repair, verify
from shardtrail.stages.hash import hash_shards
from shardtrail.stages.shard import shard, status

pytest_plugins = ["build_fixtures"]

ADDRESS = "train-00001"


def recorded(job: Job, address: str = ADDRESS) -> Shard:
    return next(one for one in load_dataset(job.folder.dataset).shards if one.address == address)


def path_of(job: Job, address: str = ADDRESS) -> Path:
    return job.folder.shards / recorded(job, address).file


def flip(path: Path, offset: int) -> None:
    """Invert one bit, time and size kept, as a failing disk does."""
    edit(path, lambda content: content.__setitem__(offset, content[offset] ^ 8), keep_time=True)


def kinds(found: Verification) -> list[tuple[str, int | None, str]]:
    return [(fault.shard, fault.record, fault.kind) for fault in found.faults]


def drop_last_record(job: Job, path: Path) -> None:
    os.truncate(path, read_index(path.with_suffix(".index"))[-1][0])


def swap_records(job: Job, path: Path) -> None:
    """Write the first two records the other way round, framing right."""
    (first, length), (second, other) = read_index(path.with_suffix(".index"))[:2]
    payloads = [read_record(path, second), read_record(path, first)]
    edit(
        path,
        lambda content: content.__setitem__(slice(0, length + other), b"".join(map(b"".join, map(frame, payloads)))),
    )


def swap_files(job: Job, path: Path) -> None:
    other = path_of(job, "train-00000")
    aside = path.with_name("aside")
    path.rename(aside)
    other.rename(path)
    aside.rename(other)


def forge_receipt(job: Job, path: Path) -> None:
    """A receipt that vouches for other bytes than dataset.json names."""
    fingerprint = recorded(job).fingerprint
    receipt = read_receipt(job.folder.receipts, fingerprint)
    assert receipt is not None
    write_receipt(job.folder.receipts, fingerprint, dataclasses.replace(receipt, md5="0" * 32))


def second_record(job: Job) -> int:
    return read_index(path_of(job).with_suffix(".index"))[1][0]


class Heard(Silent):
    def __init__(self, said: list[str]) -> None:
        self.said = said

    def say(self, line: str) -> None:
        self.said.append(line)


def falsify_dataset(job: Job) -> None:
    """A dataset.json that is whole in itself and names a false md5, as one made from a false receipt did."""
    dataset = load_dataset(job.folder.dataset)
    shards = tuple(dataclasses.replace(s, md5="0" * 32) if s.address == ADDRESS else s for s in dataset.shards)
    job.folder.dataset.write_bytes(dataclasses.replace(dataset, shards=shards).to_json())


# Name -> what is done, and the faults to be found by record (-1: the last) and kind.
DAMAGES: dict[str, tuple[Callable[[Job, Path], object], list[tuple[int | None, str]]]] = {
    "gone": (lambda job, path: path.unlink(), [(None, "missing_shard")]),
    "no index": (lambda job, path: path.with_suffix(".index").unlink(), [(None, "missing_index")]),
    "wrong index": (
        lambda job, path: edit(path.with_suffix(".index"), lambda content: content.__setitem__(slice(0, 1), b"1")),
        [(None, "wrong_index")],
    ),
    "empty": (lambda job, path: os.truncate(path, 0), [(0, "missing_records")]),
    "cut in a record": (lambda job, path: os.truncate(path, second_record(job) + 99), [(1, "truncated_in_record")]),
    "cut between records": (drop_last_record, [(-1, "missing_records")]),
    "longer": (lambda job, path: edit(path, lambda content: content.extend(b"\0" * 20)), [(None, "trailing_bytes")]),
    "compressed": (lambda job, path: path.write_bytes(gzip.compress(path.read_bytes())), [(None, "compressed")]),
    "text": (lambda job, path: path.write_text("Notes on the archive\n"), [(None, "not_tfrecord")]),
    "records swapped": (swap_records, [(0, "wrong_sample"), (1, "wrong_sample")]),
    "receipt forged": (forge_receipt, [(None, "stale_receipt")]),
}


@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_dataset_has_no_fault(finished, deep):
    """Every shard and record is counted, nothing is written."""
    before = stamps(finished.folder.root)
    found = verify(finished, deep=deep)

    dataset = load_dataset(finished.folder.dataset)
    assert found.faults == ()
    assert found.shards == len(dataset.shards)
    assert found.records == dataset.samples["accepted"]
    assert stamps(finished.folder.root) == before


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_and_repaired(built, finished, damage, deep):
    """Shard, record and kind are named, with or without --deep; repair rebuilds that shard alone, to the same bytes."""
    work, faults = DAMAGES[damage]
    records = recorded(built).records
    work(built, path_of(built))
    others = {
        name: stamp for name, stamp in stamps(built.folder.shards).items() if recorded(built).file[:-9] not in name
    }

    found = verify(built, deep=deep)

    assert kinds(found) == [(ADDRESS, records - 1 if record == -1 else record, kind) for record, kind in faults]
    assert found.records == load_dataset(built.folder.dataset).samples["accepted"] - records
    assert repair(built, found) == (ADDRESS,)
    assert digests(built.folder.shards) == digests(finished.folder.shards)
    assert {name: stamps(built.folder.shards)[name] for name in others} == others
    assert verify(built, deep=True).faults == ()


def test_swapped_files_are_both_named(built, finished):
    """Two shards under each other's names are told apart by content."""
    swap_files(built, path_of(built))

    found = verify(built)

    assert kinds(found) == [("train-00000", 0, "wrong_sample"), (ADDRESS, 0, "wrong_sample")]
    assert f"holds the bytes of {ADDRESS}" in found.faults[0].detail
    assert repair(built, found) == ("train-00000", ADDRESS)
    assert digests(built.folder.shards) == digests(finished.folder.shards)


def test_a_flipped_bit_under_an_old_time_is_found_by_deep_alone(built):
    """Without --deep size and time are trusted, as documented; --deep names record and byte."""
    offset = second_record(built)
    flip(path_of(built), offset + HEADER_BYTES + 1000)

    assert verify(built).faults == ()
    (fault,) = verify(built, deep=True).faults
    assert (fault.shard, fault.record, fault.offset, fault.kind) == (ADDRESS, 1, offset, "data_crc")
    assert fault.file == recorded(built).file


def test_what_is_no_file_is_named_and_nothing_hangs(built, finished):
    """A named pipe in place of an index is replaced; a folder in place of a shard is named and left."""
    index = path_of(built).with_suffix(".index")
    index.unlink()
    os.mkfifo(index)
    found = verify(built, deep=True)
    assert kinds(found) == [(ADDRESS, None, "wrong_index")]
    assert repair(built, found) == (ADDRESS,)
    assert digests(built.folder.shards) == digests(finished.folder.shards)

    for make in (os.mkdir, os.mkfifo):
        path_of(built).unlink() if make is os.mkdir else path_of(built).rmdir()
        make(path_of(built))
        found = verify(built, deep=True)
        assert kinds(found) == [(ADDRESS, None, "unreadable")]
        assert path_of(built).name in found.faults[0].detail
        assert repair(built, found) == ()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_bit_is_found(built, data):
    """Wherever a bit flips, in framing or payload, --deep names the shard and the right record."""
    path = path_of(built)
    spans = read_index(path.with_suffix(".index"))
    record = data.draw(st.integers(0, len(spans) - 1))
    offset, length = spans[record]
    place = data.draw(st.integers(0, length - 1) | st.sampled_from([0, 7, 8, 11, length - 1]))
    flip(path, offset + place)
    try:
        first = verify(built, deep=True).faults[0]
        assert (first.shard, first.record, first.offset) == (ADDRESS, record, offset)
        assert first.kind == ("length_crc" if place < HEADER_BYTES else "data_crc")
    finally:
        flip(path, offset + place)


def test_foreign_files_are_named_and_stay(built):
    """A shard that nothing names is a fault and stays; those of an older plan are retired and are none."""
    text = built.folder.params.read_text()
    built.folder.params.write_text(text.replace("target_samples: 4", "target_samples: 6"))
    job = open_job(built.folder.root)
    shard(job)
    hash_shards(job)
    assert list(job.folder.retired.glob("*.tfrecord"))
    shutil.copy(path_of(job, "train-00000"), job.folder.shards / "train-00000-of-00004.tfrecord")

    found = verify(job)

    assert kinds(found) == [("train-00000-of-00004.tfrecord", None, "foreign_shard")]
    before = stamps(job.folder.shards)
    assert repair(job, found) == ()
    assert stamps(job.folder.shards) == before


def test_shards_that_only_dataset_json_names_are_verified(built):
    """Readers take dataset.json's list, so it is verified too where the plan has moved on."""
    path = path_of(built)
    text = built.folder.params.read_text()
    built.folder.params.write_text(text.replace("encoding: raw", "encoding: int64"))
    job = open_job(built.folder.root)
    shard(job)
    path.unlink()

    (fault,) = verify(job).faults
    assert (fault.file, fault.kind) == (path.name, "missing_shard")
    assert repair(job, verify(job)) == ()


def test_repair_says_what_the_raw_data_no_longer_give(built, own, finished):
    """Where a raw file is gone the damaged shard stays in its place, and the reason is told."""
    lost = own.raw / sources_of(finished, ADDRESS)[0].relative_to(finished.raw)
    lost.unlink()
    built.folder.params.write_text(own.folder.params.read_text())
    said: list[str] = []
    job = open_job(built.folder.root, progress=Heard(said))
    flip(path_of(job), 500)
    damaged = digests(job.folder.shards)

    assert repair(job, verify(job, deep=True)) == ()
    assert digests(job.folder.shards) == damaged
    (line,) = said
    assert line.startswith(f"{ADDRESS} cannot be repaired")
    assert f"{lost.name} is missing" in line
    (failed,) = status(job).failed
    assert failed["shard"] == ADDRESS


def test_other_bytes_never_take_a_recorded_name(built):
    """If the same raw files gave other bytes than recorded, the shard is refused, not silently replaced."""
    victim, path = recorded(built), path_of(built)
    forge_receipt(built, path)
    built.folder.dataset.unlink()
    path.unlink()

    with pytest.raises(StageFailed, match=f"md5 {victim.md5}, recorded {'0' * 32}"):
        shard(built)
    assert not path.exists()


def test_a_fresh_clone_is_read_once(built, tmp_path):
    """Without receipts, and with times as a checkout leaves them, the shards are read and found sound."""
    clone = copied(built, tmp_path / "clone")
    shutil.rmtree(clone.folder.state)
    for path in clone.folder.shards.iterdir():
        os.utime(path)

    assert verify(clone).faults == ()
    found = status(clone)
    assert (found.done, found.missing) == (found.planned, ())
    flip(path_of(clone), 500)
    assert kinds(verify(clone)) == [(ADDRESS, 0, "data_crc")]


def test_nothing_to_verify_is_said(tmp_path):
    """A folder without plan and dataset.json is answered with what to run."""
    (tmp_path / "params.yaml").write_text("source: raw\n")
    with pytest.raises(ConfigError, match="shardtrail run --until hash"):
        verify(open_job(tmp_path))


def test_an_edited_dataset_json_is_refused(built):
    """A dataset.json whose digest does not fit its shards vouches for nothing."""
    text = built.folder.dataset.read_text()
    built.folder.dataset.write_text(text.replace(recorded(built).md5, "0" * 32))
    with pytest.raises(ConfigError, match="was edited"):
        verify(built)


def test_a_false_receipt_never_reaches_dataset_json(built):
    """Where receipt and dataset.json name different bytes, hash reads the shard and corrects the receipt."""
    before = built.folder.dataset.read_bytes()
    forge_receipt(built, path_of(built))

    hash_shards(built)

    assert built.folder.dataset.read_bytes() == before
    receipt = read_receipt(built.folder.receipts, recorded(built).fingerprint)
    assert receipt is not None and receipt.md5 == recorded(built).md5


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"md5": "', '"md5": "0'),
        lambda text: text.replace('"status": "done"', '"status": 1'),
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "[" * 100_000,
        lambda text: "null",
    ],
)
def test_a_receipt_that_is_not_as_written_is_no_evidence(built, damage):
    """A receipt that was edited, cut or replaced counts as lost: its shard is read, found right and kept."""
    before = digests(built.folder.data)
    for path in built.folder.receipts.glob("*.json"):
        path.write_text(damage(path.read_text()))
        assert read_receipt(built.folder.receipts, path.stem) is None

    build = shard(built)
    hash_shards(built)

    assert (build.written, build.kept) == (0, build.planned)
    assert digests(built.folder.data) == before


def test_a_pipe_in_place_of_a_receipt_hangs_nothing(built):
    """It counts as no receipt: the next build reads the shard, keeps it, and puts a receipt in the pipe's place."""
    path = built.folder.receipts / f"{recorded(built).fingerprint}.json"
    path.unlink()
    os.mkfifo(path)

    build = shard(built)

    assert (build.written, build.kept) == (0, build.planned)
    assert path.is_file() and read_receipt(built.folder.receipts, path.stem) is not None


def test_an_edited_receipt_without_dataset_json_is_no_evidence(built, finished):
    """With no other book to contradict it, an edited receipt still puts no false md5 into dataset.json."""
    path = built.folder.receipts / f"{recorded(built).fingerprint}.json"
    path.write_text(path.read_text().replace(recorded(built).md5, "0" * 32))
    built.folder.dataset.unlink()

    hash_shards(built)

    assert built.folder.dataset.read_bytes() == finished.folder.dataset.read_bytes()


def test_a_false_dataset_json_is_corrected(built, finished):
    """Where a rebuild gives the bytes on disk, repair corrects the receipt and hash dataset.json; both say so."""
    falsify_dataset(built)
    said: list[str] = []
    job = open_job(built.folder.root, progress=Heard(said))

    assert kinds(verify(job, deep=True)) == [(ADDRESS, None, "md5")]
    assert repair(job, verify(job, deep=True)) == (ADDRESS,)
    (line,) = said
    assert line.startswith(f"{ADDRESS}: the raw files give the very bytes on disk")
    assert line.endswith("shardtrail run --until hash")

    hash_shards(job)
    assert said[1].startswith(f"{ADDRESS}: dataset.json named md5 {'0' * 32}")
    assert digests(job.folder.data) == digests(finished.folder.data)
    assert verify(job, deep=True).faults == ()


def test_sound_records_of_other_bytes_are_not_named(built):
    """A shard whose records are right but whose bytes neither receipt nor dataset.json names stops hash."""
    falsify_dataset(built)
    forge = recorded(built).fingerprint
    receipt = read_receipt(built.folder.receipts, forge)
    assert receipt is not None
    write_receipt(built.folder.receipts, forge, dataclasses.replace(receipt, md5="1" * 32))

    with pytest.raises(StageFailed, match=f"expected {'0' * 32} or {'1' * 32}"):
        hash_shards(built)
    shard(built)
    hash_shards(built)
    assert verify(built, deep=True).faults == ()
