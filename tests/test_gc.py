"""gc removes what nothing needs any more, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builds import build_all, digests, new_folder, stamps, started

from shardtrail.config import set_params
from shardtrail.errors import ConfigError, LeaseHeld
from shardtrail.gc import Collected, collect
from shardtrail.job import Job, open_job
from shardtrail.sharding.lease import lease
from shardtrail.sharding.pin import pinned
from shardtrail.stages.hash import hash_shards
from shardtrail.stages.shard import shard
from shardtrail.training.identity import run_key

pytest_plugins = ["build_fixtures"]


def with_target(job: Job, samples: int) -> Job:
    set_params(job.folder.params, [f"shard.target_samples={samples}"])
    return open_job(job.folder.root)


@pytest.fixture
def rebuilt(built: Job) -> Job:
    """A folder that was built with shards of 4, then of 7 samples."""
    job = with_target(built, 7)
    shard(job)
    hash_shards(job)
    return job


def kinds(found: tuple[Collected, ...]) -> dict[str, Collected]:
    return {one.kind: one for one in found}


def test_retired_shards_and_their_receipts_go_and_the_next_build_has_nothing_to_do(rebuilt: Job) -> None:
    """Everything the plan names stays, same inodes; all of data/retired and its receipts go, to the byte as counted."""
    folder = rebuilt.folder
    before = stamps(folder.shards)
    retired = [path.stat() for path in folder.retired.iterdir()]
    receipts = len(list(folder.receipts.iterdir()))
    found = kinds(collect(rebuilt, keep_days=0))
    assert (found["retired shards"].files, found["retired shards"].bytes) == (
        len(retired),
        sum(stat.st_size for stat in retired),
    )
    assert found["retired shards"].freed == found["retired shards"].bytes
    assert not list(folder.retired.iterdir())
    assert found["receipts"].files == len(retired) // 2
    assert len(list(folder.receipts.iterdir())) == receipts - len(retired) // 2
    assert stamps(folder.shards) == before
    assert shard(rebuilt).written == 0


def test_what_was_retired_within_the_time_to_keep_stays(rebuilt: Job) -> None:
    """With the default nothing goes on the day it was retired; going back takes the shards back as they were."""
    before = stamps(rebuilt.folder.root)
    found = kinds(collect(rebuilt))
    assert {one.files for one in found.values()} == {0}
    assert found["retired shards"].kept == len(list(rebuilt.folder.retired.iterdir())) > 0
    after = stamps(rebuilt.folder.root)
    assert {name for name in before if not name.startswith(".shardtrail/lease")} <= after.keys()
    assert shard(with_target(rebuilt, 4)).written == 0


def test_age_counts_from_the_last_link(rebuilt: Job) -> None:
    """A shard that a training pinned just now is young, however long ago it was written."""
    folder = rebuilt.folder
    time.sleep(1.2)
    young = min(path for path in folder.retired.glob("*.tfrecord"))
    os.link(young, folder.root / "link")
    collect(rebuilt, keep_days=1.0 / 86400)
    assert {path.name for path in folder.retired.iterdir()} == {young.name, young.with_suffix(".index").name}


def test_a_dry_run_changes_nothing_and_tells_the_same(rebuilt: Job) -> None:
    """The figures of a dry run are those of the run after it, and every file is as before."""
    (rebuilt.folder.shards / ".x.tfrecord.1.tmp").write_bytes(b"half")
    before = stamps(rebuilt.folder.root)
    told = collect(rebuilt, keep_days=0, dry_run=True)
    assert stamps(rebuilt.folder.root) == before
    assert told == collect(rebuilt, keep_days=0)
    assert kinds(told)["temporary files"].files == 1
    assert not list(rebuilt.folder.shards.glob(".*.tmp"))
    assert {one.files for one in collect(rebuilt, keep_days=0)} == {0}


def test_a_reader_goes_on_reading_retired_shards(rebuilt: Job) -> None:
    """Links of a training that runs stay whole; gc says that their bytes were not freed. Those of a dead one go."""
    folder = rebuilt.folder
    from shardtrail.dataset import load_dataset

    back = with_target(rebuilt, 4)
    shard(back)
    hash_shards(back)
    with pinned(folder, load_dataset(folder.dataset)) as place:
        shard(with_target(back, 7))
        hash_shards(with_target(back, 7))
        before = digests(place)
        found = kinds(collect(with_target(back, 7), keep_days=0))
        assert found["retired shards"].bytes > 0 == found["retired shards"].freed
        assert digests(place) == before
        dead = place.with_name("dead-1")
        dead.mkdir()
        (dead / ".lock").touch()
        collect(with_target(back, 7), keep_days=0)
        assert place.exists()
        assert not dead.exists()


def test_shards_that_dataset_json_names_stay(built: Job) -> None:
    """While a new plan is only begun, readers take the shards of dataset.json: retired or not, they stay."""
    folder = built.folder
    folder.retired.mkdir()
    moved = sorted(folder.shards.glob("train-*"))[:2]
    for path in moved:
        path.rename(folder.retired / path.name)
    set_params(folder.params, ["shard.target_samples=7"])
    from shardtrail.stages.shard import update_plan

    update_plan(open_job(folder.root))
    collect(open_job(folder.root), keep_days=0)
    assert sorted(path.name for path in folder.retired.iterdir()) == [path.name for path in moved]


def test_what_it_does_not_know_stays(rebuilt: Job) -> None:
    """Files of the user's own, links and folders are left where they lie, even among retired shards."""
    folder = rebuilt.folder
    own = [
        folder.retired / "notes.txt",
        folder.retired / "my-shard.tfrecord",
        folder.receipts / "notes.txt",
        folder.shards / "extra.tfrecord",
    ]
    for path in own:
        path.write_text("mine")
    (folder.retired / "train-0123456789ab.index").symlink_to(own[0])
    (folder.retired / "train-0123456789ab.tfrecord").mkdir()
    collect(rebuilt, keep_days=0)
    assert all(path.read_text() == "mine" for path in own)
    assert len(list(folder.retired.iterdir())) == 4


