"""Workers of a Dask cluster: the pool's promises, and a cluster elsewhere proves that it can build here."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
import worker_units
from builds import build_all, new_folder, started
from worker_units import Task

import shardtrail
from shardtrail.check import check
from shardtrail.config import parse_config
from shardtrail.errors import ConfigError, StoreUnavailable
from shardtrail.execution import Outcome, Workers, dask, open_mapper, run_units
from shardtrail.execution.in_worker import faults, here
from shardtrail.folder import Folder
from shardtrail.job import Job, open_job

pytest_plugins = "build_fixtures"

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty working folder."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def local(place: Path) -> Iterator[Workers]:
    """A cluster of two processes on this machine."""
    with dask.dask_workers("", 2, Folder(place), place) as workers:
        yield workers


def run(workers: Workers, tasks: list[Task]) -> dict[str, Outcome[int]]:
    labelled = [(str(number), task) for number, task in enumerate(tasks)]
    outcomes = list(run_units("test", worker_units.work, labelled, workers))
    assert len(outcomes) == len(tasks)
    return {outcome.label: outcome for outcome in outcomes}


def failed(outcomes: Mapping[str, Outcome[int]]) -> dict[str, str]:
    return {label: outcome.error for label, outcome in outcomes.items() if outcome.error}


def test_a_unit_that_raises_or_kills_its_worker_fails_alone(local: Workers) -> None:
    """Of forty units, one raises what does not pickle and one ends its process each time: these two are named."""
    tasks = [Task("die") if n == 11 else Task("raise") if n == 5 else Task("work") for n in range(40)]
    errors = failed(run(local, tasks))
    assert errors.keys() == {"5", "11"}
    assert errors["5"] == "Unpicklable: no"
    assert "KilledWorker" in errors["11"]


def test_a_worker_killed_once_costs_nothing(local: Workers, tmp_path: Path) -> None:
    """A worker that dies from outside is replaced and its unit done again."""
    assert failed(run(local, [Task("die once", str(tmp_path / "mark"))] + [Task("work")] * 20)) == {}


def test_workers_load_nothing_heavy(local: Workers) -> None:
    """A worker has neither TensorFlow nor Prefect nor pandas nor pyarrow."""
    (outcome,) = run_units("test", worker_units.loaded, [("one", None)], local)
    assert outcome.value
    assert not {"tensorflow", "keras", "prefect", "pandas", "pyarrow", "mlflow"} & set(outcome.value)


def test_what_a_unit_logs_is_told_with_its_label(local: Workers, caplog: pytest.LogCaptureFixture) -> None:
    """Lines of logging and warnings come back from the worker."""
    with caplog.at_level(logging.INFO, logger="shardtrail"):
        run(local, [Task("work"), Task("log")])
    lines = [record.getMessage() for record in caplog.records if record.name == "shardtrail"]
    assert "1: a line of 1" in lines
    assert any(line.startswith("1: ") and "UserWarning: odd (3 times)" in line for line in lines)
    assert not any(line.startswith("0: ") for line in lines)


def test_a_cluster_that_died_is_replaced(place: Path) -> None:
    """Scheduler and workers killed in mid-work: the units in flight are run again, the others on a new cluster."""
    with dask.dask_workers("", 2, Folder(place), place) as workers:
        labelled = [(str(number), Task("nap")) for number in range(30)]
        outcomes = run_units("test", worker_units.work, labelled, workers)
        first = next(outcomes)
        assert first.value is not None
        os.killpg(os.getpgid(psutil.Process(first.value).parent().pid), signal.SIGKILL)
        rest = list(outcomes)
    assert len(rest) == 29
    assert [outcome.error for outcome in rest if outcome.error] == []


LONG = """
import sys
from pathlib import Path
import worker_units
from shardtrail.execution import dask, run_units
from shardtrail.folder import Folder
root = Path(sys.argv[1])
if sys.argv[2] == "raise":
    import signal
    def end(*_):
        raise SystemExit(3)
    signal.signal(signal.SIGTERM, end)
