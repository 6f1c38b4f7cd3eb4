"""Full disks, signals, builders that come late or twice: nothing is lost, the next build ends with the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from builds import build_all, digests, in_process, leftovers, new_folder, stamps, started

from shardtrail.job import Job
from shardtrail.manifest import read_table
from shardtrail.sharding.entries import Entries, planned_shards, read_shards
from shardtrail.sharding.verify import verify
from shardtrail.stages.hash import hash_shards
from shardtrail.stages.shard import shard

pytest_plugins = ["build_fixtures"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="has Linux's kernel answer with faults")

LITTLE_ROOM = """
import json, os, sys
from pathlib import Path
import kernel_faults
folder, how = Path(sys.argv[1]), sys.argv[2]
if how == "small disk":
    try:
        kernel_faults.mount_small_disk(folder, 32 * 2**20)
    except PermissionError as error:
        print(json.dumps(f"mounts are not permitted here: {error}"))
        sys.exit()
from builds import build_all, digests, leftovers, new_folder
from shardtrail.errors import PipelineError
from shardtrail.stages.shard import status
job = new_folder(folder, Path(sys.argv[3]))
ballast = folder / "ballast"

def leave(room):
    if how == "largest file":
        kernel_faults.limit_files(room)
        return
    ballast.unlink(missing_ok=True)
    if room is not None:
        disk = os.statvfs(folder)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - room)

told = []
for room in map(int, sys.argv[4:]):
    leave(room)
    try:
        build_all(job)
        error = ""
    except (PipelineError, OSError) as fault:
        error = str(fault)
    found = status(job)
    there = {path.name: path.stat().st_ino for path in job.folder.shards.glob("*")}
    told.append({"room": room, "error": error, "done": found.done, "there": there, "left": leftovers(job),
                 "dataset": job.folder.dataset.exists()})
leave(None)
build_all(job)
there = {path.name: path.stat().st_ino for path in job.folder.shards.glob("*")}
print(json.dumps({"told": told, "there": there, "digests": digests(job.folder.data)}))
"""


@pytest.mark.parametrize("how", ["small disk", "largest file"])
def test_whatever_room_is_left_the_build_says_so_and_goes_on(how, raw, finished, tmp_path):
    """A build on a disk with room for none, some or most of its files ends with an error that names what could not be
    written and why, leaves nothing half-written, and keeps what it had done; with room again it ends with the bytes of
    an unbroken one."""
    rooms = [0, 3, 8, 16, 32, 64, 100, 300, 500, *((1000, 2500) if how == "small disk" else ())]
    ended = in_process(LITTLE_ROOM, tmp_path, how, raw, *(room * 1024 for room in rooms))
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    if isinstance(found, str):
        pytest.skip(found)  # the largest file is limited everywhere

    reasons = (
        ("No space left on device", "disk is full") if how == "small disk" else ("File too large", "disk I/O error")
    )
    for told in found["told"]:
        assert any(reason in told["error"] for reason in reasons), told
        assert str(tmp_path) in told["error"], told
        assert told["left"] == [], told
        assert not told["dataset"], told
        assert len(told["there"]) == 2 * told["done"] or "shard: " not in told["error"], told
        assert told["there"].items() <= found["there"].items(), told
    assert "train-0000" in found["told"][-1]["error"]
    assert found["told"][-1]["done"] > 0
    assert found["digests"] == digests(finished.folder.data)


FSYNC_FAILS = """
import sys
from pathlib import Path
import kernel_faults
from builds import download, hash_shards, shard, validate
from shardtrail.stages.shard import update_plan
from shardtrail.errors import PipelineError
from shardtrail.job import open_job
job = open_job(Path(sys.argv[1]))
for stage in (download, validate, shard, hash_shards):
    if stage is shard:
        update_plan(job)
    if stage.__name__ == sys.argv[2]:
        kernel_faults.fail_fsync()
    try:
        stage(job)
    except (PipelineError, OSError) as error:
        sys.exit(f"{stage.__name__} {type(error).__name__}: {error}")
