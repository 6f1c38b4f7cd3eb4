"""One run from a dataset to a model with its metrics and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from shardtrail.dataset import Dataset, schema_to_json
from shardtrail.errors import ConfigError
from shardtrail.files import to_json, write_atomic
from shardtrail.job import Job
from shardtrail.models import build_model
from shardtrail.reading.files import ShardFiles, naming_damage, shard_files
from shardtrail.reading.pipeline import Parser, make_parser, plan_order_batches
from shardtrail.training.export import export_model
from shardtrail.training.identity import RunKey
from shardtrail.training.loop import Log, Task, fit
from shardtrail.training.metrics import THRESHOLD, Predictions, micro_f1, summarise, train_frequencies
from shardtrail.training.plots import draw_classes, draw_learning_curves, write_learning_table


@dataclass(frozen=True)
class Outputs:
    """What a run leaves in the working folder.

    Attributes:
        metrics: as in ``metrics.json``: ``<split>/<metric>`` -> value.
        steps: updates that were made in all.
        model: folder of the model.
        pictures: the plots.
        files: every file, pictures included.
    """

    metrics: Mapping[str, float]
    steps: int
    model: Path
    pictures: tuple[Path, ...]
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Prepared:
    """A run that can begin: its model fits the dataset, its shards are there."""

    job: Job
    dataset: Dataset
    strategy: tf.distribute.Strategy
    model: keras.Model
    parser: Parser
    files: Mapping[str, ShardFiles]
    evaluated: tuple[str, ...]


def prepare(job: Job, dataset: Dataset, shards: Path, strategy: tf.distribute.Strategy) -> Prepared:
    """Build the model and check that all it needs is there; ``shards`` is the folder to read from.

    Raises:
        ConfigError: no training samples, or the model does not fit the dataset.
        ShardError: shards are missing or of another size.
    """
    if "train" not in dataset.splits:
        raise ConfigError("data/dataset.json has no training samples; see validate.split in params.yaml")
    evaluated = tuple(split for split in ("validation", "test") if split in dataset.splits) or ("train",)
    if evaluated == ("train",):
        job.progress.say("train: no validation or test samples, so metrics are of the training samples themselves")
    files = shard_files(dataset, shards, sorted({"train", *evaluated}))
    keras.backend.clear_session()
    keras.utils.set_random_seed(job.config.train.seed % 2**32)
    with strategy.scope():
        model = build_model(job.config.train.model, dataset.schema, dataset.bands)
    return Prepared(job, dataset, strategy, model, make_parser(dataset, list(model.input)), files, evaluated)


def run_training(prepared: Prepared, key: RunKey, log: Log) -> Outputs:
    """Train, evaluate and write ``models/<name>/``, ``metrics.json`` and ``plots/``.

    Raises:
        ShardError: a shard is damaged.
        StageFailed: the training diverged.
    """
    job, dataset, model, files = prepared.job, prepared.dataset, prepared.model, prepared.files
    folder, params = job.folder, job.config.train
    predict = Predictor(model, prepared.parser, params.batch_size)
    split = prepared.evaluated[0]

    def validate() -> tuple[float, float]:
        predictions = predict(files[split])
        return predictions.loss, micro_f1(predictions.labels, predictions.chosen)

    task = Task(model, files["train"], prepared.parser, params, validate)
    checkpoint, resume = key.checkpoint(folder), key.resumable(folder)
    history = fit(task, prepared.strategy, checkpoint, resume=resume, progress=job.progress, log=log)

    frequencies = train_frequencies(dataset)
    predictions = {name: predict(files[name]) for name in prepared.evaluated}
    metrics: dict[str, float] = {"train/loss": history[-1].train_loss}
    for name, of_split in predictions.items():
        metrics |= {f"{name}/{metric}": value for metric, value in summarise(of_split, frequencies).items()}
    model_folder = folder.models / job.config.register_.name
    export_model(model, model_folder, _description(job, dataset, model))
    write_atomic(folder.metrics, to_json(metrics))

    curves, classes, table = (folder.plots / name for name in ("learning_curves.png", "classes.png", "learning.csv"))
    draw_learning_curves(history, split, metrics[f"{split}/micro_f1_constant"], curves)
    draw_classes(predictions[split], dataset.schema.vocabulary, split, classes)
    write_learning_table(history, table)
    stored = (model_folder / "model.keras", model_folder / "model.json", folder.metrics, curves, classes, table)
    return Outputs(metrics, task.steps * params.epochs, model_folder, (curves, classes), stored)


class Predictor:
    """Runs a model over splits on one device, in plan order."""

    def __init__(self, model: keras.Model, parser: Parser, size: int) -> None:
        self._parser = parser
        self._size = size
        self._logits = tf.function(lambda bands: model(bands, training=False))

    def __call__(self, files: ShardFiles) -> Predictions:
        """Labels and logits of every sample: 5 bytes a sample and class in memory."""
        labels, logits = [], []
        with naming_damage(files):
            for batch in plan_order_batches(files, self._parser, self._size):
                real = batch.weight.numpy() > 0
                labels.append(batch.labels.numpy()[real] > 0)
                logits.append(self._logits(batch.bands).numpy()[real])
        return Predictions(np.concatenate(labels), np.concatenate(logits))


def _description(job: Job, dataset: Dataset, model: keras.Model) -> dict[str, object]:
    """What a user of the model needs to know of it, and nothing that changes from one writing to the next."""
    return {
        "name": job.config.register_.name,
        "inputs": list(model.input),
        "threshold": THRESHOLD,
        "output": "logits; the sigmoid of a logit is the class's score",
        "schema": schema_to_json(dataset.schema),
        "dataset": dataset.digest,
        "train": job.config.train.model_dump(mode="json"),
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
    }
