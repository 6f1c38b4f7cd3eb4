"""A build that is killed again and again arrives where an unbroken one does.

``SHARDTRAIL_KILLS`` sets how many (3 by default; ``make kills`` takes 30).
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
from pathlib import Path

import psutil
import pytest

from shardtrail.dataset import load_dataset
from shardtrail.init import init
from shardtrail.sample_data import make_sample_data

KILLS = int(os.environ.get("SHARDTRAIL_KILLS", "3"))
COMMAND = [sys.executable, "-m", "flows.cli", "run", "--until", "hash"]


def start(folder: Path) -> subprocess.Popen[str]:
    """The command in a process group of its own."""
    return subprocess.Popen(
        COMMAND, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output


def recorded_digest(folder: Path) -> str:
    """The digest of the dataset.json that the committed lock names."""
    lock = subprocess.run(["git", "show", "HEAD:dvc.lock"], cwd=folder, capture_output=True, text=True, check=True)
    md5 = subprocess.run(["md5sum", "data/dataset.json"], cwd=folder, capture_output=True, text=True, check=True)
    assert md5.stdout.split()[0] in lock.stdout
    return load_dataset(folder / "data" / "dataset.json").digest


def strays(folder: Path) -> list[str]:
    """Processes that still work in the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(folder):
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return found


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new working folder over a small archive, its Prefect database made."""
    place = tmp_path_factory.mktemp("kills")
    make_sample_data(place / "raw", samples=160)
    folder = place / "template"
    init(folder, str(place / "raw"))
    finish(subprocess.Popen([*COMMAND[:-1], "download"], cwd=folder, stdout=subprocess.PIPE, text=True))
    shutil.rmtree(folder / "data")
    params = folder / "params.yaml"
    params.write_text(params.read_text().replace("target_samples: null", "target_samples: 10   "))
    return folder


@pytest.mark.timeout(3600)
def test_a_killed_build_goes_on_to_the_same_digest(template: Path, tmp_path: Path) -> None:
    """Killed with -9 at any moment, recording included, the same command then builds and records the same bytes."""
    began = time.monotonic()
    shutil.copytree(template, tmp_path / "whole", symlinks=True)
    finish(start(tmp_path / "whole"))
    whole = time.monotonic() - began
    digest = recorded_digest(tmp_path / "whole")
    draw = random.Random(20261130)
    moments = []
    for number in range(KILLS):
        folder = tmp_path / f"killed-{number}"
        shutil.copytree(template, folder, symlinks=True)
        moment = draw.uniform(0.3, whole)
        process = start(folder)
        time.sleep(moment)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        shards = sorted((folder / "data" / "shards").glob("*.tfrecord"))
        moments.append((round(moment, 1), len(shards)))
        time.sleep(1.5)
        assert strays(folder) == []
        finish(start(folder))
        assert recorded_digest(folder) == digest, moments
        assert not list(folder.rglob("*.tmp"))
        shutil.rmtree(folder)
    print(json.dumps({"unbroken seconds": round(whole, 1), "killed after (s, shards on disk)": moments}))