"""


@pytest.mark.parametrize("stage", ["download", "validate", "shard", "hash_shards"])
def test_space_that_turns_out_to_lack_at_fsync(stage, raw, finished, tmp_path):
    """Where the disk says only at ``fsync`` that it is full, nothing gets its final name or a receipt."""
    job = new_folder(tmp_path, raw)
    ended = in_process(FSYNC_FAILS, tmp_path, stage)

    assert ended.returncode == 1
    assert ended.stderr.startswith(f"{stage} "), ended.stderr
    assert "No space left on device" in ended.stderr
    assert str(tmp_path) in ended.stderr
    assert leftovers(job) == []
    assert not job.folder.dataset.exists()
    if stage == "shard":
        assert list(job.folder.shards.glob("*")) == []
        assert ended.stderr.count(".tfrecord: it cannot be written") == len(read_shards(job.folder.plan))
    build_all(job)
    assert digests(job.folder.data) == digests(finished.folder.data)


SIGNALLED = """
import os, sys
from dataclasses import replace
from pathlib import Path
from builds import build_all
from shardtrail.execution import local_mapper
from shardtrail.job import open_job
from shardtrail.progress import Silent
class Signaller(Silent):
    done = 0
    def start(self, what, total, unit):
        self.what = what
    def advance(self, done=1, note=""):
        self.done += self.what == "shard"
        if self.done == 3:
            os.kill(os.getpid(), int(sys.argv[2]))
job = open_job(Path(sys.argv[1]))
with local_mapper(2) as mapper:
    build_all(replace(job, mapper=mapper, progress=Signaller()))
"""


BUILD = """
import sys
from pathlib import Path
from builds import build_all
from shardtrail.job import open_job
build_all(open_job(Path(sys.argv[1])))
"""

HALT = """
import os, signal, sys
def halt(event, arguments, opened=[]):
    if event == "open" and str(arguments[0]).endswith("_B08.tif") and list(shards.glob(".*.tmp")):
        opened.append(arguments[0])
        if len(opened) == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
sys.addaudithook(halt)
"""
"""Stop in the middle of a shard."""

HALTED = f"""
import sys
from pathlib import Path
shards = Path(sys.argv[1]) / "data/shards"
{HALT}
{BUILD}
"""

LATE = f"""
import pickle, sys
from pathlib import Path
from shardtrail.sharding.write import write_shard
entry = pickle.loads(Path(sys.argv[1]).read_bytes())
shards = entry.check.shards
{HALT}
write_shard(entry)
"""


def halted(script: str, argument: Path) -> subprocess.Popen[str]:
    """A process that stopped in mid-shard."""
    process = started(script, argument)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return process


def end(process: subprocess.Popen[str]) -> None:
    """Have it go on to its end, which must be a good one."""
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors


@contextlib.contextmanager
def files_opened(below: Path) -> Iterator[set[str]]:
    """Relative paths of the files of a tree that this process opens."""
    opened: set[str] = set()
    listening = True

    def listen(event: str, arguments: tuple[object, ...]) -> None:
        if listening and event == "open" and str(arguments[0]).startswith(f"{below}/"):
            opened.add(str(Path(str(arguments[0])).relative_to(below)))

    sys.addaudithook(listen)
    yield opened
    listening = False


def in_shards(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every shard and index."""
    return {name: stamp for name, stamp in stamps(folder / "data/shards").items() if not name.startswith(".")}