with dask.dask_workers("", 2, Folder(root), root) as workers:
    print("up", flush=True)
    list(run_units("test", worker_units.work, [(str(n), worker_units.Task("sleep")) for n in range(8)], workers))
"""


@pytest.mark.parametrize(("how", "by"), [("raise", signal.SIGTERM), ("", signal.SIGTERM), ("", signal.SIGKILL)])
def test_nothing_is_left_behind(how: str, by: signal.Signals, tmp_path: Path) -> None:
    """An exception (as Prefect makes of a cancel), SIGTERM or kill -9 in mid-unit: scheduler and workers are gone."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with started(LONG, tmp_path, how, environment={"TMPDIR": str(scratch)}) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        time.sleep(0.5)
        children = psutil.Process(parent.pid).children(recursive=True)
        assert len(children) >= 3
        parent.send_signal(by)
        parent.communicate(timeout=20)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert list(scratch.iterdir()) == []


# A cluster that is up elsewhere


@contextlib.contextmanager
def cluster(
    root: Path, workers: int = 2, options: tuple[str, ...] = (), path: Path | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """``dask scheduler`` and ``dask worker`` as processes of their own: address, and the scheduler."""
    found = root / "scheduler.json"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, filter(None, (path, TESTS))))}
    spaces = {"cwd": root, "env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-m", "dask"]
    at = [*options, "--scheduler-file", str(found), "--no-dashboard"]
    processes = [subprocess.Popen([*command, "scheduler", "--host", "127.0.0.1", "--port", "0", *at], **spaces)]
    try:
        processes += [
            subprocess.Popen([*command, "worker", "--nthreads", "1", "--no-nanny", *at], **spaces)
            for _ in range(workers)
        ]
        yield _address(found), processes[0]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _address(found: Path) -> str:
    """What the scheduler says of itself; its file is there before its content."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            return str(json.loads(found.read_text())["address"])
        time.sleep(0.05)
    raise TimeoutError("the scheduler did not start")


def with_dask(job: Job, address: str) -> Job:
    """The job as if ``params.yaml`` asked for this cluster."""
    with job.folder.params.open("a") as params:
        params.write(f"compute: {{executor: dask, address: '{address}'}}\n")
    return open_job(job.folder.root)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("elsewhere")) as (address, _):
        yield address


def test_a_cluster_elsewhere_builds_the_same_dataset(elsewhere: str, finished: Job, raw: Path, tmp_path: Path) -> None:
    """The stages through ``compute.address`` give the digest of a build without workers and leave no mark."""
    job = with_dask(new_folder(tmp_path / "work", raw), elsewhere)
    with open_mapper(job) as mapper:
        _, dataset = build_all(dataclasses.replace(job, mapper=mapper))
    assert dataset.digest == json.loads(finished.folder.dataset.read_text())["digest"]
    assert list(job.folder.state.glob("dask.*")) == []


def test_check_tells_of_the_cluster(elsewhere: str, raw: Path, tmp_path: Path) -> None:
    """``check`` names workers and hosts of a cluster that can build here."""
    job = with_dask(new_folder(tmp_path / "work", raw), elsewhere)
    finding = check(job)[-1]
    assert (finding.subject, finding.good) == ("workers", True)
    assert "2 with 2 threads on 1 hosts" in finding.text


def test_a_worker_with_another_encoding_is_refused(raw: Path, tmp_path: Path) -> None:
    """A worker whose shardtrail writes another encoding is named with its host, before any unit, and by ``check``."""
    code = tmp_path / "code"
    shutil.copytree(Path(shardtrail.__path__[0]), code / "shardtrail", ignore=shutil.ignore_patterns("__pycache__"))
    example = code / "shardtrail" / "records" / "example.py"
    example.write_text(example.read_text().replace("\nENCODING_VERSION = ", "\nENCODING_VERSION = 9"))
    with cluster(tmp_path, 1, path=code) as (address, _):
        job = with_dask(new_folder(tmp_path / "work", raw), address)
        with (
            pytest.raises(ConfigError, match=r"127\.0\.0\.1:\d+: it has record encoding 9"),
            open_mapper(job) as mapper,
        ):
            list(mapper("test", worker_units.work, [("0", Task("work"))]))
        finding = check(job)[-1]
        assert not finding.good
        assert "record encoding 9" in finding.text


def test_a_machine_that_sees_another_folder_is_told_apart(tmp_path: Path) -> None:
    """An absent folder, and one of the same path with another content, are faults of their own."""
    mark = tmp_path / "mark"
    mark.write_text("a copy")
    assert faults(here(tmp_path, (), str(mark), "a copy")) == ()
    assert faults(here(tmp_path, (str(tmp_path / "raw"),))) == (f"it does not see {tmp_path / 'raw'}",)
    assert faults(here(tmp_path, (), str(mark), "the original")) == (f"{tmp_path} there is another folder than here",)
    assert faults(here(tmp_path, (), str(tmp_path / "absent"), "the original")) != ()


def test_no_scheduler_and_no_workers_say_what_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    """A cluster that does not answer, or has no workers, is an unavailable store, which time may mend."""
    monkeypatch.setattr(dask, "PATIENCE_SECONDS", 1)
    folder = Folder(place)
    with (
        pytest.raises(StoreUnavailable, match=r"tcp://127\.0\.0\.1:9 .*dask scheduler"),
        dask.dask_workers("tcp://127.0.0.1:9", 0, folder, place),
    ):
        pass
    with (
        cluster(tmp_path, workers=0) as (address, _),
        pytest.raises(StoreUnavailable, match=f"has no workers.* dask worker {address}"),
        dask.dask_workers(address, 0, folder, place),
    ):
        pass


def test_a_scheduler_lost_in_mid_build_is_an_unavailable_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    """Every unit of that moment and after fails by name, as what time may mend; nothing hangs."""
    monkeypatch.setattr(dask, "PATIENCE_SECONDS", 2)
    with (
        cluster(tmp_path, workers=1) as (address, scheduler),
        dask.dask_workers(address, 0, Folder(place), place) as workers,
    ):
        outcomes = run_units("test", worker_units.work, [(str(n), Task("nap")) for n in range(12)], workers)
        assert next(outcomes).error == ""
        scheduler.kill()
        rest = [outcome for outcome in outcomes if outcome.error]
    assert len(rest) >= 8
    assert all(outcome.transient and address in outcome.error for outcome in rest), rest


def test_a_cluster_behind_tls(tmp_path: Path, place: Path) -> None:
    """``tls://`` works with certificates in Dask's own configuration, and says so where there are none."""
    import dask as library
    from distributed.security import Security

    security = Security.temporary()
    files = {}
    for name, text in {
        "ca-file": security.tls_ca_file,
        "cert": security.tls_client_cert,
        "key": security.tls_client_key,
    }.items():
        files[name] = tmp_path / f"{name}.pem"
        files[name].write_text(text)
    options = tuple(
        part
        for option, name in (("--tls-ca-file", "ca-file"), ("--tls-cert", "cert"), ("--tls-key", "key"))
        for part in (option, str(files[name]))
    )
    with cluster(tmp_path, 1, ("--protocol", "tls", *options)) as (address, _):
        assert parse_config(f"source: a\ncompute: {{executor: dask, address: '{address}'}}").compute.address == address
        with (
            pytest.raises(ConfigError, match=r"distributed\.comm\.tls"),
            dask.dask_workers(address, 0, Folder(place), place),
        ):
            pass
        settings = {
            "distributed.comm.tls.ca-file": str(files["ca-file"]),
            "distributed.comm.tls.client.cert": str(files["cert"]),
            "distributed.comm.tls.client.key": str(files["key"]),
        }
        with library.config.set(settings), dask.dask_workers(address, 0, Folder(place), place) as workers:
            assert failed(run(workers, [Task("work")])) == {}


@pytest.mark.parametrize("address", ["localhost", "http://a:1", "tcp://user:pass@a:8786", "tcp://a", "tcp://a:1/x"])
def test_odd_addresses_are_refused(address: str) -> None:
    """An address is tcp:// or tls://, host and port, without a password."""
    with pytest.raises(ConfigError, match=r"compute\.address"):
        parse_config(f"source: a\ncompute: {{executor: dask, address: '{address}'}}")