def test_checkpoints_of_other_trainings_go(rebuilt: Job) -> None:
    """The training that dataset and parameters ask for keeps its checkpoint and its note."""
    from shardtrail.dataset import load_dataset

    folder = rebuilt.folder
    folder.checkpoints.mkdir(parents=True)
    key = run_key(load_dataset(folder.dataset), rebuilt.config.train)
    current = [key.checkpoint(folder), key.finished(folder)]
    others = [folder.checkpoints / f"0123456789abcdef-one-1{suffix}" for suffix in (".npz", ".json")]
    for path in (*current, *others):
        path.write_bytes(b"x" * 10)
    found = kinds(collect(rebuilt, keep_days=0))["checkpoints"]
    assert (found.files, found.bytes) == (2, 20)
    assert sorted(folder.checkpoints.iterdir()) == sorted(current)


@pytest.mark.parametrize("name", ["plan.parquet", "dataset.json"])
def test_without_a_readable_list_nothing_goes(rebuilt: Job, name: str) -> None:
    """A damaged plan or dataset.json does not make shards unneeded: it is named, and nothing is removed."""
    (rebuilt.folder.data / name).write_bytes(b"damaged")
    before = digests(rebuilt.folder.retired)
    with pytest.raises(ConfigError, match=name):
        collect(rebuilt, keep_days=0)
    assert digests(rebuilt.folder.retired) == before


def test_it_waits_for_nobody_and_disturbs_nobody(rebuilt: Job) -> None:
    """While a build holds the folder, gc is turned away with the builder's name; a dry run is not."""
    hold = """
import sys, time
from pathlib import Path
from shardtrail.folder import Folder
from shardtrail.sharding.lease import lease
with lease(Folder(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""
    with started(hold, rebuilt.folder.root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(LeaseHeld, match=str(process.pid)):
            collect(rebuilt, keep_days=0)
        assert kinds(collect(rebuilt, keep_days=0, dry_run=True))["retired shards"].files > 0
        process.kill()
    assert kinds(collect(rebuilt, keep_days=0))["retired shards"].files > 0


def test_one_that_was_killed_is_finished_by_the_next(rebuilt: Job) -> None:
    """Shards without index, indexes without shard and receipts without either go as well."""
    folder = rebuilt.folder
    shards = sorted(folder.retired.glob("*.tfrecord"))
    shards[0].unlink()
    shards[1].unlink()
    shards[1].with_suffix(".index").unlink()
    collect(rebuilt, keep_days=0)
    assert not list(folder.retired.iterdir())
    assert len(list(folder.receipts.iterdir())) == len(list(folder.shards.glob("*.tfrecord")))


def test_the_command_says_what_went(rebuilt: Job) -> None:
    """--json gives the kinds with files and bytes, the table the same for people; nonsense ends with 2."""

    def gc(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flows.cli", "-C", str(rebuilt.folder.root), "gc", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])

    told = gc("--keep", "0", "--dry-run")
    assert told.returncode == 0, told.stderr
    assert "would go" in told.stdout and "retired shards" in told.stdout
    done = json.loads(gc("--keep", "0", "--json").stdout)
    assert {one["kind"] for one in done["collected"]} == {
        "retired shards",
        "receipts",
        "checkpoints",
        "temporary files",
    }
    assert done["collected"][0]["files"] > 0
    assert gc("--keep", "-1").returncode == 2


def test_nothing_built_is_nothing_to_remove(raw: Path, tmp_path: Path) -> None:
    """In a folder that was never built, and in one that has nothing left over, gc finds nothing."""
    job = new_folder(tmp_path / "new", raw)
    assert {one.files for one in collect(job, keep_days=0)} == {0}
    build_all(job)
    with lease(job.folder):
        assert {one.files for one in collect(job, keep_days=0)} == {0}
