from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import pickle
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from builds import (
    SAMPLES,
    build_all,
    build_in_workers,
    digests,
    edit,
    in_process,
    leftovers,
    new_folder,
    receipts,
    sources_of,
    stamps,
    started,
)
from working import let_settle, numbers_folder, write_numbers

from shardtrail.dataset import load_dataset
from shardtrail.errors import ConfigError, StageFailed
from shardtrail.job import open_job
from shardtrail.manifest import read_table
from shardtrail.progress import Silent
from shardtrail.records.example import decode_example, encode_sample
from shardtrail.records.framing import frame
from shardtrail.records.index import format_index, read_index
from shardtrail.records.scan import read_record
from shardtrail.samples import Feature, Schema, SourceFile
from shardtrail.sharding.entries import Entries, planned_shards
from shardtrail.sharding.entry import UNKNOWN, ShardCheck, ShardEntry, pack_records
from shardtrail.sharding.write import write_shard
from shardtrail.stages.hash import hash_shards
from shardtrail.stages.shard import shard, status

pytest_plugins = ["build_fixtures"]

BUILD = """
import sys
from pathlib import Path
from builds import build_all
from shardtrail.job import open_job
build_all(open_job(Path(sys.argv[1])))
"""

KILLED = """
import os, signal, sys
from pathlib import Path
from builds import build_all
from shardtrail.job import open_job
def kill_at(event, arguments, opened=[]):
    if event == "open" and str(arguments[0]).endswith("_B08.tif") and list(shards.glob(".*.tmp")):
        opened.append(arguments[0])
        if len(opened) == 6:
            os.kill(os.getpid(), signal.SIGKILL)
job = open_job(Path(sys.argv[1]))
shards = job.folder.shards
sys.addaudithook(kill_at)
build_all(job)
"""


def test_every_accepted_sample_is_in_one_record(finished):
    """The shards hold each sample of the manifest once, in plan order, with its pixels and labels."""
    plan = read_table(finished.folder.plan)
    manifest = {row["sample_id"]: row for row in read_table(finished.folder.manifest).to_pylist()}
    dataset = load_dataset(finished.folder.dataset)
    stored = []
    for one in dataset.shards:
        path = finished.folder.shards / one.file
        for offset, _ in read_index(path.with_suffix(".index")):
            example = decode_example(read_record(path, offset))
            sample = manifest[example["sample_id"][0].decode()]
            assert example["labels"].tolist() == sample["labels"]
            assert [name.decode() for name in example["label_names"]] == [
                dataset.schema.vocabulary[label] for label in sample["labels"]
            ]
            band = next(file for file in sample["files"] if file["role"] == "B02")
            assert np.array_equal(np.frombuffer(example["B02"][0], "<u2"), tiff_pixels(finished.raw / band["path"]))
            stored.append(sample["sample_id"])

    assert stored == plan["sample_id"].to_pylist()
    assert sorted(stored) == sorted(manifest)
    assert len(stored) == SAMPLES


def tiff_pixels(path: Path) -> np.ndarray:
    import tifffile

    return tifffile.imread(path).ravel()


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_do_not_change_a_byte(finished, raw, tmp_path, workers):
    """Serial, one worker, two workers: the same files to the last byte."""
    job = new_folder(tmp_path, raw)
    build_in_workers(job, workers)

    assert digests(job.folder.data) == digests(finished.folder.data)


def test_surroundings_do_not_change_a_byte(finished, own, tmp_path):
    """Hash seed, time zone, locale, umask and current folder leave no trace in what is built."""
    surroundings = {"PYTHONHASHSEED": "7", "TZ": "Pacific/Auckland", "LC_ALL": "C", "LANG": "tr_TR.UTF-8"}
    script = "import os; os.umask(0o077)\n" + BUILD
    ended = in_process(script, own.folder.root, environment=surroundings, cwd=tmp_path)

    assert ended.returncode == 0, ended.stderr
    assert digests(own.folder.data) == digests(finished.folder.data)


