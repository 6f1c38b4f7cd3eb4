"""``python -m flows.serve`` as a process, and its Prefect API."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

T = TypeVar("T")
_OVER = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def wait_for(look: Callable[[], T], seconds: float) -> T:
    """What ``look`` finds, as soon as it finds something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise SystemExit(f"nothing after {seconds:.0f} s")


class Served:
    """The deployments of a working folder."""

    def __init__(self, process: subprocess.Popen[bytes], api: httpx.Client) -> None:
        self._process = process
        self._api = api

    def start(self) -> str:
        """Start a run of ``rebuild``; its id."""
        answer = self._api.get("/deployments/name/rebuild/rebuild").raise_for_status()
        path = f"/deployments/{answer.json()['id']}/create_flow_run"
        run: str = self._api.post(path, json={"state": {"type": "SCHEDULED"}}).raise_for_status().json()["id"]
        return run

    def retry(self, run: str) -> None:
        """What the Retry button does."""
        state = {"type": "SCHEDULED", "name": "AwaitingRetry"}
        answer = self._api.post(f"/flow_runs/{run}/set_state", json={"state": state, "force": False})
        if answer.raise_for_status().json()["status"] != "ACCEPT":
            raise SystemExit(answer.text)

    def kill(self) -> None:
        """``kill -9`` of the run's own process."""
        runs = psutil.Process(self._process.pid).children(recursive=True)
        flow = [one for one in runs if "prefect.engine" in one.cmdline() or "prefect.flow_engine" in one.cmdline()]
        if len(flow) != 1:
            raise SystemExit(f"which is the run? {[one.cmdline() for one in runs]}")
        flow[0].kill()

    def ended(self, run: str, attempt: int, seconds: float = 3600) -> tuple[str, str]:
        """Type and message of the state in which an attempt ended."""

        def over() -> tuple[str, str] | None:
            found = self._api.get(f"/flow_runs/{run}").raise_for_status().json()
            state = found["state"]
            if state["type"] in _OVER and found["run_count"] >= attempt:
                return state["type"], state["message"] or ""
            return None

        state = wait_for(over, seconds)
        assert state is not None
        return state

    def task_runs(self, run: str) -> list[dict[str, Any]]:
        """Every task run that the server has recorded, when its number stood still for five seconds."""
        found: list[dict[str, Any]] = []
        while True:
            before = len(found)
            found = self._read_task_runs(run)
            if found and len(found) == before:
                return found
            time.sleep(5)

    def _read_task_runs(self, run: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            query = {"flow_runs": {"id": {"any_": [run]}}, "limit": 200, "offset": len(found), "sort": "ID_DESC"}
            page = self._api.post("/task_runs/filter", json=query).raise_for_status().json()
            if not page:
                return found
            found += page


@contextlib.contextmanager
def served(folder: Path, code: Path) -> Iterator[Served]:
    """Serve a working folder with the code of another checkout, on a Prefect server of its own."""
    log = folder.parent / f"{folder.name}.serve.log"
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.serve", "-C", str(folder)],
            cwd=code,
            env=variables | {"PYTHONPATH": str(code)},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        address = wait_for(lambda: _address(log), 120)
        with httpx.Client(base_url=f"{address}/api", timeout=60) as api:
            wait_for(lambda: api.get("/deployments/name/rebuild/rebuild").is_success, 60)
            yield Served(process, api)
    finally:
        process.terminate()
        process.wait(60)


def _address(log: Path) -> str:
    lines = (line.split() for line in log.read_text().splitlines())
    return next((words[1] for words in lines if words[:1] == ["Prefect:"]), "")


def by_stage(runs: list[dict[str, Any]]) -> dict[str, int]:
    """Task runs of each stage."""
    return dict(Counter(run["name"].partition(" ")[0] for run in runs))
