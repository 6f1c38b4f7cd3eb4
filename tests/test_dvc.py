"""What `run` records, `dvc repro` reproduces: at once where it is, from the raw files in a fresh clone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from shardtrail.config import load_config
from shardtrail.init import init
from shardtrail.sample_data import make_sample_data
from shardtrail.tracking.registry import all_versions
from shardtrail.tracking.store import open_store

DATA = ("data/manifest.parquet", "data/plan.parquet", "data/shards", "data/dataset.json")


def command(folder: Path, *arguments: str, status: int = 0) -> str:
    """Run a command of this environment in the folder; its output, both streams."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "DVC_NO_ANALYTICS": "1"}
    answer = subprocess.run(
        arguments,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert answer.returncode == status, answer.stdout
    return answer.stdout


def lock(folder: Path) -> dict[str, str]:
    """md5 by out, of the lock that is on disk."""
    stages = YAML(typ="safe").load(folder / "dvc.lock")["stages"]
    return {out["path"]: out["md5"] for stage in stages.values() for out in stage["outs"]}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder that was built twice with other parameters, the first of its commits of a model."""
    place = tmp_path_factory.mktemp("dvc")
    make_sample_data(place / "raw", samples=40, broken=0)
    folder = place / "work"
    init(folder, str(place / "raw"))
    settings = (
        "shard.target_samples=8",
        "train.epochs=1",
        "train.batch_size=8",
        f"tracking.uri=sqlite:///{place}/t.db",
    )
    command(folder, "shardtrail", "run", *(word for setting in settings for word in ("--set", setting)))
    first = command(folder, "git", "rev-parse", "HEAD").strip()
    command(folder, "shardtrail", "run", "--set", "shard.target_samples=5")
    return folder, first


def versions(folder: Path) -> int:
    """Model versions in the folder's registry."""
    with open_store(load_config(folder / "params.yaml").tracking.uri, folder) as store:
        return len(all_versions(store))


@pytest.mark.timeout(900)
def test_repro_after_run_has_nothing_to_do(recorded: tuple[Path, str]) -> None:
    """Right after `run`, `dvc repro` only compares the raw tree; lock and registry stay as they are."""
    folder, _ = recorded
    before, count = lock(folder), versions(folder)
    output = command(folder, "dvc", "repro")
    assert output.count("didn't change, skipping") == 5
    assert lock(folder) == before
    assert command(folder, "git", "status", "--porcelain") == ""
    assert versions(folder) == count == 2


@pytest.mark.timeout(900)
def test_a_fresh_clone_with_an_empty_cache_arrives_at_the_recorded_digests(
    recorded: tuple[Path, str], tmp_path: Path
) -> None:
    """`dvc repro` in a clone builds from the raw files alone and leaves the lock as it was committed."""
    folder, _ = recorded
    command(tmp_path, "git", "clone", "--quiet", str(folder), "clone")
    output = command(tmp_path / "clone", "dvc", "repro", "hash")
    assert "shard: " in output
    assert {name: lock(tmp_path / "clone")[name] for name in DATA} == {name: lock(folder)[name] for name in DATA}
    assert command(tmp_path / "clone", "git", "status", "--porcelain") == ""


@pytest.mark.timeout(900)
def test_an_earlier_commit_is_reproduced_and_registers_nothing_twice(
    recorded: tuple[Path, str], tmp_path: Path
) -> None:
    """With an earlier commit checked out, `dvc repro` gives that commit's digests and no further model version."""
    folder, first = recorded
    count = versions(folder)
    command(tmp_path, "git", "clone", "--quiet", str(folder), "clone")
    clone = tmp_path / "clone"
    command(clone, "git", "checkout", "--quiet", first)
    before = lock(clone)
    assert before["data/plan.parquet"] != lock(folder)["data/plan.parquet"]
    command(clone, "dvc", "repro")
    assert lock(clone) == before
    assert versions(folder) == count


@pytest.mark.timeout(900)
def test_repro_refuses_a_changed_raw_file_and_names_it(recorded: tuple[Path, str]) -> None:
    """Same size, one byte changed: `dvc repro` takes nothing in and says which file it is."""
    folder, _ = recorded
    changed = sorted((folder.parent / "raw").glob("BigEarthNet-v1.0/*/*_B03.tif"))[7]
    content = changed.read_bytes()
    changed.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        output = command(folder, "dvc", "repro", status=255)
        assert changed.name in output
    finally:
        changed.write_bytes(content)
    command(folder, "dvc", "repro")