def test_int64_encoding_is_built_and_named(raw, finished, tmp_path):
    """Another encoding gives other shards, and dataset.json says which it is."""
    _, dataset = build_all(new_folder(tmp_path, raw, encoding="int64"))

    assert dataset.encoding == "int64"
    assert not {one.file for one in dataset.shards} & {one.file for one in load_dataset(finished.folder.dataset).shards}


def test_a_second_run_touches_nothing(built):
    """Without a change, nothing is written, and neither raw files nor shards are opened."""
    before = stamps(built.folder.root)
    opened: list[str] = []
    listening = True

    def listen(event: str, arguments: tuple[object, ...]) -> None:
        if listening and event == "open":
            opened.append(str(arguments[0]))

    sys.addaudithook(listen)
    build = shard(built)
    hash_shards(built)
    listening = False

    assert (build.written, build.kept) == (0, build.planned)
    after = stamps(built.folder.root)
    assert {name for name in after if after[name] != before.get(name)} <= {".shardtrail/lease", ".shardtrail"}
    assert opened
    assert [name for name in opened if name.endswith((".tif", ".tfrecord", ".index"))] == []


def test_killed_in_a_shard_then_run_again(own, finished):
    """kill -9 within a shard leaves a temporary file; the next run removes it and ends with the same bytes."""
    ended = in_process(KILLED, own.folder.root)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [name for name in leftovers(own) if ".tfrecord." in name]
    there = stamps(own.folder.shards)
    whole = {name: stamp for name, stamp in there.items() if name.endswith(".tfrecord")}
    assert 0 < len(whole) < load_dataset(finished.folder.dataset).splits["train"]["shards"]

    build, _ = build_all(own)

    assert build.kept == len(whole)
    assert digests(own.folder.data) == digests(finished.folder.data)
    assert {name: stamps(own.folder.shards)[name] for name in whole} == whole
    assert leftovers(own) == []


def test_temporary_files_of_the_dead_are_removed(built):
    """Whatever a killed writer left in data/, receipts and state goes; the file of one that lives stays."""
    folder = built.folder
    names = (
        "manifest.parquet",
        "inventory.parquet",
        "quarantine.csv",
        "warnings.csv",
        "statistics.json",
        "plan.parquet",
    )
    dead = [folder.data / f".{name}.77.tmp" for name in names]
    dead += [folder.state / ".validate.json.77.tmp", folder.receipts / ".0.json.77.tmp"]
    alive = folder.data / ".manifest.parquet.78.tmp"
    for path in (*dead, alive):
        path.write_text("half")
    with alive.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        shard(built)
        assert leftovers(built) == [alive.name]
    shard(built)
    assert leftovers(built) == []


@pytest.mark.parametrize("text", ["[]", "null", '{"inputs": 1}', "{", "[" * 100_000])
def test_a_plan_state_that_is_no_evidence_is_remade(built, text):
    """Whatever .shardtrail/plan.json holds, the plan is the same."""
    before = digests(built.folder.data)
    (built.folder.state / "plan.json").write_text(text)
    shard(built)
    assert digests(built.folder.data) == before


@pytest.mark.parametrize("text", ["{}", "[]", '{"books": 1, "schema": {}}', '{"schema": [], "books": {}}'])
def test_unusable_statistics_are_a_configuration_error(built, text):
    """Statistics that lack a key or hold another type stop hash with the command that makes them again."""
    built.folder.statistics.write_text(text)
    with pytest.raises(ConfigError, match="make it again: shardtrail run --until validate"):
        hash_shards(built)
    assert status(built).planned > 0


def test_options_of_a_custom_layout_decide_its_shards(tmp_path, monkeypatch):
    """Another option of one's own layout, or another version of its decoding, gives other shards."""
    raw = write_numbers(tmp_path / "raw", {f"{n}.json": {"numbers": [n]} for n in range(6)})
    let_settle(raw)
    files = []
    for options in ({}, {"scale": 2}, {"scale": 3}, {"scale": 3}):
        root = numbers_folder(tmp_path / "w", raw, custom=options, validate={"split": {"by": "sample"}})
        build, dataset = build_all(open_job(root))
        files.append(({one.file for one in dataset.shards}, build.written))
    (plain, _), (double, _), (triple, _), (again, written) = files
    assert not plain & double and not double & triple
    assert (again, written) == (triple, 0)

    monkeypatch.setattr("numbers_layout.Numbers.decode_version", 2, raising=False)
    build, dataset = build_all(open_job(tmp_path / "w"))
    assert build.written == build.planned
    assert not triple & {one.file for one in dataset.shards}


