from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tracked_folder import PARAMS, build, make_folder, write_square

from shardtrail.config import parse_config
from shardtrail.dataset import Dataset, load_dataset
from shardtrail.errors import ConfigError, SourceChanged, StageFailed
from shardtrail.files import to_json
from shardtrail.job import Job
from shardtrail.stages.register import Registration, register
from shardtrail.tracking.registry import CANDIDATE, accept_version, all_versions, create_version
from shardtrail.tracking.runs import (
    DATASET_TAG,
    MODEL_TAG,
    PARAMS_TAG,
    Run,
    git_commit,
    model_digest,
    training_run,
)
from shardtrail.tracking.store import Store, open_store


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Dataset]:
    """A working folder with a dataset, and a tracking database beside it."""
    job = make_folder(tmp_path_factory.mktemp("built"), samples=12)
    return job, build(job)


@pytest.fixture
def trained(built: tuple[Job, Dataset], tmp_path: Path) -> Job:
    """The folder with a model and metrics as training leaves them, under the test's own name and experiment."""
    job, dataset = built
    name = tmp_path.name
    job.folder.params.write_text(f"{PARAMS}register: {{name: {name}}}\ntracking: {{experiment: {name}}}\n")
    job = replace(job, config=parse_config(job.folder.params.read_text()))
    job.folder.registration.unlink(missing_ok=True)
    write_model(job, dataset)
    return job


def write_model(job: Job, dataset: Dataset, bias: float = 0.5) -> None:
    """An untrained network with ``bias`` added to its logits, stored the way training stores one."""
    from shardtrail.models import build_model
    from shardtrail.training.export import export_model

    model = build_model("resnet_small", dataset.schema, dataset.bands)
    model.set_weights([*model.get_weights()[:-1], model.get_weights()[-1] + bias])
    export_model(model, job.folder.models / job.config.register_.name, {"dataset": dataset.digest})
    job.folder.metrics.write_bytes(to_json({"validation/micro_f1": 0.75, "validation/samples": 2}))


def record_training(job: Job) -> Run:
    """The run that made the folder's model."""
    with training_run(job, load_dataset(job.folder.dataset)) as run:
        run.log_metrics({"validation/micro_f1": 0.75}, 1)
        run.log_model(job.folder.models / job.config.register_.name)
    return run


def digests_of(job: Job, dataset: Dataset) -> dict[str, str]:
    """The tags that name what was registered."""
    model = model_digest(job.folder.models / job.config.register_.name)
    return {DATASET_TAG: dataset.digest, PARAMS_TAG: job.config.digest(), MODEL_TAG: model}


@pytest.fixture
def store(built: tuple[Job, Dataset]) -> Iterator[Store]:
    job, _ = built
    with open_store(job.config.tracking.uri, job.folder.root) as opened:
        yield opened


def versions(store: Store, job: Job) -> list:
    return [version for version in all_versions(store) if version.name == job.config.register_.name]


def test_one_model_is_one_version(trained: Job, store: Store) -> None:
    """Registered again, by a flow or under DVC, a model keeps its version, its file's bytes and everybody's aliases.

    The first attempt was killed before it had loaded the version back: the second one finishes that version.
    """
    job, name = trained, trained.config.register_.name
    run = record_training(job)
    digests = digests_of(job, load_dataset(job.folder.dataset))
    create_version(store, name, run.id, digests)

    first = register(job)
    assert (first.version, first.run_id, first.created) == (1, run.id, True)
    written = job.folder.registration.read_bytes()
    content = {"name": name} | {tag.split(".")[1]: digest for tag, digest in digests.items()}
    assert json.loads(written) == content
    assert store.client.get_model_version_by_alias(name, CANDIDATE).run_id == run.id

    store.client.delete_registered_model_alias(name, CANDIDATE)
    job.folder.registration.unlink()
    for reproduce in (False, True):
        again = register(replace(job, reproduce=reproduce))
        assert (again.version, again.run_id, again.created) == (1, run.id, False)
    assert job.folder.registration.read_bytes() == written
    assert store.client.get_registered_model(name).aliases == {}
    assert len(versions(store, job)) == 1


def test_model_from_elsewhere_gets_a_run(trained: Job, store: Store, built: tuple[Job, Dataset]) -> None:
    """In a fresh clone the server never saw the training: the version gets a run with its inputs and metrics.

    If the dataset is not the one the model was trained on, nobody knows its inputs, and it is refused.
    """
    job, (_, dataset) = trained, built
    registration = register(job)
    assert registration.created
    run = store.client.get_run(registration.run_id)
    assert run.data.tags[DATASET_TAG] == dataset.digest
    assert run.data.metrics == {"validation/micro_f1": 0.75, "validation/samples": 2}
    (version,) = versions(store, job)
    assert (version.run_id, version.tags["shardtrail.git.commit"]) == (
        registration.run_id,
        git_commit(job.folder.root)[0],
    )

    model = job.folder.models / job.config.register_.name
    described = json.loads((model / "model.json").read_bytes())
    (model / "model.json").write_bytes(to_json(described | {"dataset": "0" * 64}))
    with pytest.raises(SourceChanged, match="was trained on dataset 000000000000"):
        register(job)


def test_rebuild_during_training(tmp_path: Path) -> None:
    """A dataset rebuilt since the training began is not taken for the one that the model saw."""
    job = make_folder(tmp_path, samples=12)
    before = build(job)
    write_model(job, before)
    run = record_training(job)
    with open_store(job.config.tracking.uri, job.folder.root) as store:
        accept_version(store, create_version(store, "shardtrail", run.id, digests_of(job, before)))
    write_square(job.raw, 3, seed=1)
    after = build(job)
    assert register(job) == Registration("shardtrail", 1, run.id, created=False)
    assert json.loads(job.folder.registration.read_bytes())["dataset"] == before.digest != after.digest


def test_broken_models_are_not_registered(trained: Job, store: Store, built: tuple[Job, Dataset]) -> None:
    """A model that gives no finite output, or is not what the registry hands out, leaves no version behind."""
    job, (_, dataset) = trained, built
    write_model(job, dataset, bias=math.nan)
    run = record_training(job)
    with pytest.raises(StageFailed, match="values that are not finite"):
        register(job)
    stored = store.fetch(run.id, "model/model.keras", job.folder.state)
    stored.write_bytes(stored.read_bytes()[:-1])
    with pytest.raises(StageFailed, match="hands out another file"):
        register(job)
    assert versions(store, job) == []
    assert not job.folder.registration.exists()


def test_metrics_must_be_finite(trained: Job, store: Store) -> None:
    """A model with a metric that is not a number is refused before anything is registered."""
    trained.folder.metrics.write_text('{"validation/micro_f1": NaN, "steps": 3}')
    with pytest.raises(StageFailed, match=r"validation/micro_f1: nan in metrics\.json"):
        register(trained)
    assert versions(store, trained) == []


@pytest.mark.parametrize("missing", ["model.keras", "model.json", "metrics.json"])
def test_absent_results_name_the_stage(trained: Job, missing: str) -> None:
    """Registering before training is a usage error that says what to run."""
    folder = trained.folder
    model = folder.models / trained.config.register_.name
    (folder.metrics if missing == "metrics.json" else model / missing).unlink()
    with pytest.raises(ConfigError, match=rf"{missing} does not exist; .*--until train"):
        register(trained)
