"""The flows as users run them: a served deployment on a real Prefect server; failures, Cancel and Retry, kills."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from shardtrail.dataset import load_dataset
from shardtrail.init import init
from shardtrail.sample_data import make_sample_data

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code that a test may edit."""
    place = tmp_path_factory.mktemp("code")
    for package in ("shardtrail", "tasks", "flows"):
        shutil.copytree(ROOT / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    return place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder over 60 patches, about ten shards."""
    make_sample_data(tmp_path / "raw", samples=60, broken=0)
    init(tmp_path / "work", str(tmp_path / "raw"))
    params = tmp_path / "work" / "params.yaml"
    params.write_text(params.read_text().replace("target_samples: null", "target_samples: 6   "))
    return tmp_path / "work"


@contextlib.contextmanager
def served(folder: Path, code: Path) -> Iterator[httpx.Client]:
    """``python -m flows.serve`` over the folder; its Prefect API."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    log = (folder.parent / "serve.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.serve", "-C", str(folder)],
        cwd=code,
        env=environment | {"PYTHONPATH": str(code), "PREFECT_RUNNER_POLL_FREQUENCY": "1"},
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        address = _await(lambda: _address(Path(log.name)), 120)
        with httpx.Client(base_url=f"{address}/api", timeout=30) as api:
            _await(lambda: _deployment(api, "rebuild"), 60)
            yield api
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def _address(log: Path) -> str:
    for line in log.read_text().splitlines():
        if line.startswith("Prefect: "):
            return line.split()[1]
    return ""


def _deployment(api: httpx.Client, name: str) -> str:
    answer = api.get(f"/deployments/name/{name}/{name}")
    return answer.json()["id"] if answer.status_code == 200 else ""


def _await(found, seconds: float):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(0.2)
    raise AssertionError(f"nothing after {seconds} s")


def start(api: httpx.Client, name: str) -> str:
    """Start a run of a deployment; its id."""
    path = f"/deployments/{_await(lambda: _deployment(api, name), 60)}/create_flow_run"

    def answer():
        # A busy server says 503 for a while.
        response = api.post(path, json={"state": {"type": "SCHEDULED"}})
        return response.json()["id"] if response.status_code < 300 else ""

    return _await(answer, 30)


def retry(api: httpx.Client, run: str) -> None:
    """What the UI's Retry button does."""
    state = {"type": "SCHEDULED", "name": "AwaitingRetry"}
    answer = api.post(f"/flow_runs/{run}/set_state", json={"state": state, "force": False})
    assert answer.json()["status"] == "ACCEPT", answer.text


def ended(api: httpx.Client, run: str, number: int = 1) -> dict:
    """The state in which the run's attempt ``number`` ended."""

    def state():
        flow_run = api.get(f"/flow_runs/{run}").json()
        over = flow_run["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        return flow_run["state"] if over and flow_run["run_count"] >= number else None

    return _await(state, 180)


def written(folder: Path) -> dict[str, int]:
    """Inode of every shard: a shard that is written again has another one."""
    return {path.name: path.stat().st_ino for path in (folder / "data" / "shards").glob("*.tfrecord")}


def a_file(raw: Path) -> Path:
    return sorted((raw / "BigEarthNet-v1.0").glob("*/*_B04.tif"))[30]


@pytest.mark.timeout(600)
def test_retry_writes_exactly_the_shard_that_failed(folder: Path, code: Path) -> None:
    """A raw file that vanishes after validation fails its shard by name; all others are built; the same run,
    retried through the API after the file is back and the writer was edited, writes that shard alone."""
    lost = a_file(folder.parent / "raw")
    kept = folder.parent / "kept.tif"
    with served(folder, code) as api:
        run = start(api, "rebuild")
        _await(lambda: (folder / "data" / "manifest.parquet").exists(), 120)
        lost.rename(kept)
        state = ended(api, run)
        assert state["type"] == "FAILED"
        assert lost.name in state["message"]
        receipts = [json.loads(path.read_text()) for path in (folder / ".shardtrail" / "receipts").iterdir()]
        failed = [receipt for receipt in receipts if receipt["status"] == "failed"]
        assert len(failed) == 1
        before = written(folder)
        assert len(before) == len(receipts) - 1 >= 5

        kept.rename(lost)
        with (code / "shardtrail" / "sharding" / "write.py").open("a") as source:
            source.write("# edited between failure and retry\n")
        retry(api, run)
        assert ended(api, run, 2)["type"] == "COMPLETED"
        after = written(folder)
        assert len(after.keys() - before.keys()) == 1
        assert {name: after[name] for name in before} == before

        again = start(api, "rebuild")
        assert ended(api, again)["type"] == "COMPLETED"
        assert written(folder) == after
    assert load_dataset(folder / "data" / "dataset.json").samples["accepted"] == 60


SLOW = """
import logging
import time
from numbers_layout import Numbers

class Slow(Numbers):
    def decode(self, files, contents):
        logging.getLogger("slow").warning("takes its time")
        time.sleep(0.2)
        return super().decode(files, contents)
"""

PARAMS = """
source: {source}
layout: slow_layout:Slow
validate: {{split: {{by: sample}}}}
shard: {{target_samples: 4}}
compute: {{executor: {executor}, workers: 2}}
"""


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A working folder of about 24 shards, each of which takes a second to write."""
    raw, root = tmp_path / "raw", tmp_path / "work"
    raw.mkdir()
    root.mkdir()
    for number in range(96):
        (raw / f"{number:03d}.json").write_text(json.dumps({"numbers": [number]}))
    shutil.copy(Path(__file__).parent / "numbers_layout.py", root)
    (root / "slow_layout.py").write_text(SLOW)
    return root


def use(executor: str, folder: Path) -> None:
    """Have the folder's next run use that executor."""
    (folder / "params.yaml").write_text(PARAMS.format(source=folder.parent / "raw", executor=executor))


def running(folder: Path) -> list[psutil.Process]:
    """The process of a run and all below it, once it has written a shard more: the run itself first."""
    before = len(written(folder))
    _await(lambda: len(written(folder)) > before, 120)
    runs = [
        process
        for process in psutil.Process().children(recursive=True)
        if "prefect.engine" in process.cmdline() or "prefect.flow_engine" in process.cmdline()
    ]
    assert len(runs) == 1
    return [*runs, *runs[0].children(recursive=True)]


def assert_gone(processes: list[psutil.Process]) -> None:
    assert len(processes) >= 3
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert alive == []


def messages(api: httpx.Client, run: str) -> list[str]:
    """The run's log, as the UI shows it."""
    query = {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200}
    return [line["message"] for line in api.post("/logs/filter", json=query).raise_for_status().json()]


@pytest.mark.timeout(600)
def test_a_run_cancelled_or_killed_goes_on_where_it_stopped(slow: Path, code: Path) -> None:
    """With either executor, Cancel ends the run and all its processes in mid-shard; so does kill -9 of the run, which
    then counts as crashed; a worker killed in mid-shard fails nothing. What was written is never written again, and
    what workers log stands in the run's log with the shard's address."""
    use("process", slow)
    kept = [written(slow)]
    with served(slow, code) as api:
        for executor in ("process", "dask"):
            use(executor, slow)
            run = start(api, "rebuild")
            family = running(slow)
            api.post(f"/flow_runs/{run}/set_state", json={"state": {"type": "CANCELLING"}}).raise_for_status()
            assert ended(api, run)["type"] == "CANCELLED"
            assert_gone(family)
            kept.append(written(slow))

        run = start(api, "rebuild")
        family = running(slow)
        family[0].send_signal(signal.SIGKILL)
        assert ended(api, run)["type"] == "CRASHED"
        assert_gone(family)
        kept.append(written(slow))

        use("process", slow)
        retry(api, run)
        family = running(slow)
        next(process for process in family if "spawn_main" in " ".join(process.cmdline())).kill()
        state = ended(api, run, 2)
        assert state["type"] == "COMPLETED", state["message"]
        assert_gone(family)
        line = _await(lambda: next((one for one in messages(api, run) if "takes its time" in one), ""), 30)
    assert re.fullmatch(r"(train|validation|test)-\d+: takes its time( \(\d+ times\))?", line)
    kept.append(written(slow))
    assert all(before.items() < after.items() for before, after in itertools.pairwise(kept))
    assert len(kept[-1]) == len(load_dataset(slow / "data" / "dataset.json").shards)
    assert list(slow.rglob("*.tmp")) == []