def test_killed_with_workers_then_run_again(own, finished):
    """kill -9 of a build with workers: none stays behind, and the next run ends with the same bytes."""
    script = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from builds import build_all
from shardtrail.execution import local_mapper
from shardtrail.job import open_job
from shardtrail.progress import Silent
class Killer(Silent):
    def advance(self, done=1, note=""):
        if list(job.folder.shards.glob("*.tfrecord")):
            os.kill(os.getpid(), signal.SIGKILL)
job = open_job(Path(sys.argv[1]))
with local_mapper(2) as mapper:
    build_all(replace(job, mapper=mapper, progress=Killer()))
"""
    ended = in_process(script, own.folder.root)
    assert ended.returncode == -signal.SIGKILL, ended.stderr

    build_all(own)

    assert digests(own.folder.data) == digests(finished.folder.data)
    assert leftovers(own) == []


def test_a_missing_raw_file_fails_its_shard_by_name(own, finished):
    """The other shards are built; once the file is back, exactly the failed shard is."""
    lost = sources_of(finished, "train-00001")[3]
    lost = own.raw / lost.relative_to(finished.raw)
    content = lost.read_bytes()
    lost.unlink()

    with pytest.raises(StageFailed) as failed:
        shard(own)
    (address, error), *others = failed.value.failures
    assert (address, others) == ("train-00001", [])
    assert f"{lost.relative_to(own.raw)} is missing" in error
    assert ".tfrecord" in error
    assert "--only train-00001" in str(failed.value)
    found = status(own)
    assert [fault["shard"] for fault in found.failed] == ["train-00001"]
    assert (found.done, found.missing) == (found.planned - 1, ())
    assert [one["attempts"] for one in receipts(own).values() if one["status"] == "failed"] == [1]
    assert leftovers(own) == []

    lost.write_bytes(content)
    build = shard(own)
    assert (build.written, build.kept, build.complete) == (1, build.planned - 1, True)
    hash_shards(own)
    assert digests(own.folder.data) == digests(finished.folder.data)


def test_all_missing_files_are_named_up_to_ten(own, finished):
    """A patch whose whole folder is gone is named file by file, and the list ends at ten."""
    lost = own.raw / sources_of(finished, "train-00000")[0].parent.relative_to(finished.raw)
    shutil.rmtree(lost)

    with pytest.raises(StageFailed) as failed:
        shard(own)
    error = failed.value.failures[0][1]
    assert error.count(" is missing") == 10
    assert "perhaps more" in error


@pytest.mark.parametrize("content_changes", [True, False])
def test_bytes_count_not_times(own, finished, content_changes):
    """Other bytes under the old size and time fail by name with both digests; the same bytes under new times do not."""
    path = own.raw / sources_of(finished, "train-00000")[1].relative_to(finished.raw)
    expected = hashlib.md5(path.read_bytes()).hexdigest()
    if content_changes:
        edit(path, lambda content: content.reverse(), keep_time=True)
        found = hashlib.md5(path.read_bytes()).hexdigest()
        with pytest.raises(StageFailed, match=f"{path.name} has md5 {found}, expected {expected}"):
            shard(own)
    else:
        os.utime(path)
        path.chmod(0o600)
        shard(own)
        hash_shards(own)
        assert digests(own.folder.data) == digests(finished.folder.data)


def test_a_folder_in_place_of_a_raw_file_fails_by_name(own, finished):
    """What cannot be read as a file is the machine's fault: named, never skipped."""
    path = own.raw / sources_of(finished, "train-00000")[1].relative_to(finished.raw)
    path.unlink()
    path.mkdir()

    with pytest.raises(StageFailed, match=f"{path.name} cannot be read"):
        shard(own)


