from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tracked_folder import PARAMS, build, make_folder, write_square

from shardtrail.config import parse_config
from shardtrail.dataset import Dataset
from shardtrail.errors import ConfigError, LeaseHeld, SourceChanged, StoreUnavailable
from shardtrail.job import Job
from shardtrail.tracking.membership import SUFFIX, holders, packs, record_membership
from shardtrail.tracking.runs import training_run
from shardtrail.tracking.store import Store, open_store, redact, resolve_uri

SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYzz"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tracking database for all tests: making one takes a second."""
    return f"sqlite:///{tmp_path_factory.mktemp('tracking') / 'mlflow.db'}"


@pytest.fixture
def params(database: str, tmp_path: Path) -> str:
    """Parameters with an experiment of the test's own."""
    return f"{PARAMS}tracking: {{uri: '{database}', experiment: {tmp_path.name}}}\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Dataset]:
    """A working folder with a dataset of some shards."""
    job = make_folder(tmp_path_factory.mktemp("built"))
    return job, build(job)


@pytest.fixture
def tracked(built: tuple[Job, Dataset], params: str) -> tuple[Job, Dataset]:
    """The built folder and dataset, recorded nowhere yet."""
    job, dataset = built
    return replace(job, config=parse_config(params)), dataset


@pytest.fixture
def store(database: str, tmp_path: Path) -> Iterator[Store]:
    with open_store(database, tmp_path) as opened:
        yield opened


def the_runs(store: Store, job: Job) -> list:
    return store.runs([store.experiment(job.config.tracking.experiment)], "")


def the_packs(store: Store, job: Job) -> list:
    return packs(store, [store.experiment(job.config.tracking.experiment + SUFFIX)])


def everything_stored(folder: Path) -> bytes:
    """All bytes of the tracking database and its artifacts; compressed tables as text."""
    content = b""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content += path.read_bytes()
        if path.suffix == ".parquet":
            content += str(pq.read_table(path).to_pylist()).encode()
    return content


@pytest.mark.parametrize(
    ("uri", "resolved"),
    [
        ("sqlite:///mlflow.db", "sqlite:////some/folder/mlflow.db"),
        ("sqlite:////srv/mlflow.db", "sqlite:////srv/mlflow.db"),
        ("http://localhost:5000/", "http://localhost:5000"),
        ("postgresql+psycopg2://host/mlflow", "postgresql+psycopg2://host/mlflow"),
    ],
)
def test_addresses_start_at_the_working_folder(uri: str, resolved: str) -> None:
    """A relative SQLite file lies in the working folder, wherever the command is called from."""
    assert resolve_uri(uri, Path("/some/folder")) == resolved


@pytest.mark.parametrize("uri", ["mlruns", "file:///srv/mlruns", "sqlite://", "", "ftp://me:pass@host/x"])
def test_other_addresses_are_refused(uri: str) -> None:
    """What MLflow would take for a folder of files, or not at all, is a configuration error that says what to use."""
    with pytest.raises(ConfigError, match=r"sqlite:///mlflow\.db") as caught:
        resolve_uri(uri, Path("/some/folder"))
    assert "pass@" not in str(caught.value)


def test_credentials_are_blotted_out() -> None:
    """User names, passwords with odd characters and signed queries vanish from any text; the rest stays."""
    text = "no answer from https://me:p@ss:w0rd@host:5000/api?X-Amz-Signature=abc (postgresql://u:pw@db/x), see a@b.c"
    assert redact(text) == "no answer from https://***@host:5000/api?*** (postgresql://***@db/x), see a@b.c"


