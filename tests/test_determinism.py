"""What is built is a function of sources, plan and encoding: whoever builds it, wherever, with however many workers.

``SHARDTRAIL_PYTHONS`` names further interpreters that have the locked packages; ``make determinism`` makes their
environments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from builds import digests, in_process, new_folder

from shardtrail.job import Job

pytest_plugins = "build_fixtures"

BUILD = """
import dataclasses, os, sys
from pathlib import Path
os.umask(int(sys.argv[4], 8))
from builds import build_all, new_folder
from shardtrail.execution import open_mapper
job = new_folder(Path(sys.argv[1]), Path(sys.argv[2]))
with job.folder.params.open("a") as params:
    params.write(sys.argv[3])
from shardtrail.job import open_job
job = open_job(job.folder.root)
with open_mapper(job) as mapper:
    build_all(dataclasses.replace(job, mapper=mapper))
"""

WAYS: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "1 process": ("compute: {workers: 1}", "022", {"PYTHONHASHSEED": "0"}),
    "2 processes": ("compute: {workers: 2}", "077", {"PYTHONHASHSEED": "1", "TZ": "Pacific/Auckland"}),
    "4 processes": ("compute: {workers: 4}", "002", {"PYTHONHASHSEED": "2", "LC_ALL": "C"}),
    "dask": ("compute: {executor: dask, workers: 2}", "027", {"TZ": "America/St_Johns", "LC_ALL": "C.UTF-8"}),
}
"""Parameters, umask and surroundings of a build."""


def outcome(root: Path) -> dict[str, str]:
    """Name -> md5 of every shard, index and table of a build that is published or decides what is."""
    data = root / "data"
    kept = digests(data / "shards")
    return kept | {name: digests(data)[name] for name in ("dataset.json", "plan.parquet", "manifest.parquet")}


@pytest.fixture(scope="module")
def unbroken(finished: Job) -> dict[str, str]:
    """What one process without workers builds."""
    found = outcome(finished.folder.root)
    assert sum(name.endswith(".tfrecord") for name in found) >= 6
    return found


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_building_gives_the_same_bytes(
    way: str, raw: Path, unbroken: dict[str, str], tmp_path: Path
) -> None:
    """Executor, number of workers, hash seed, time zone, locale, umask and folder leave no trace in what is built."""
    params, umask, surroundings = WAYS[way]
    root = tmp_path / f"a folder, {way} ñ"
    built = in_process(BUILD, root, raw, params, umask, environment=surroundings, cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    assert outcome(root) == unbroken


@pytest.mark.parametrize("python", os.environ.get("SHARDTRAIL_PYTHONS", sys.executable).split())
def test_every_python_builds_the_same_bytes(python: str, raw: Path, unbroken: dict[str, str], tmp_path: Path) -> None:
    """``python -m shardtrail.stages`` of another Python gives the bytes of this one."""
    root = tmp_path / "work"
    new_folder(root, raw)
    here = {"PYTHONPATH": str(Path(__file__).parents[1])}
    for stage in ("download", "validate", "shard", "hash"):
        command = [python, "-m", "shardtrail.stages", stage]
        run = subprocess.run(command, cwd=root, capture_output=True, text=True, env=os.environ | here, check=False)
        assert run.returncode == 0, run.stderr
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.strip()
    print(json.dumps({"built by": version, "as by": sys.version.split()[0]}))
    assert outcome(root) == unbroken