def test_shards_without_receipts_are_taken_in(built, raw):
    """After ``dvc pull`` into a fresh clone the shards are checked and kept; no raw file is needed."""
    before = stamps(built.folder.shards)
    shutil.rmtree(built.folder.state)
    (built.folder.params).write_text(built.folder.params.read_text().replace(str(raw), "not/there"))

    build = shard(open_job(built.folder.root))

    assert build.written == 0
    assert stamps(built.folder.shards) == before
    assert {receipt["status"] for receipt in receipts(built).values()} == {"done"}


def test_a_damaged_shard_without_receipt_is_rebuilt(built, finished):
    """Of shards whose receipts are lost, only those whose bytes are wrong are written again."""
    shutil.rmtree(built.folder.receipts)
    victim = sorted(built.folder.shards.glob("*.tfrecord"))[0]
    edit(victim, lambda content: content.__setitem__(5000, content[5000] ^ 1), keep_time=True)
    built.folder.dataset.unlink()

    build = shard(built)

    assert build.written == 1
    assert digests(built.folder.shards) == digests(finished.folder.shards)


@pytest.mark.parametrize("kind", ["touched", "edited", "cut", "no index", "other index", "gone"])
def test_a_shard_unlike_its_receipt_is_looked_at(built, finished, kind):
    """A shard that changed on disk is rebuilt if its bytes are wrong and kept if only its times are new."""
    victim = sorted(built.folder.shards.glob("*.tfrecord"))[0]
    index = victim.with_suffix(".index")
    before = victim.stat().st_ino
    {
        "touched": lambda: os.utime(victim),
        "edited": lambda: edit(victim, lambda content: content.__setitem__(-100, content[-100] ^ 1)),
        "cut": lambda: os.truncate(victim, victim.stat().st_size // 2),
        "no index": index.unlink,
        "other index": lambda: index.write_text("0 17\n"),
        "gone": victim.unlink,
    }[kind]()

    build = shard(built)

    kept = kind in ("touched", "no index", "other index")
    assert build.written == (0 if kept else 1)
    assert (victim.stat().st_ino == before) == kept
    assert digests(built.folder.shards) == digests(finished.folder.shards)


def test_only_builds_what_it_names(own):
    """``only`` takes addresses, names and files; a misspelt one is answered with near ones."""
    with pytest.raises(ConfigError, match=r"train-0002.*near: train-0000\d"):
        shard(own, only=["train-0002"])
    assert list(own.folder.shards.glob("*")) == []

    plan = read_table(own.folder.plan)
    name = plan["shard"][-1].as_py()
    build = shard(own, only=["train-00001", f"{name}.tfrecord"])

    assert (build.written, build.kept, build.complete) == (2, 0, False)
    found = status(own)
    assert found.done == 2
    assert len(found.missing) == found.planned - 2
    assert "train-00001" not in found.missing
    with pytest.raises(StageFailed, match="train-00000") as failed:
        hash_shards(own)
    assert [address for address, _ in failed.value.failures] == list(found.missing)
    assert not own.folder.dataset.exists()


def test_a_full_disk_fails_by_name_and_mends(own, finished):
    """Where a shard cannot be written the error says so, nothing half-written stays, and the next run completes."""
    script = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))\n" + BUILD
    ended = in_process(script, own.folder.root)

    assert "cannot be written" in ended.stderr
    assert "File too large" in ended.stderr
    assert leftovers(own) == []
    found = status(own)
    assert len(found.failed) > 0
    assert len(list(own.folder.shards.glob("*"))) == 2 * found.done
    build_all(own)
    assert digests(own.folder.data) == digests(finished.folder.data)


def test_two_builders_at_once(own, finished):
    """One of two builds on a folder may be turned away, naming the other; the set is whole and right after both."""
    builders = [started(BUILD, own.folder.root) for _ in range(2)]
    ends = [(builder.communicate(timeout=120)[1], builder.returncode) for builder in builders]

    assert 0 in [code for _, code in ends]
    for text, code in ends:
        assert code == 0 or "is being built by process" in text, text
    assert digests(own.folder.data) == digests(finished.folder.data)


