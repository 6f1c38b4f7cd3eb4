"""Training runs on the tracking server.

with training_run(job, dataset, key="3f9a…") as run:
    run.log_metrics({"train/loss": 0.31}, step=100)
    run.log_model(folder)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shardtrail.config import Config
from shardtrail.dataset import Dataset
from shardtrail.errors import ConfigError
from shardtrail.files import to_json
from shardtrail.git import git, head
from shardtrail.job import Job
from shardtrail.tracking.attempts import attempt
from shardtrail.tracking.membership import ensure_membership
from shardtrail.tracking.store import Store, open_store, redact

MODEL_FOLDER = "model"
"""Artifact folder of a run that holds its model."""
MODEL_FILE = "model.keras"
DATASET_TAG = "shardtrail.dataset.digest"
PARAMS_TAG = "shardtrail.params.digest"
MODEL_TAG = "shardtrail.model.digest"
COMMIT_TAG = "shardtrail.git.commit"
KIND_TAG = "shardtrail.kind"
KEY_TAG = "shardtrail.run_key"

_FLUSH_VALUES = 500
_FLUSH_SECONDS = 10.0
_RETRY_SECONDS = 60.0
_PARAMS_A_CALL = 100
_PARAM_LENGTH = 6000
_DATASET_DIGEST_LENGTH = 36  # of the 64 hex digits, all that MLflow's column holds


class Run:
    """A run that takes metrics, pictures and a model. Made by ``training_run``."""

    def __init__(self, store: Store, run_id: str, say: Callable[[str], None]) -> None:
        self.id = run_id
        self._store = store
        self._say = say
        self._buffer: list[Any] = []
        self._next_flush = time.monotonic() + _FLUSH_SECONDS
        self._failing = False
        self._non_finite: set[str] = set()

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Take values of one step; sent in batches, at the latest after ten seconds of calls or at the end.

        A value that is not finite is not sent, since databases keep infinity as the largest float: the tag
        ``shardtrail.non_finite.<name>`` holds its first step and value.
        """
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        for name, value in values.items():
            if math.isfinite(value):
                self._buffer.append(Metric(name, float(value), now, step))
            elif name not in self._non_finite:
                self._non_finite.add(name)
                self._store.client.set_tag(self.id, f"shardtrail.non_finite.{name}", f"{value} at step {step}")
        full = len(self._buffer) >= _FLUSH_VALUES and not self._failing
        if full or time.monotonic() >= self._next_flush:
            self._try_flush()

    def _try_flush(self) -> None:
        """A server that is away for a while costs the run nothing: the values wait."""
        from mlflow.exceptions import MlflowException

        try:
            self.flush()
        except MlflowException as error:
            self._failing = True
            self._next_flush = time.monotonic() + _RETRY_SECONDS
            self._say(f"tracking: {len(self._buffer)} values wait for {self._store.address}: {redact(str(error))}")

    def flush(self) -> None:
        """Send what was taken so far."""
        while self._buffer:
            batch = self._buffer[:_FLUSH_VALUES]
            self._store.client.log_batch(self.id, metrics=batch)
            del self._buffer[: len(batch)]
        self._next_flush = time.monotonic() + _FLUSH_SECONDS
        self._failing = False

    def log_picture(self, path: Path) -> None:
        """Keep a picture under ``plots/``."""
        self._store.client.log_artifact(self.id, str(path), "plots")

    def log_model(self, folder: Path) -> None:
        """Keep a model's folder (``model.keras``, ``model.json``) and tag the run with the model file's digest."""
        self._store.client.log_artifacts(self.id, str(folder), MODEL_FOLDER)
        self._store.client.set_tag(self.id, MODEL_TAG, model_digest(folder))


@contextlib.contextmanager
def training_run(job: Job, dataset: Dataset, key: str = "") -> Iterator[Run]:
    """A run of the experiment ``tracking.experiment``, with all that names its inputs.

    The dataset's membership is recorded first, so that whatever the run brings can be traced. An interrupted run
    of the same ``key`` in this folder is continued. The run ends FINISHED, on an exception FAILED, on SIGTERM
    or Ctrl-C KILLED; buffered metrics are sent in each case.

    Args:
        key: digest of all that decides the training; empty: of dataset and parameters.

    Raises:
        StoreUnavailable: the tracking server does not answer.
        LeaseHeld: another process in this folder is at the same run.
    """
    key = key or f"{dataset.digest} {job.config.digest()}"
    tracking = job.config.tracking
    with open_store(tracking.uri, job.folder.root, say=job.progress.say) as store:
        ensure_membership(store, job, dataset)
        experiment = store.experiment(tracking.experiment)
        with attempt(store, job.folder.state, experiment, key, f"train {dataset.digest[:8]}") as run_id:
            _describe(store, run_id, job, dataset, key)
            run = Run(store, run_id, job.progress.say)
            try:
                yield run
            except BaseException:
                run._try_flush()
                raise
            run.flush()