def sources(job: Job, shards: set[str]) -> set[str]:
    """Raw images of the samples of these shards."""
    plan, manifest = read_table(job.folder.plan).to_pylist(), read_table(job.folder.manifest).to_pylist()
    samples = {row["sample_id"] for row in plan if row["shard"] in shards}
    return {
        file["path"]
        for row in manifest
        if row["sample_id"] in samples
        for file in row["files"]
        if file["path"].endswith(".tif")
    }


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_build_that_is_asked_to_end_goes_on_later(by, raw, tmp_path):
    """Ctrl-C or SIGTERM after the third of many shards: no temporary file or folder stays, what was done is kept, and
    the second run does the rest, for which it opens no raw file of a finished shard."""
    job, whole = (new_folder(tmp_path / name, raw, samples=1) for name in ("ended", "whole"))
    build_all(whole)
    ended = in_process(SIGNALLED, job.folder.root, int(by))
    assert ended.returncode == -by or "KeyboardInterrupt" in ended.stderr, ended.stderr
    before = in_shards(job.folder.root)
    planned = {one.name for one in read_shards(job.folder.plan)}
    missing = {name for name in planned if f"{name}.tfrecord" not in before}
    # The index comes first: one whose shard had not come when the end came is of no shard that is done.
    done = {name: stamp for name, stamp in before.items() if Path(name).stem not in missing}
    assert 3 <= len(planned - missing) < len(planned)

    with files_opened(job.raw) as opened:
        build = shard(job)

    assert (build.written, build.kept) == (len(missing), len(planned - missing))
    assert opened == sources(job, missing)
    assert done.items() <= in_shards(job.folder.root).items()
    hash_shards(job)
    assert leftovers(job) == []
    assert digests(job.folder.data) == digests(whole.folder.data)


def test_parameters_changed_in_mid_build_are_never_mixed(own, raw, tmp_path):
    """Half built, then built on with another target: the set is that of a folder built so from the start."""
    shard(own, only=["train-00000", "train-00001"])
    changed, fresh = new_folder(own.folder.root, own.raw, samples=7), new_folder(tmp_path / "fresh", raw, samples=7)
    shard(changed)
    hash_shards(changed)
    build_all(fresh)
    assert digests(changed.folder.shards) == digests(fresh.folder.shards)
    assert hash_shards(changed).digest == hash_shards(fresh).digest


def test_the_second_of_two_builders_is_turned_away(own, finished):
    """While one builds, another ends at once with the pid and host of the first, and does no harm to what it makes."""
    first = halted(HALTED, own.folder.root)
    second = in_process(BUILD, own.folder.root)
    end(first)

    assert second.returncode == 1
    assert f"is being built by process {first.pid} on {os.uname().nodename} since" in second.stderr
    assert digests(own.folder.data) == digests(finished.folder.data)


def test_a_dead_builder_is_taken_over_at_once(own, finished):
    """A builder killed in mid-shard holds nothing: the next one builds, and removes what it left."""
    first = halted(HALTED, own.folder.root)
    first.kill()
    first.communicate()
    assert leftovers(own) != []

    build_all(own)

    assert digests(own.folder.data) == digests(finished.folder.data)
    assert leftovers(own) == []


def test_a_late_first_attempt_does_no_harm(own, finished):
    """A worker that outlived its run goes on with a shard that the retry has written meanwhile: the same bytes once
    more, its receipt with them, and no temporary file."""
    shard(own, only=["train-00001"])
    plan = read_table(own.folder.plan)
    entries = Entries(own, plan, read_table(own.folder.manifest), planned_shards(plan), lambda paths: {})
    pickled = own.folder.root / "entry.pickle"
    pickled.write_bytes(pickle.dumps(entries[0][1]))
    late = halted(LATE, pickled)

    assert shard(own).complete
    before = in_shards(own.folder.root)
    end(late)

    again = in_shards(own.folder.root)
    assert {name.split(".")[0] for name in again if again[name] != before[name]} == {entries[0][1].check.name}
    assert shard(own).written == 0
    assert verify(own, deep=True).faults == ()
    hash_shards(own)
    assert leftovers(own) == []
    assert digests(own.folder.data) == digests(finished.folder.data)