def test_writers_of_one_shard_cannot_harm_each_other(built, finished):
    """Without any lease, processes that write the same shard at once leave the right bytes and no temporary file."""
    script = """
import sys
from pathlib import Path
from shardtrail.job import open_job
from shardtrail.manifest import read_table
from shardtrail.samples import Feature, Schema, SourceFile
from shardtrail.sharding.entries import Entries, planned_shards
from shardtrail.sharding.entry import UNKNOWN, ShardCheck, ShardEntry, pack_records
from shardtrail.sharding.write import write_shard
from shardtrail.sharding.write import write_shard
job = open_job(Path(sys.argv[1]))
plan = read_table(job.folder.plan)
_, entry = Entries(job, plan, read_table(job.folder.manifest), planned_shards(plan), lambda paths: {})[0]
for _ in range(8):
    write_shard(entry)
"""
    for writer in [started(script, built.folder.root) for _ in range(2)]:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors
    shard(built)
    assert digests(built.folder.data) == digests(finished.folder.data)
    assert leftovers(built) == []


class Plane:
    """A layout's part that workers use: a sample is one file, its bytes one array."""

    def decode(self, files: Sequence[SourceFile], contents: Sequence[bytes]) -> dict[str, np.ndarray]:
        return {"plane": np.frombuffer(contents[0], np.uint8)}


@pytest.mark.parametrize("size", [1, 2**19 - 1, 3 * 2**20 + 1])
def test_a_shard_is_its_records_whatever_their_size(tmp_path, size):
    """Many samples to a block, one a block, or samples of several blocks: the bytes of the records, one by one."""
    (tmp_path / "raw").mkdir()
    contents = [np.random.default_rng(seed).bytes(size) for seed in range(5)]
    for number, content in enumerate(contents):
        (tmp_path / "raw" / str(number)).write_bytes(content)
    names = [f"sample-{number}" for number in range(len(contents))]
    packed = pack_records(
        sample_ids=names,
        labels=[[0]] * 5,
        texts=[[]] * 5,
        counts=[1] * 5,
        roles=["plane"] * 5,
        paths=list("01234"),
        sizes=[size] * 5,
        md5s=[hashlib.md5(content).hexdigest() for content in contents],
        stats=[(0, 0, UNKNOWN)] * 5,
    )
    schema = Schema((Feature("plane", "uint8", (size,)),), (), ("a",))
    check = ShardCheck("train-00000", "train-0", tmp_path / "shards", tuple(names), 5)
    entry = ShardEntry(
        check, "0" * 64, str(tmp_path / "raw"), tmp_path / "receipts", Plane(), schema, "raw", False, (packed,)
    )
    receipt = write_shard(entry)
    frames = [
        b"".join(frame(encode_sample(schema, "raw", name, [0], [], {"plane": np.frombuffer(content, np.uint8)})))
        for name, content in zip(names, contents, strict=True)
    ]
    assert check.shard.read_bytes() == b"".join(frames)
    assert check.index.read_bytes() == format_index(map(len, frames))
    assert receipt.md5 == hashlib.md5(b"".join(frames)).hexdigest()


def test_workers_load_nothing_heavy(own):
    """What writes a shard in a worker imports neither TensorFlow, Prefect, pandas nor pyarrow."""
    plan, manifest = read_table(own.folder.plan), read_table(own.folder.manifest)
    _, entry = Entries(own, plan, manifest, planned_shards(plan), lambda paths: {})[0]
    pickled = own.folder.root / "entry.pickle"
    pickled.write_bytes(pickle.dumps(entry))
    script = """
import pickle, sys
from pathlib import Path
from shardtrail.sharding.write import build_shard
assert build_shard(pickle.loads(Path(sys.argv[1]).read_bytes())).written
print(sorted({"tensorflow", "keras", "prefect", "pandas", "pyarrow", "mlflow", "duckdb"} & set(sys.modules)))
"""
    ended = in_process(script, pickled)
    assert ended.stdout == "[]\n", ended.stderr


