"""A build that is killed again and again arrives where an unbroken one does.

``SHARDTRAIL_KILLS`` sets how many kills: nine in ten of the engine, the others of the command with its Prefect server.
25 by default; ``make kills`` takes 500.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from builds import leftovers, new_folder, started

from shardtrail.dataset import load_dataset
from shardtrail.init import init
from shardtrail.job import open_job
from shardtrail.sample_data import make_sample_data

KILLS = int(os.environ.get("SHARDTRAIL_KILLS", "25"))
WORKERS = 2
ENGINE = {"process, first": "process", "process, second": "process", "process, third": "process", "dask": "dask"}
"""Rounds of the engine, with their executor."""

BUILD = """
import dataclasses, sys
from pathlib import Path
from builds import build_all
from shardtrail.execution import open_mapper
from shardtrail.job import open_job
job = open_job(Path(sys.argv[1]))
with open_mapper(job) as mapper:
    build_all(dataclasses.replace(job, mapper=mapper))
"""

COMMAND = [sys.executable, "-m", "flows.cli", "run", "--until", "hash"]


def build(folder: Path) -> subprocess.Popen[str]:
    """The stages without Prefect."""
    return started(BUILD, folder, cwd=folder, session=True)


def command(folder: Path) -> subprocess.Popen[str]:
    """``shardtrail run``."""
    return subprocess.Popen(
        COMMAND, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen[str]) -> None:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, f"{output}\n{errors}"


def strays(folder: Path) -> list[psutil.Process]:
    """Processes that still work in the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(folder):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def strike(process: subprocess.Popen[str], draw: random.Random) -> str:
    """``kill -9`` of the whole group, of the parent alone, or of one of its descendants; says which it was."""
    target = draw.choice(("group", "parent", "descendant"))
    if process.poll() is not None:
        return "nothing"
    if target == "group":
        os.killpg(process.pid, signal.SIGKILL)
    elif target == "parent":
        process.kill()
    else:
        descendants = psutil.Process(process.pid).children(recursive=True)
        if not descendants:
            return "nothing"
        draw.choice(descendants).kill()
    return target


def phase(folder: Path) -> str:
    """What the build was about, by what is on disk."""
    data = folder / "data"
    if not (data / "manifest.parquet").exists():
        return "validate"
    if not (data / "plan.parquet").exists():
        return "plan"
    if (data / "dataset.json").exists():
        return "hash"
    return "shard"


def done_shards(folder: Path) -> dict[str, int]:
    """Name -> inode of each shard that has its final name, be its receipt written or not."""
    return {path.name: path.stat().st_ino for path in (folder / "data" / "shards").glob("[!.]*.tfrecord")}


def killed_and_built_again(
    start: Callable[[Path], subprocess.Popen[str]],
    template: Path,
    place: Path,
    kills: int,
    seed: int,
    same: Callable[[Path], None],
) -> None:
    """Kill ``kills`` builds, each in a folder of its own, and start each again."""
    shutil.copytree(template, place / "whole", symlinks=True)
    began = time.monotonic()
    finish(start(place / "whole"))
    whole = time.monotonic() - began
    draw = random.Random(seed)
    told: Counter[str] = Counter()
    while (number := told.total()) < kills:
        folder = place / f"killed-{number}"
        shutil.copytree(template, folder, symlinks=True)
        process = start(folder)
        time.sleep(draw.uniform(0.1, whole))
        at = phase(folder)
        target = strike(process, draw)
        process.communicate(timeout=300)
        if target == "nothing":  # it had ended, or had no descendant yet: this was no kill
            shutil.rmtree(folder)
            continue
        deadline = time.monotonic() + 20
        while (left := strays(folder)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == [], (number, target)
        told[f"{at}, {target}"] += 1
        done = done_shards(folder)
        # Of what was being written, each worker loses one shard at most; what was done keeps its file.
        assert len(list((folder / "data" / "shards").glob("*.tfrecord.*.tmp"))) <= WORKERS + 1, (number, at, target)
        finish(start(folder))
        same(folder)
        again = done_shards(folder)
        assert {name: again[name] for name in done} == done, (number, at, target)
        assert leftovers(open_job(folder)) == []
        assert strays(folder) == []
        shutil.rmtree(folder)
    print(json.dumps({"unbroken seconds": round(whole, 1), "kills by phase and target": dict(sorted(told.items()))}))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("which", ENGINE)
def test_a_killed_build_goes_on_to_the_same_digest(which: str, tmp_path: Path) -> None:
    """Any process of a build killed with -9 at any moment: the next build keeps what was done and gives the digest."""
    make_sample_data(tmp_path / "raw", samples=48, broken=0)
    job = new_folder(tmp_path / "template", tmp_path / "raw")
    with job.folder.params.open("a") as params:
        params.write(f"compute: {{executor: {ENGINE[which]}, workers: {WORKERS}}}\n")
    digests = set()

    def same(folder: Path) -> None:
        digests.add(load_dataset(folder / "data" / "dataset.json").digest)
        assert len(digests) == 1

    number = list(ENGINE).index(which)
    kills = KILLS * 9 // 10 // len(ENGINE) + (number < KILLS * 9 // 10 % len(ENGINE))
    killed_and_built_again(build, job.folder.root, tmp_path, kills, number, same)


@pytest.mark.timeout(3600)
def test_a_killed_command_goes_on_to_the_same_digest(tmp_path: Path) -> None:
    """The command with its Prefect server, killed at any moment, recording included: the next builds and records the
    same bytes."""
    make_sample_data(tmp_path / "raw", samples=160)
    template = tmp_path / "template"
    init(template, str(tmp_path / "raw"))
    finish(subprocess.Popen([*COMMAND[:-1], "download"], cwd=template, stdout=subprocess.PIPE, text=True))
    shutil.rmtree(template / "data")
    params = template / "params.yaml"
    params.write_text(params.read_text().replace("target_samples: null", "target_samples: 10   "))
    digests = set()

    def same(folder: Path) -> None:
        lock = subprocess.run(["git", "show", "HEAD:dvc.lock"], cwd=folder, capture_output=True, text=True, check=True)
        md5 = subprocess.run(["md5sum", "data/dataset.json"], cwd=folder, capture_output=True, text=True, check=True)
        assert md5.stdout.split()[0] in lock.stdout
        digests.add(load_dataset(folder / "data" / "dataset.json").digest)
        assert len(digests) == 1

    killed_and_built_again(command, template, tmp_path, KILLS - KILLS * 9 // 10, 20261130, same)


def test_a_command_whose_server_dies_ends_at_once_and_says_so(tmp_path: Path) -> None:
    """It names its server and the server's log, leaves no process behind, and does not wait for Prefect to give up."""
    make_sample_data(tmp_path / "raw", samples=160)
    folder = tmp_path / "work"
    init(folder, str(tmp_path / "raw"))
    process = command(folder)
    inventory = folder / "data" / "inventory.parquet"
    while not inventory.exists():
        assert process.poll() is None
        time.sleep(0.05)
    (server,) = (one for one in psutil.Process(process.pid).children() if "flows.watched_server" in one.cmdline())
    server.kill()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert "Prefect server of this command died (SIGKILL" in output and "prefect-server.log" in output
    assert psutil.wait_procs(strays(folder), timeout=20)[1] == []
