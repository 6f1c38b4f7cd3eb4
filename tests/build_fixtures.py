"""Fixtures of built working folders; test files ask for them with ``pytest_plugins``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builds import SAMPLES, build_all, copied, new_folder
from working import let_settle

from shardtrail.job import Job
from shardtrail.sample_data import make_sample_data


@pytest.fixture(scope="session")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of patches in BigEarthNet's own format, all good."""
    root = tmp_path_factory.mktemp("raw")
    make_sample_data(root, samples=SAMPLES, broken=0, workers=1)
    let_settle(root)
    return root


@pytest.fixture(scope="session")
def finished(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A working folder after a whole build. Read-only: tests that change something take ``built`` or ``own``."""
    job = new_folder(tmp_path_factory.mktemp("finished"), raw)
    build_all(job)
    return job


@pytest.fixture
def built(finished: Job, tmp_path: Path) -> Job:
    """A finished working folder of the test's own."""
    return copied(finished, tmp_path / "work")


@pytest.fixture
def own(finished: Job, raw: Path, tmp_path: Path) -> Job:
    """A validated working folder without shards, on raw data of the test's own."""
    shutil.copytree(raw, tmp_path / "raw")
    job = new_folder(tmp_path / "own", tmp_path / "raw")
    without = shutil.ignore_patterns("shards", "view", "dataset.json")
    shutil.copytree(finished.folder.data, job.folder.data, ignore=without)
    return job
