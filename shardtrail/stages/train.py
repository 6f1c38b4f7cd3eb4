"""dataset.json and shards -> models/<name>/, metrics.json, plots/."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardtrail.dataset import load_dataset
from shardtrail.job import Job
from shardtrail.sharding.pin import pinned


@dataclass(frozen=True)
class Trained:
    """A finished run.

    Attributes:
        run_id: on the tracking server.
        metrics: of ``metrics.json``, ``<split>/<name>`` -> value; ``*_constant`` are those of the best predictor that
            never looks at the image.
        model: folder with ``model.keras`` and ``model.json``.
        split: the one to quote: validation, or what stands in for it.
    """

    run_id: str
    metrics: Mapping[str, float]
    model: Path
    split: str

    @property
    def headline(self) -> str:
        """The metric beside that of a constant predictor."""
        score, constant = self.metrics[f"{self.split}/micro_f1"], self.metrics[f"{self.split}/micro_f1_constant"]
        return f"{self.split} micro F1 {score:.3f} (best constant prediction {constant:.3f})"


def train(job: Job) -> Trained:
    """Train on the dataset of the working folder; a finished run is returned, an interrupted one goes on.

    Raises:
        ConfigError: no dataset, or model and dataset do not fit.
        ShardError: shards are missing or damaged.
        StageFailed: the training diverged.
    """
    from shardtrail.training.identity import finished_run, note_finished, run_key
    from shardtrail.training.quiet import quiet_start

    folder = job.folder
    dataset = load_dataset(folder.dataset)
    key = run_key(dataset, job.config.train)
    model = folder.models / job.config.register_.name
    if (run_id := finished_run(key, folder, model / "model.keras")) is not None:
        trained = _trained(job, run_id)
        job.progress.say(f"train: nothing changed since run {run_id}: {trained.headline}")
        return trained

    with quiet_start():
        from shardtrail.training.devices import open_strategy
        from shardtrail.training.run import prepare, run_training
    from shardtrail.tracking.runs import training_run

    with pinned(folder, dataset) as shards:
        with quiet_start():
            prepared = prepare(job, dataset, shards, open_strategy(job.config.train))
        with training_run(job, dataset, key=str(key)) as run:
            outputs = run_training(prepared, key, run.log_metrics)
            run.log_metrics(outputs.metrics, outputs.steps)
            for picture in outputs.pictures:
                run.log_picture(picture)
            run.log_model(outputs.model)
    for other in folder.models.iterdir():
        if other != model:
            shutil.rmtree(other)  # under an earlier name: `models/` must not depend on earlier runs
    note_finished(key, folder, run.id, outputs.files)
    trained = _trained(job, run.id)
    job.progress.finish(f"{trained.headline}; model in {folder.relative(trained.model)}")
    return trained


def _trained(job: Job, run_id: str) -> Trained:
    metrics = json.loads(job.folder.metrics.read_bytes())
    split = next(split for split in ("validation", "test", "train") if f"{split}/micro_f1" in metrics)
    return Trained(run_id, metrics, job.folder.models / job.config.register_.name, split)