def test_run_names_all_its_inputs(tracked: tuple[Job, Dataset], store: Store, tmp_path: Path) -> None:
    """A finished run holds parameters, digests, versions and the dataset, which can be searched for."""
    job, dataset = tracked
    with training_run(job, dataset, key="k") as run:
        run.log_metrics({"train/loss": 0.5}, step=1)

    experiment = store.experiment(job.config.tracking.experiment)
    (found,) = store.runs([experiment], f"dataset.digest = '{dataset.digest[:36]}'")
    assert found.info.run_id == run.id
    assert found.info.status == "FINISHED"
    assert found.data.params["shard.target_samples"] == "4"
    assert found.data.tags["shardtrail.dataset.digest"] == dataset.digest
    assert found.data.tags["shardtrail.params.digest"] == job.config.digest()
    environment = json.loads(store.fetch(run.id, "environment.json", tmp_path).read_bytes())
    assert environment["packages"]["mlflow"] and environment["python"].startswith("3.")
    assert store.fetch(run.id, "dataset.json", tmp_path).read_bytes() == dataset.to_json()


def test_commit_of_the_run(tracked: tuple[Job, Dataset], store: Store, tmp_path: Path) -> None:
    """A run carries HEAD of the working folder's repository and whether tracked files differed from it."""
    job, dataset = tracked
    root = job.folder.root
    author = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    for command in (["init", "-q"], ["add", "params.yaml"], [*author, "commit", "-qm", "params"]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    with training_run(job, dataset, key="clean"):
        pass
    (root / "params.yaml").write_text(PARAMS + "# edited\n")
    with training_run(job, dataset, key="edited"):
        pass
    tags = {run.data.tags["shardtrail.run_key"]: run.data.tags for run in the_runs(store, job)}
    assert [tags[key]["shardtrail.git.commit"] for key in ("clean", "edited")] == [head, head]
    assert [tags[key]["shardtrail.git.dirty"] for key in ("clean", "edited")] == ["false", "true"]


def test_every_metric_arrives_once(tracked: tuple[Job, Dataset], store: Store) -> None:
    """More values than one batch holds arrive complete and in order; those that are not finite become tags."""
    job, dataset = tracked
    with training_run(job, dataset) as run:
        for step in range(1203):
            run.log_metrics({"train/loss": step / 2, "lr": 0.1}, step)
        run.log_metrics({"train/loss": float("inf")}, 1203)
        run.log_metrics({"train/loss": float("nan")}, 1204)

    history = store.client.get_metric_history(run.id, "train/loss")
    assert [(metric.step, metric.value) for metric in history] == [(step, step / 2) for step in range(1203)]
    assert len(store.client.get_metric_history(run.id, "lr")) == 1203
    tags = store.client.get_run(run.id).data.tags
    assert tags["shardtrail.non_finite.train/loss"] == "inf at step 1203"


@pytest.mark.parametrize(("error", "status"), [(ValueError("no"), "FAILED"), (KeyboardInterrupt(), "KILLED")])
def test_failed_run_keeps_its_metrics(
    tracked: tuple[Job, Dataset], store: Store, error: BaseException, status: str
) -> None:
    """An exception ends the run as what it is, after the buffered values were sent, and comes out unchanged."""
    job, dataset = tracked
    with pytest.raises(type(error)), training_run(job, dataset, key="k") as run:
        run.log_metrics({"loss": 1.0}, 7)
        raise error
    assert store.client.get_run(run.id).info.status == status
    assert store.client.get_run(run.id).data.metrics == {"loss": 1.0}


def test_interrupted_run_is_continued(tracked: tuple[Job, Dataset], store: Store) -> None:
    """The same key goes on with its interrupted run, though parameters differ in kind; a finished one is left alone."""
    job, dataset = tracked
    with pytest.raises(ValueError), training_run(job, dataset, key="k") as first:
        raise ValueError
    other = job.config.model_copy(update={"layout": "other:Layout"})
    with training_run(replace(job, config=other), dataset, key="k") as second:
        pass
    with training_run(job, dataset, key="k") as third:
        pass
    assert second.id == first.id != third.id
    assert [run.info.status for run in the_runs(store, job)] == ["FINISHED", "FINISHED"]


def test_two_processes_never_share_a_run(tracked: tuple[Job, Dataset]) -> None:
    """While a run is open, the same key is refused in this folder; another key is not, nor is the open run ended."""
    job, dataset = tracked
    with training_run(job, dataset, key="k") as outer:
        with pytest.raises(LeaseHeld, match="wait for it"), training_run(job, dataset, key="k"):
            pass
        with training_run(job, dataset, key="other"):
            pass
        outer.log_metrics({"loss": 1.0}, 0)


TRAINING = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
hosts = []
sys.addaudithook(lambda event, args: hosts.append(args[1]) if event == "socket.connect" else None)
from shardtrail.dataset import load_dataset
from shardtrail.job import open_job
from shardtrail.tracking.runs import training_run
job = open_job(Path({root!r}))
with training_run(job, load_dataset(job.folder.dataset), key="k") as run:
    run.log_metrics({{"loss": 1.0}}, 1)
    run.flush()
    print(run.id, hosts, flush=True)
    time.sleep(600)
"""


def start_training(job: Job, **environment: str) -> tuple[subprocess.Popen, str, str]:
    """A process in the middle of a training run: itself, the run's id, and where it connected to."""
    script = TRAINING.format(tests=str(Path(__file__).parent), root=str(job.folder.root))
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        cwd=job.folder.root,
    )
    assert process.stdout
    run_id, _, hosts = process.stdout.readline().strip().partition(" ")
    return process, run_id, hosts


