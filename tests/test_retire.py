"""What lies in data/shards/ does not depend on earlier builds, and a reader keeps what it reads."""

from __future__ import annotations

from pathlib import Path

from builds import build_all, digests, new_folder, stamps

from shardtrail.config import set_params
from shardtrail.dataset import load_dataset
from shardtrail.job import Job, open_job
from shardtrail.sharding.pin import pinned
from shardtrail.stages.hash import hash_shards
from shardtrail.stages.shard import shard

pytest_plugins = ["build_fixtures"]


def with_target(job: Job, samples: int) -> Job:
    set_params(job.folder.params, [f"shard.target_samples={samples}"])
    return open_job(job.folder.root)


def test_the_shards_folder_holds_the_plan_and_nothing_else(built: Job, raw: Path, tmp_path: Path) -> None:
    """After a change of the target, data/shards/ equals that of a folder built so from the start."""
    changed = with_target(built, 7)
    shard(changed)
    hash_shards(changed)
    fresh = with_target(new_folder(tmp_path / "fresh", raw), 7)
    build_all(fresh)
    assert digests(changed.folder.shards) == digests(fresh.folder.shards)


def test_going_back_takes_the_retired_shards_and_writes_none(built: Job) -> None:
    """Parameters changed and changed back: the first shards return as they were, the same inodes and times."""
    before = stamps(built.folder.shards)
    dataset = load_dataset(built.folder.dataset)
    shard(with_target(built, 7))
    back = shard(with_target(built, 4))
    assert back.written == 0
    assert stamps(built.folder.shards) == before
    assert hash_shards(with_target(built, 4)).digest == dataset.digest


def test_a_reader_keeps_its_shards_while_they_retire(built: Job) -> None:
    """Links held by a reader stay readable, byte for byte, while a rebuild replaces the plan; then they go."""
    dataset = load_dataset(built.folder.dataset)
    before = digests(built.folder.shards)
    with pinned(built.folder, dataset) as place:
        shard(with_target(built, 7))
        assert digests(place).items() >= before.items()
        assert digests(built.folder.shards) != before
    assert not place.exists()
