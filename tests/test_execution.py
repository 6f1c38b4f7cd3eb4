"""Workers: light, replaced when they die, gone with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import worker_units
from worker_units import Task

from shardtrail.execution import Outcome, process_pool, run_units
from shardtrail.folder import Folder


def run(tasks: list[Task]) -> dict[str, str]:
    with process_pool(2) as pool:
        outcomes = list(run_units("test", worker_units.work, [(str(n), task) for n, task in enumerate(tasks)], pool))
    assert len(outcomes) == len(tasks)
    return {outcome.label: outcome.error for outcome in outcomes if outcome.error}


def test_a_unit_that_raises_fails_alone() -> None:
    """An exception that would not even pickle becomes the text of one outcome."""
    failed = run([Task("work"), Task("raise"), Task("work")])
    assert failed == {"1": "Unpicklable: no"}


def test_a_unit_that_kills_its_worker_fails_alone() -> None:
    """One of forty units ends its process each time: it alone is named, the others are done."""
    failed = run([Task("die") if n == 11 else Task("work") for n in range(40)])
    assert list(failed) == ["11"]
    assert "died" in failed["11"]


def test_a_worker_killed_once_costs_nothing(tmp_path: Path) -> None:
    """A worker that dies from outside is replaced and its unit done again."""
    assert run([Task("die once", str(tmp_path / "mark"))] + [Task("work")] * 20) == {}


def test_workers_load_nothing_heavy() -> None:
    """A worker has neither TensorFlow nor Prefect nor pandas nor pyarrow, whatever its parent loaded."""
    import pandas  # noqa: F401
    import pyarrow  # noqa: F401

    with process_pool(1) as pool:
        (outcome,) = run_units("test", worker_units.loaded, [("one", None)], pool)
    assert outcome.value is not None
    assert not {"tensorflow", "keras", "prefect", "pandas", "pyarrow", "mlflow"} & set(outcome.value)


def test_workers_die_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    """kill -9 of the parent: its busy workers are gone within seconds."""
    script = tmp_path / "parent.py"
    script.write_text(
        "from worker_units import *\nfrom shardtrail.execution import *\n"
        "if __name__ == '__main__':\n"
        "    with process_pool(2) as pool:\n"
        "        list(run_units('test', work, [(str(n), Task('sleep')) for n in range(2)], pool))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    parent = subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.DEVNULL)
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 30
    while len(children) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
        children = [
            child for child in psutil.Process(parent.pid).children() if "spawn_main" in " ".join(child.cmdline())
        ]
    assert len(children) == 2
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


@pytest.fixture(scope="module")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Prefect server, as ``shardtrail run`` starts one."""
    from flows.server import prefect_api

    os.environ.pop("PREFECT_API_URL", None)
    with prefect_api(Folder(tmp_path_factory.mktemp("server"))):
        yield


def in_flow(tasks: list[Task]) -> list[Outcome[int]]:
    """Run units as task runs of a flow."""
    from prefect import flow

    from tasks.mapping import task_mapper
    from tasks.stage import run_stage

    @flow(persist_result=False)
    def units() -> list[Outcome[int]]:
        labelled = [(str(number), task) for number, task in enumerate(tasks)]
        with process_pool(2) as pool:
            return run_stage("test", lambda: list(task_mapper(pool)("test", worker_units.work, labelled)))

    return units()


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(
    ("tasks", "failing"),
    [
        ([], []),
        ([Task("work")], []),
        ([Task("work"), Task("raise"), Task("work")], ["1"]),
        ([Task("die") if n == 3 else Task("work") for n in range(6)], ["3"]),
    ],
)
def test_task_runs_give_what_the_plain_mapper_gives(tasks: list[Task], failing: list[str]) -> None:
    """No unit, one, one that raises, one that kills its worker: every unit has one outcome, the bad one by name."""
    outcomes = in_flow(tasks)
    assert sorted(outcome.label for outcome in outcomes) == sorted(str(number) for number in range(len(tasks)))
    assert [outcome.label for outcome in outcomes if outcome.error] == failing
    with process_pool(2) as pool:
        plain = list(run_units("test", worker_units.work, [(str(n), task) for n, task in enumerate(tasks)], pool))
    assert {o.label: o.error for o in plain} == {o.label: o.error for o in outcomes}


@pytest.mark.usefixtures("prefect_server")
def test_a_thousand_units_are_few_task_runs_that_the_server_all_records() -> None:
    """Whatever the number of units, at most ``MOST_RUNS`` task runs and the stage's own, none lost on the way, and
    every failed unit is named."""
    from tasks.mapping import MOST_RUNS

    before = recorded()
    outcomes = in_flow([Task("raise") if number % 27 == 26 else Task("work") for number in range(1000)])
    assert len({outcome.label for outcome in outcomes}) == len(outcomes) == 1000
    assert {outcome.label for outcome in outcomes if outcome.error} == {str(n) for n in range(26, 1000, 27)}
    deadline = time.monotonic() + 30
    while recorded() < before + MOST_RUNS + 1 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert recorded() == before + MOST_RUNS + 1


def recorded() -> int:
    """Task runs that the server knows of."""
    answer = httpx.post(os.environ["PREFECT_API_URL"] + "/task_runs/count", json={}, timeout=30)
    return int(answer.raise_for_status().text)