def test_killed_processes(tmp_path: Path) -> None:
    """SIGTERM ends the run as KILLED; after kill -9 the next start continues it, or ends it; all that quietly.

    Nothing is printed, no host is asked, and no secret of the environment or of an address is stored.
    """
    job = make_folder(tmp_path / "folder", samples=8)
    dataset = build(job)
    text = PARAMS + f"custom: {{mirror: 'https://me:{SECRET}@host/raw?signature={SECRET}'}}\n"
    job.folder.params.write_text(text)
    job = replace(job, config=parse_config(text))
    process, run_id, hosts = start_training(job, AWS_SECRET_ACCESS_KEY=SECRET, MLFLOW_TRACKING_TOKEN=SECRET)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, hosts, errors) == (143, "[]", "")

    with open_store(job.config.tracking.uri, job.folder.root) as store:
        assert store.client.get_run(run_id).info.status == "KILLED"
        process, again, _ = start_training(job)
        assert again == run_id
        process.kill()
        process.communicate()
        assert store.client.get_run(run_id).info.status == "RUNNING"
        with training_run(job, dataset, key="another"):
            assert store.client.get_run(run_id).info.status == "KILLED"
        with training_run(job, dataset, key="k") as run:
            assert run.id == run_id
    assert SECRET.encode() not in everything_stored(job.folder.root / "mlartifacts")
    assert SECRET.encode() not in (job.folder.root / "mlflow.db").read_bytes()
    assert b"host/raw?***" in (job.folder.root / "mlflow.db").read_bytes()


def test_odd_parameters_do_not_stop_a_run(tracked: tuple[Job, Dataset], store: Store, tmp_path: Path) -> None:
    """Long values, many values and odd names are logged in short; ``params.json`` holds them whole."""
    job, dataset = tracked
    custom = {f"p{number}": number for number in range(150)} | {
        "größe/änderung=1": "x" * 7000,
        "empty": "",
        "none": None,
    }
    config = job.config.model_copy(update={"custom": custom})
    with training_run(replace(job, config=config), dataset) as run:
        pass
    params = store.client.get_run(run.id).data.params
    assert params["custom.p149"] == "149"
    assert params["custom.größe/änderung_1"] == "x" * 5999 + "…"
    whole = json.loads(store.fetch(run.id, "params.json", tmp_path).read_bytes())
    assert whole["custom"] == custom


def rows_of(store: Store, pack: str, scratch: Path) -> list[dict]:
    return pq.read_table(store.fetch(pack, "membership.parquet", scratch)).to_pylist()