def test_the_plan_follows_its_parameters(built):
    """Other parameters give another plan; the shards it shares with the last one are kept, the others stay on disk."""
    before = set(built.folder.shards.glob("*.tfrecord"))
    text = built.folder.params.read_text()
    built.folder.params.write_text(text.replace("target_samples: 4", "target_samples: 6"))
    other = shard(open_job(built.folder.root))
    assert other.written > 0
    assert before < set(built.folder.shards.glob("*.tfrecord"))

    built.folder.params.write_text(text)
    again = shard(open_job(built.folder.root))
    assert (again.written, again.kept) == (0, again.planned)


def test_dataset_json_names_every_byte(finished):
    """md5, bytes and records in dataset.json are those of the files, and its digest covers them."""
    dataset = load_dataset(finished.folder.dataset)
    for one in dataset.shards:
        content = (finished.folder.shards / one.file).read_bytes()
        assert (hashlib.md5(content).hexdigest(), len(content)) == (one.md5, one.bytes)
        assert len(read_index(finished.folder.shards / one.index)) == one.records
    assert dataset.samples == json.loads(finished.folder.statistics.read_bytes())["books"]
    other = dataclasses.replace(dataset.shards[0], md5="0" * 32)
    assert dataclasses.replace(dataset, shards=(other, *dataset.shards[1:])).digest != dataset.digest


def test_hash_reads_what_its_stat_does_not_vouch_for(built):
    """A shard changed in place after it was written stops the dataset from being named; a touched one does not."""
    shards = sorted(built.folder.shards.glob("*.tfrecord"))
    os.utime(shards[0])
    before = built.folder.dataset.stat()
    hash_shards(built)
    assert built.folder.dataset.stat().st_mtime_ns == before.st_mtime_ns

    edit(shards[1], lambda content: content.__setitem__(-1, content[-1] ^ 1))
    with pytest.raises(StageFailed, match=shards[1].name):
        hash_shards(built)


def test_progress_is_told_over_shards(own):
    """Progress counts every planned shard, and its last line says where they lie."""
    said: list[tuple[str, object]] = []

    class Heard(Silent):
        def start(self, what: str, total: int | None, unit: str) -> None:
            said.append((what, total))

        def advance(self, done: int = 1, note: str = "") -> None:
            said.append(("advance", note))

        def finish(self, result: str) -> None:
            said.append(("finish", result))

    build = shard(dataclasses.replace(own, progress=Heard()))
    assert said[0] == ("shard", build.planned)
    assert len([what for what, _ in said if what == "advance"]) == build.planned
    assert "data/shards" in str(said[-1][1])


def test_a_night_sees_through_equal_sizes_and_times(tmp_path):
    """Two files swapped, and other bytes under the old size and time, rebuild the shards of their samples; new times
    and modes on all files rebuild nothing."""
    raw = write_numbers(tmp_path / "raw", {f"{n:02}.json": {"numbers": [10 + n]} for n in range(24)})
    for path in raw.iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))
    let_settle(raw)
    job = open_job(numbers_folder(tmp_path / "work", raw, shard={"target_samples": 4}))
    build_all(job)

    for path in raw.iterdir():
        path.chmod(0o600)
        os.utime(path)
    before = stamps(job.folder.shards)
    build, dataset = build_all(job)
    assert (build.written, stamps(job.folder.shards)) == (0, before)

    for path in raw.iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))
    (raw / "00.json").rename(raw / "other")
    (raw / "01.json").rename(raw / "00.json")
    (raw / "other").rename(raw / "01.json")
    edit(raw / "02.json", lambda content: content.__setitem__(slice(None), content.replace(b"12", b"99")), True)
    plan = read_table(job.folder.plan).to_pylist()
    hit = {row["shard"] for row in plan if row["sample_id"] in {"00", "01", "02"}}
    build, after = build_all(job)
    assert build.written == len(hit)
    assert {one.file.removesuffix(".tfrecord") for one in dataset.shards if one not in after.shards} >= hit
    values = {row["sample_id"]: row for row in read_table(job.folder.manifest).to_pylist()}
    assert values["00"]["files"][0]["md5"] == hashlib.md5((raw / "00.json").read_bytes()).hexdigest()
