"""Stage ``register``: a trained model -> one version in the MLflow registry, loaded back before it counts."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from shardtrail.dataset import load_dataset
from shardtrail.errors import ConfigError, SourceChanged, StageFailed
from shardtrail.files import to_json, write_atomic
from shardtrail.job import Job

if TYPE_CHECKING:
    from shardtrail.tracking.registry import Version
    from shardtrail.tracking.store import Store


@dataclass(frozen=True, slots=True)
class Registration:
    """A version in the registry.

    Attributes:
        run_id: the training run that made the model.
        created: False if the same model was registered before.
    """

    name: str
    version: int
    run_id: str
    created: bool


def register(job: Job) -> Registration:
    """Register ``models/<register.name>``, once for the same dataset, parameters and model file.

    A new version counts, and becomes ``candidate``, only after another process loaded it back from the registry and
    ran it on real samples; one that fails is removed. No alias moves for a model that was registered before.
    ``registration.json`` names what was registered by digests alone, so that reproducing it changes no byte.

    Raises:
        ConfigError: no model or no metrics.
        SourceChanged: the model was trained elsewhere, on another dataset than ``data/dataset.json``.
        StageFailed: the model cannot be loaded back, or a metric is not finite.
        StoreUnavailable: the tracking server does not answer.
    """
    from shardtrail.tracking import registry
    from shardtrail.tracking.runs import COMMIT_TAG, MODEL_TAG
    from shardtrail.tracking.store import open_store

    name = job.config.register_.name
    metrics = _metrics(job)
    tracking = job.config.tracking
    with open_store(tracking.uri, job.folder.root, say=job.progress.say) as store:
        run_id, digests, commit = _trained(store, job, job.folder.models / name, metrics)
        version = registry.find_version(store, name, digests)
        created = version is None or not version.verified
        if version is None:
            version = registry.create_version(store, name, run_id, digests | {COMMIT_TAG: commit})
        if created:
            job.progress.say(f"register: loading {name} version {version.number} back")
            _load_back(store, job, version, digests[MODEL_TAG])
            registry.accept_version(store, version)
    content = {"name": name} | {tag.split(".")[1]: digest for tag, digest in digests.items()}
    write_atomic(job.folder.registration, to_json(content))
    return Registration(name, version.number, version.run_id, created)


def _trained(store: Store, job: Job, model: Path, metrics: dict[str, float]) -> tuple[str, dict[str, str], str]:
    """The run that made the model: its id, the digests that name the result, and its git commit.

    They come from the run, not from the folder: since the training began, a rebuild may have brought another
    dataset. A server that never saw the model trained, such as that of a fresh clone, gets a run for it.
    """
    from shardtrail.tracking.runs import (
        COMMIT_TAG,
        DATASET_TAG,
        MODEL_TAG,
        PARAMS_TAG,
        find_runs,
        model_digest,
        restored_run,
    )

    digest = model_digest(model)
    dataset = trained_on(model)
    runs = find_runs(store, job.config.tracking.experiment, {MODEL_TAG: digest, DATASET_TAG: dataset})
    # The run with the parameters of now, if several made the same bytes.
    runs.sort(key=lambda run: run.data.tags[PARAMS_TAG] != job.config.digest())
    if not runs:
        present = load_dataset(job.folder.dataset)
        if present.digest != dataset:
            raise SourceChanged(
                f"{job.folder.relative(model)} was trained on dataset {dataset[:12]}, but data/dataset.json is "
                f"{present.digest[:12]} and {store.address} knows no run that made the model; "
                "train on it: shardtrail run"
            )
        restored_run(job, present, model, metrics)
        runs = find_runs(store, job.config.tracking.experiment, {MODEL_TAG: digest, DATASET_TAG: dataset})
    tags = runs[0].data.tags
    digests = {tag: str(tags[tag]) for tag in (DATASET_TAG, PARAMS_TAG, MODEL_TAG)}
    return str(runs[0].info.run_id), digests, str(tags.get(COMMIT_TAG, ""))


def trained_on(model: Path) -> str:
    """Digest of the dataset that a model's folder was trained on, from its ``model.json``.

    Raises:
        ConfigError: there is no such file.
    """
    values = _read_json(model / "model.json")
    return str(values["dataset"])


def _metrics(job: Job) -> dict[str, float]:
    """The numbers of ``metrics.json``; all must be finite, or the model is not worth a version."""
    values = {name: value for name, value in _read_json(job.folder.metrics).items() if isinstance(value, int | float)}
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    if bad:
        raise StageFailed(
            "register",
            [(name, f"{values[name]} in metrics.json") for name in bad],
            "A model whose metrics are not finite is not registered; look at its learning curves.",
        )
    return values


def _load_back(store: Store, job: Job, version: Version, digest: str) -> None:
    """Prove that what the registry hands out is the model and works; remove the version otherwise."""
    from shardtrail.tracking import registry
    from shardtrail.tracking.runs import MODEL_FILE, model_digest

    with TemporaryDirectory(prefix="shardtrail-") as scratch:
        folder = registry.fetch_model(store, version, Path(scratch))
        if model_digest(folder) != digest:
            fault = f"the registry hands out another file than models/{version.name}/{MODEL_FILE}"
        else:
            command = [sys.executable, "-m", "shardtrail.models.load_check", str(folder / MODEL_FILE), "."]
            answer = subprocess.run(
                command, cwd=job.folder.root, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            if answer.returncode == 0:
                return
            fault = "\n".join(answer.stderr.strip().splitlines()[-5:])
    registry.reject_version(store, version)
    raise StageFailed("register", [(version.name, f"cannot be loaded back: {fault}")], "No version was registered.")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; train the model first: shardtrail run --until train") from None
    return values
