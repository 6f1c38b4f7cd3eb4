from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tracked_folder import PARAMS, build, make_folder, write_square

from shardtrail.dataset import Dataset, Shard
from shardtrail.errors import ConfigError, StoreUnavailable
from shardtrail.folder import Folder
from shardtrail.job import Job
from shardtrail.lineage.trace import ModelTrace, trace_file, trace_model, trace_sample, trace_shard, write_json
from shardtrail.manifest import read_table
from shardtrail.tracking.registry import accept_version, create_version
from shardtrail.tracking.runs import COMMIT_TAG, DATASET_TAG, training_run
from shardtrail.tracking.store import open_store


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def train(job: Job, dataset: Dataset) -> str:
    """A run with a model's file, and a version of it; what the model computes does not matter here."""
    folder = job.folder.models / "squares"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.keras").write_bytes(dataset.digest.encode())
    with training_run(job, dataset) as run:
        run.log_model(folder)
    tags = {DATASET_TAG: dataset.digest, COMMIT_TAG: "0" * 40}
    with open_store(job.config.tracking.uri, job.folder.root) as store:
        accept_version(store, create_version(store, "squares", run.id, tags))
    return run.id


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """A real server on loopback that keeps artifacts itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", "sqlite:///server.db", "--artifacts-destination", "artifacts"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=(folder / "server.log").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        while process.poll() is None:
            try:
                with urllib.request.urlopen(f"{address}/health", timeout=5):
                    break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        assert process.poll() is None, (folder / "server.log").read_text()
        yield address
    finally:
        os.killpg(process.pid, 15)
        process.wait()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, str, list[Dataset], list[str]]:
    """Two datasets that differ by one sample, with a model version each, and the address that knows them."""
    root = tmp_path_factory.mktemp("history")
    uri = f"sqlite:///{root / 'mlflow.db'}"
    job = make_folder(root / "folder", params=f"{PARAMS}tracking: {{uri: '{uri}'}}\n")
    datasets = [build(job)]
    runs = [train(job, datasets[0])]
    write_square(job.raw, 3, seed=1)
    datasets.append(build(job))
    runs.append(train(job, datasets[1]))
    return job, uri, datasets, runs


@pytest.fixture
def empty(tmp_path: Path) -> Folder:
    (tmp_path / "empty").mkdir()
    return Folder(tmp_path / "empty")


def shared_shard(datasets: list[Dataset]) -> Shard:
    """A shard of both datasets."""
    kept = {shard.fingerprint for shard in datasets[0].shards}
    return next(shard for shard in datasets[1].shards if shard.fingerprint in kept)


def as_json(trace: ModelTrace) -> dict:
    buffer = io.StringIO()
    write_json(trace, buffer)
    return json.loads(buffer.getvalue())


def test_model_names_every_raw_file(history: tuple, empty: Folder) -> None:
    """From an empty folder, a model names each shard, sample and raw file, with the digests of the files on disk."""
    job, uri, datasets, runs = history
    trace = as_json(trace_model(empty, "squares", uri))

    assert (trace["model"], trace["version"], trace["run_id"]) == ("squares", 2, runs[1])
    assert (trace["digest"], trace["git_commit"]) == (datasets[1].digest, "0" * 40)
    assert trace["params"]["shard"]["target_samples"] == 4
    assert trace["environment"]["packages"]["mlflow"]
    for shard in trace["shards"]:
        assert md5(job.folder.shards / f"{shard['shard']}.tfrecord") == shard["md5"]
    assert [shard["address"] for shard in trace["shards"]] == [shard.address for shard in datasets[1].shards]
    files = {file["path"]: file["digest"] for sample in trace["samples"] for file in sample["files"]}
    assert files == {path.relative_to(job.raw).as_posix(): md5(path) for path in job.raw.rglob("*") if path.is_file()}
    assert list(empty.root.iterdir()) == []


def test_a_server_alone_is_enough(tmp_path: Path, empty: Folder) -> None:
    """Recorded through a real server, all can be traced by its address from another place, artifacts included."""
    with mlflow_server(tmp_path) as address:
        job = make_folder(tmp_path / "folder", samples=6, params=f"{PARAMS}tracking: {{uri: '{address}'}}\n")
        run_id = train(job, build(job))
        trace = as_json(trace_model(empty, "squares@candidate", address))
        file = trace_file(empty, "square-005/B02.bin", address)
    assert trace["run_id"] == run_id
    files = {file["path"]: file["digest"] for sample in trace["samples"] for file in sample["files"]}
    assert files == {path.relative_to(job.raw).as_posix(): md5(path) for path in job.raw.rglob("*") if path.is_file()}
    assert [model["run_id"] for model in file["models"]] == [run_id]
    assert sorted(path.name for path in job.folder.root.iterdir()) == [
        ".shardtrail",
        "data",
        "models",
        "params.yaml",
        "raw",
    ]


def test_samples_come_in_the_order_of_their_records(history: tuple, empty: Folder) -> None:
    """Each sample stands once, at the record of its shard that holds it, with the split it was used for."""
    job, uri, _, _ = history
    trace = trace_model(empty, "squares/2", uri)
    traced = [(s["sample"], s["digest"], s["shard"], s["record"], s["split"]) for s in trace.samples]
    plan = read_table(job.folder.plan).to_pylist()
    assert traced == [(row["sample_id"], row["digest"], row["shard"], row["record"], row["split"]) for row in plan]


@pytest.mark.parametrize(("name", "version"), [("squares", 2), ("squares/1", 1), ("squares@candidate", 2)])
def test_versions_by_number_and_alias(history: tuple, empty: Folder, name: str, version: int) -> None:
    """A model is named by its latest version, a number or an alias."""
    _, uri, datasets, _ = history
    trace = trace_model(empty, name, uri)
    assert (trace.version, trace.digest) == (version, datasets[version - 1].digest)


@pytest.mark.parametrize(
    ("trace", "name", "hint"),
    [
        (trace_model, "square", "no model 'square' in the registry"),
        (trace_model, "squares/7", "has no version 7; it has: 2, 1"),
        (trace_model, "squares/last", "write a version as squares/3"),
        (trace_model, "squares@champion", "no alias 'champion'; it has: candidate"),
        (trace_model, "it's", "there is: squares"),
        (trace_sample, "square-00", "near names: square-000, square-001"),
        (trace_file, "square-003/B03.bin", "no raw file 'square-003/B03.bin'; near names: square-"),
        (trace_shard, "train-00099", "near names: train-0000"),
        (trace_shard, "train-000000000000", "near names: train-"),
    ],
)
def test_unknown_names_bring_near_ones(history: tuple, empty: Folder, trace: Callable, name: str, hint: str) -> None:
    """What does not exist is a usage error that names what does."""
    with pytest.raises(ConfigError) as caught:
        trace(empty, name, history[1])
    assert hint in str(caught.value)


def test_sample_leads_to_shards_models_and_files(history: tuple, empty: Folder) -> None:
    """A sample that changed lies in a shard of each dataset, one that did not in the shard both share."""
    _, uri, datasets, _ = history
    changed = trace_sample(empty, "square-003", uri)
    shared = shared_shard(datasets)
    sample = trace_shard(empty, shared.file, uri)["samples"][0]["sample"]
    unchanged = trace_sample(empty, sample, uri)

    assert len({shard["md5"] for shard in changed["shards"]}) == len({s["digest"] for s in changed["samples"]}) == 2
    assert [model["version"] for model in changed["models"]] == [1, 2]
    assert sorted(file["path"] for file in changed["files"]) == ["square-003/B02.bin"] * 2 + ["square-003/label.txt"]
    assert [shard["md5"] for shard in unchanged["shards"]] == [shared.md5]
    assert [model["version"] for model in unchanged["models"]] == [1, 2]


def test_a_replaced_shard_leads_to_the_model_that_saw_it(history: tuple, empty: Folder) -> None:
    """A shard that only the first dataset had names the first version alone, though the folder has moved on."""
    _, uri, datasets, runs = history
    new = {shard.fingerprint for shard in datasets[1].shards}
    (gone,) = [shard for shard in datasets[0].shards if shard.fingerprint not in new]
    trace = trace_shard(empty, gone.file.removesuffix(".tfrecord"), uri)
    assert [(model["version"], model["run_id"]) for model in trace["models"]] == [(1, runs[0])]
    assert trace["models"][0]["splits"] == [gone.split]
    assert len(trace["samples"]) == gone.records


def test_file_is_found_by_path_and_by_content(history: tuple, empty: Folder, tmp_path: Path) -> None:
    """The path in the raw tree, its end, a longer path, or a copy under another name lead to the same sample."""
    job, uri, datasets, _ = history
    shared = shared_shard(datasets)
    sample = trace_shard(empty, shared.file, uri)["samples"][0]["sample"]
    path = f"{sample}/B02.bin"
    copy = tmp_path / "copy.bin"
    copy.write_bytes((job.raw / path).read_bytes())
    expected = [{"path": path, "digest": md5(job.raw / path), "sample": sample}]
    for name in (path, str(job.raw / path), f"elsewhere/raw/{path}", str(copy)):
        trace = trace_file(empty, name, uri)
        assert trace["files"] == expected
        assert [shard["md5"] for shard in trace["shards"]] == [shared.md5]
    assert len(trace_file(empty, "B02.bin", uri)["files"]) == 25  # 24 samples, one of them in two versions


@pytest.mark.parametrize("form", ["{address}", "{stem}", "{stem}.tfrecord", "data/shards/{stem}.tfrecord", "{print}"])
def test_shard_by_any_of_its_names(history: tuple, empty: Folder, form: str) -> None:
    """Address, name, file, path and fingerprint name the same shard."""
    job, uri, datasets, _ = history
    shard = datasets[1].shards[1]
    name = form.format(address=shard.address, stem=shard.file.removesuffix(".tfrecord"), print=shard.fingerprint)
    trace = trace_shard(empty, name, uri)
    assert [entry["md5"] for entry in trace["shards"]] == [md5(job.folder.shards / shard.file)]
    assert len(trace["files"]) == 2 * shard.records


def test_view_names_are_addresses(history: tuple, empty: Folder) -> None:
    """The file names of the view lead to the shard they link to."""
    job, uri, _, _ = history
    link = next(path for path in sorted(job.folder.view.iterdir()) if path.name.startswith("train-00001-of-"))
    trace = trace_shard(empty, link.name, uri)
    assert [f"{shard['shard']}.tfrecord" for shard in trace["shards"]] == [link.readlink().name]


def test_folder_tells_of_what_was_never_recorded(tmp_path: Path) -> None:
    """Without any tracking database, plan and manifest of the folder answer for samples, files and shards."""
    job = make_folder(tmp_path / "folder", samples=8)
    dataset = build(job)
    shard = trace_shard(job.folder, "train-00000")
    assert shard["shards"][0]["md5"] == dataset.shards[0].md5
    assert shard["models"] == []
    sample = shard["samples"][0]["sample"]
    assert trace_sample(job.folder, sample)["files"] == trace_file(job.folder, f"{sample}/B02.bin")["files"] + [
        {"path": f"{sample}/label.txt", "digest": md5(job.raw / sample / "label.txt"), "sample": sample}
    ]
    assert not (job.folder.root / "mlflow.db").exists()


def test_wrong_address_makes_no_database(empty: Folder) -> None:
    """Tracing against a database that is not there says so, and does not make one."""
    with pytest.raises(ConfigError, match="no tracking database"):
        trace_model(empty, "squares", "sqlite:///mlflow.db")
    assert list(empty.root.iterdir()) == []


def test_lost_rows_are_noticed(tmp_path: Path, empty: Folder) -> None:
    """A pack that lost rows is named instead of giving a part of the truth; so is one that is gone."""
    job = make_folder(tmp_path / "folder", samples=12)
    train(job, build(job))
    uri = f"sqlite:///{job.folder.root / 'mlflow.db'}"
    (table,) = (job.folder.root / "mlartifacts").rglob("membership.parquet")
    pq.write_table(pq.read_table(table).slice(1), table)
    with pytest.raises(StoreUnavailable, match=r"the record of shard train-\w+ holds \d+ of its \d+ samples"):
        trace_model(empty, "squares", uri)
    table.unlink()
    with pytest.raises(StoreUnavailable, match=r"membership\.parquet is gone"):
        trace_model(empty, "squares", uri)