def restored_run(job: Job, dataset: Dataset, folder: Path, metrics: Mapping[str, float]) -> str:
    """A run for a model that this tracking server has not seen trained: its id.

    So it is in a fresh clone, where model and metrics came from DVC.

    Args:
        folder: the model's folder.
        metrics: its final metrics.
    """
    with training_run(job, dataset, key=f"restored {model_digest(folder)}") as run:
        run.log_metrics(metrics, step=0)
        run.log_model(folder)
    return run.id


def find_runs(store: Store, experiment: str, tags: Mapping[str, str]) -> list[Any]:
    """Finished training runs of an experiment that have these tags, latest first."""
    found = store.client.get_experiment_by_name(experiment)
    if found is None:
        return []
    where = [f"tags.`{name}` = '{value}'" for name, value in {KIND_TAG: "training", **tags}.items()]
    return store.runs([found.experiment_id], " AND ".join([*where, "attributes.status = 'FINISHED'"]))


def model_digest(folder: Path) -> str:
    """sha256 of a model's file, as in its ``model.json``.

    Raises:
        ConfigError: there is none.
    """
    path = folder / MODEL_FILE
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; train the model first: shardtrail run --until train") from None


def git_commit(root: Path) -> tuple[str, bool]:
    """Commit of the repository that ``root`` lies in (empty without one), and whether tracked files differ from it."""
    try:
        commit = head(root)
    except FileNotFoundError:  # git is not installed
        return "", False
    changes = git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", check=False).stdout
    return commit, bool(commit and changes)


def _describe(store: Store, run_id: str, job: Job, dataset: Dataset, key: str) -> None:
    """Parameters, tags, versions and the dataset of a run. Repeating it for a continued run is safe."""
    from mlflow.entities import Param, RunTag

    client = store.client
    values = parameters(job.config)
    flat = _flatten(values)
    # MLflow refuses another value under the same name; a continued run keeps what it has.
    known = client.get_run(run_id).data.params
    params = [Param(name, value) for name, value in flat.items() if name not in known]
    for start in range(0, len(params), _PARAMS_A_CALL):
        client.log_batch(run_id, params=params[start : start + _PARAMS_A_CALL])
    commit, dirty = git_commit(job.folder.root)
    tags = {
        KIND_TAG: "training",
        KEY_TAG: key,
        DATASET_TAG: dataset.digest,
        PARAMS_TAG: job.config.digest(),
        COMMIT_TAG: commit,
        "shardtrail.git.dirty": str(dirty).lower(),
        "mlflow.source.name": "shardtrail",
        "mlflow.source.git.commit": commit,
    }
    client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])
    client.log_inputs(run_id, [_dataset_input(job, dataset)])
    with TemporaryDirectory(prefix="shardtrail-") as scratch:
        for name, content in (
            ("params.json", to_json(values)),
            ("environment.json", to_json(environment())),
            ("dataset.json", dataset.to_json()),
        ):
            path = Path(scratch) / name
            path.write_bytes(content)
            client.log_artifact(run_id, str(path))


def parameters(config: Config) -> dict[str, Any]:
    """The parameters that decide results, as JSON values without credentials."""
    values = config.model_dump(
        mode="json", by_alias=True, exclude={"compute", "tracking", "record", "schedule", "check_sources"}
    )
    return {name: _redacted(value) for name, value in values.items()}


def _redacted(value: Any) -> Any:
    """JSON values with every string in them redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {name: _redacted(inner) for name, inner in value.items()}
    return [_redacted(inner) for inner in value] if isinstance(value, list) else value


def environment() -> dict[str, Any]:
    """Python, platform and the version of every installed package; nothing of the environment's variables."""
    packages = {dist.metadata["Name"]: dist.version for dist in metadata.distributions()}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """``section.key`` -> text, in a form MLflow takes; the whole values are in ``params.json``."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            flat |= _flatten(value, f"{prefix}{name}.")
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        short = text if len(text) <= _PARAM_LENGTH else f"{text[: _PARAM_LENGTH - 1]}…"
        flat[re.sub(r"[^/\w.\- :]", "_", f"{prefix}{name}")[:250]] = short
    return flat


def _dataset_input(job: Job, dataset: Dataset) -> Any:
    """The dataset as MLflow's UI shows it; found by ``dataset.digest = '<first 36 digits>'``."""
    from mlflow.entities import Dataset as InputDataset
    from mlflow.entities import DatasetInput, InputTag

    profile = {split: {"shards": of["shards"], "records": of["records"]} for split, of in dataset.splits.items()}
    entity = InputDataset(
        name=job.config.layout[:500],
        digest=dataset.digest[:_DATASET_DIGEST_LENGTH],
        source_type="local",
        source=json.dumps({"uri": "data/dataset.json", "digest": dataset.digest}),
        profile=json.dumps(profile),
    )
    return DatasetInput(entity, [InputTag("mlflow.data.context", "training")])