def test_membership_is_stored_once(store: Store, params: str, tmp_path: Path) -> None:
    """A changed sample brings the rows of its new shard only; a dataset recorded before, or going back, brings none."""
    job = make_folder(tmp_path, params=params)
    before = build(job)
    first = record_membership(job, before)
    write_square(job.raw, 3, seed=1)
    after = build(job)
    second = record_membership(job, after)
    again = record_membership(job, after)
    write_square(job.raw, 3, seed=0)
    back = record_membership(job, build(job))

    new = {shard.fingerprint for shard in after.shards} - {shard.fingerprint for shard in before.shards}
    assert second == again != first == back
    assert len(the_packs(store, job)) == 2
    rows, changed = rows_of(store, first, tmp_path), rows_of(store, second, tmp_path)
    assert len(rows) == 24
    assert {row["fingerprint"] for row in changed} == new
    assert len(new) == 1
    held = holders(store, second, tmp_path)
    assert {held[shard.fingerprint] for shard in after.shards} == {first, second}
    for row in rows + changed:
        assert [file["role"] for file in row["files"]] == ["B02", "label"]
        assert all(len(file["md5"]) == 32 and file["size"] > 0 for file in row["files"])


def test_rows_of_a_deleted_pack_are_stored_anew(store: Store, params: str, tmp_path: Path) -> None:
    """The record heals: what a deleted run held is stored again with the next dataset."""
    job = make_folder(tmp_path, samples=12, params=params)
    first = record_membership(job, build(job))
    write_square(job.raw, 3, seed=1)
    dataset = build(job)
    store.client.delete_run(first)
    second = record_membership(job, dataset)
    assert len(rows_of(store, second, tmp_path)) == 12
    assert set(holders(store, second, tmp_path).values()) == {second}


RECORDING = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
def die(event, args):
    if event == "open" and "mlartifacts" in str(args[0]) and str(args[0]).endswith("shards.json"):
        os._exit(9)
sys.addaudithook(die)
from shardtrail.dataset import load_dataset
from shardtrail.job import open_job
from shardtrail.tracking.membership import record_membership
job = open_job(Path({root!r}))
record_membership(job, load_dataset(job.folder.dataset))
"""


def test_killed_recording_counts_for_nothing(store: Store, params: str, tmp_path: Path) -> None:
    """Killed while it stores the last file, a pack is not taken for whole; the next call finishes that very run."""
    job = make_folder(tmp_path, samples=8, params=params)
    dataset = build(job)
    script = RECORDING.format(tests=str(Path(__file__).parent), root=str(job.folder.root))
    assert subprocess.run([sys.executable, "-c", script], timeout=120).returncode == 9
    assert the_packs(store, job) == []
    (broken,) = store.runs([store.experiment(job.config.tracking.experiment + SUFFIX)], "")
    assert record_membership(job, dataset) == broken.info.run_id
    assert len(rows_of(store, broken.info.run_id, tmp_path)) == 8


def test_foreign_tables_are_not_recorded(store: Store, params: str, tmp_path: Path) -> None:
    """A dataset whose plan or manifest was rebuilt meanwhile is refused, and no pack is left that would count."""
    job = make_folder(tmp_path, samples=8, params=params)
    dataset = build(job)
    write_square(job.raw, 3, seed=1)
    build(job)
    with pytest.raises(SourceChanged, match="shardtrail run --until hash"):
        record_membership(job, dataset)
    assert the_packs(store, job) == []


def test_absent_server_is_named_without_its_password(tracked: tuple[Job, Dataset], monkeypatch) -> None:
    """No answer is an error that names the server and what to do, soon, and never its credentials."""
    job, dataset = tracked
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "")
    tracking = job.config.tracking.model_copy(update={"uri": f"http://me:{SECRET}@127.0.0.1:9"})
    job = replace(job, config=job.config.model_copy(update={"tracking": tracking}))
    with pytest.raises(StoreUnavailable, match=r"http://\*\*\*@127\.0\.0\.1:9") as caught:
        record_membership(job, dataset)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__context__)


def test_deleted_experiment_is_named(tracked: tuple[Job, Dataset], store: Store) -> None:
    """MLflow keeps the name of a deleted experiment; the error says how to get it back."""
    job, dataset = tracked
    store.client.delete_experiment(store.experiment(job.config.tracking.experiment))
    with pytest.raises(ConfigError, match="mlflow experiments restore"), training_run(job, dataset):
        pass
