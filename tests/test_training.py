"""Training: the same weights however it is run, interrupted or repeated; metrics that mean what they say."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import f1_score
from tiny_dataset import write_dataset
from tracked_folder import build, make_folder

from shardtrail.config import Config, RegisterParams, TrainParams
from shardtrail.dataset import load_dataset
from shardtrail.errors import ConfigError, ShardError, StageFailed
from shardtrail.folder import Folder
from shardtrail.job import Job
from shardtrail.progress import Silent
from shardtrail.records.example import decode_example, encode_example
from shardtrail.records.framing import frame
from shardtrail.records.index import read_index
from shardtrail.records.scan import read_record
from shardtrail.stages.train import Trained, train
from shardtrail.training import checkpoint
from shardtrail.training.checkpoint import Epoch, Position
from shardtrail.training.devices import open_strategy
from shardtrail.training.identity import run_key
from shardtrail.training.loop import sum_in_pairs
from shardtrail.training.metrics import Predictions, class_f1, constant_choice, micro_f1, summarise
from shardtrail.training.run import Outputs, Predictor, prepare, run_training

PARAMS = {
    "batch_size": 16,
    "micro_batches": 2,
    "epochs": 3,
    "checkpoint_steps": 2,
    "model": "test_training:small_model",
}
SHARDS = {"train": [17, 5, 29], "validation": [9], "test": [5]}
STEPS = 4
"""Steps of an epoch: the longer of two lanes of 51 records has 26, in micro-batches of 8."""


def small_model(schema, bands):
    """Two convolutions and a group normalisation: quick to build."""
    import keras

    from shardtrail.models import Standardize

    features = {f.name: f for f in schema.features}
    names = [name for name in ("B02", "VV") if name in features]
    inputs = {n: keras.Input(features[n].shape, dtype=features[n].dtype, name=n) for n in names}
    parts = [Standardize(bands[n]["mean"], bands[n]["std"], name=f"{n}_std")(x) for n, x in inputs.items()]
    x = keras.layers.Concatenate(name="bands")(parts) if len(parts) > 1 else parts[0]
    x = keras.layers.Conv2D(8, 3, 2, activation="relu", name="conv_1")(x)
    x = keras.layers.GroupNormalization(2, name="norm")(x)
    x = keras.layers.GlobalAveragePooling2D(name="pool")(keras.layers.Conv2D(8, 3, name="conv_2")(x))
    return keras.Model(inputs, keras.layers.Dense(len(schema.vocabulary), name="logits")(x))


class Steps(Silent):
    """Counts steps and calls ``at`` after each."""

    def __init__(self, at: Callable[[int], None] = lambda step: None) -> None:
        self.done = 0
        self.lines: list[str] = []
        self.at = at

    def advance(self, done: int = 1, note: str = "") -> None:
        self.done += 1
        self.at(self.done)

    def say(self, line: str) -> None:
        self.lines.append(line)


def working_folder(root: Path, shards=SHARDS) -> Path:
    write_dataset(root, shards)
    return root


def train_here(root: Path, progress: Steps | None = None, log=lambda values, step: None, **params) -> Outputs:
    """Train without a tracking server in a working folder that ``write_dataset`` made."""
    job = job_of(root, progress, **params)
    dataset = load_dataset(job.folder.dataset)
    prepared = prepare(job, dataset, job.folder.shards, open_strategy(job.config.train))
    return run_training(prepared, run_key(dataset, job.config.train), log)


def job_of(root: Path, progress: Steps | None = None, **params) -> Job:
    config = Config(source="raw", train=TrainParams(**PARAMS | params))
    return Job(Folder(root), config, progress=progress or Steps())


def kill_at(step: int, number: signal.Signals) -> Steps:
    return Steps(lambda done: os.kill(os.getpid(), number) if done == step else None)


def contents(outputs: Outputs) -> list[bytes]:
    """What must be equal between two runs: everything but model.json, which names the strategy."""
    return [path.read_bytes() for path in outputs.files if path.name != "model.json"]


LOGGED: dict[str, dict[int, float]] = {}
"""What the unbroken run logged: values by name and step."""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Outputs:
    """An unbroken run on one device."""

    def log(values, step):
        for name, value in values.items():
            LOGGED.setdefault(name, {})[step] = value

    return train_here(working_folder(tmp_path_factory.mktemp("unbroken")), log=log)


MIRRORED = """
import signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_training import kill_at, train_here, working_folder

whole, killed = (working_folder(Path(path)) for path in sys.argv[2:])
train_here(whole, strategy="mirrored")
train_here(killed, kill_at(7, signal.SIGKILL), strategy="mirrored")
"""


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory) -> tuple[Path, Path]:
    """Two folders: one trained on two mirrored replicas, one where that was killed with -9 in mid-epoch."""
    folders = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("killed")
    tests = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", MIRRORED, str(tests), *map(str, folders)],
        capture_output=True,
        text=True,
        cwd=tests.parent,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return folders


def test_replicas_give_the_weights_of_one_device(unbroken, mirrored):
    """Two mirrored replicas give the model, metrics and pictures of one device, byte for byte."""
    for path in unbroken.files:
        if path.name != "model.json":
            relative = path.relative_to(unbroken.model.parents[1])
            assert (mirrored[0] / relative).read_bytes() == path.read_bytes(), relative


def test_a_killed_run_goes_on_where_it_was(unbroken, mirrored):
    """Killed with -9 on two replicas in mid-epoch and finished on one device: the bytes of an unbroken run."""
    progress = Steps()
    outputs = train_here(mirrored[1], progress)

    assert progress.done == PARAMS["epochs"] * STEPS - 6, "goes on from the checkpoint after step 6"
    assert contents(outputs) == contents(unbroken)


def test_a_stopped_run_keeps_its_last_step(unbroken, tmp_path):
    """SIGTERM ends the run after a checkpoint with the signal's exit status, and nothing is done twice."""
    working_folder(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        train_here(tmp_path, kill_at(3, signal.SIGTERM))
    progress = Steps()
    outputs = train_here(tmp_path, progress)

    assert stopped.value.code == 128 + signal.SIGTERM
    assert progress.done == PARAMS["epochs"] * STEPS - 3
    assert contents(outputs) == contents(unbroken)


def test_ctrl_c_keeps_the_last_step(tmp_path):
    """Ctrl-C between two checkpoints leaves one of the step that was just done."""
    working_folder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train_here(tmp_path, kill_at(1, signal.SIGINT))

    (path,) = (tmp_path / ".shardtrail/checkpoints").iterdir()
    assert np.load(path)["position"].tolist() == [0, 1]


def test_a_checkpoint_is_taken_whole_or_not_at_all(tmp_path):
    """A checkpoint sets every variable; one that cannot be read, or of other variables, sets none."""
    path = tmp_path / "checkpoint.npz"
    position = Position(2, 7, 0.1 + 0.2, (Epoch(1 / 3, 0.5, 0.25),))
    stored = [tf.Variable([1.0, 2.0]), tf.Variable(3)]
    checkpoint.save(path, position, stored)

    fresh = [tf.Variable([0.0, 0.0]), tf.Variable(0)]
    assert checkpoint.load(path, fresh) == position
    assert [value.numpy().tolist() for value in fresh] == [[1.0, 2.0], 3]

    others = [tf.Variable([0.0, 0.0]), tf.Variable([0, 0])]
    assert checkpoint.load(path, others) is None
    os.truncate(path, path.stat().st_size - 40)
    assert checkpoint.load(path, others) is None
    assert others[0].numpy().tolist() == [0.0, 0.0]


def test_metrics_are_logged_by_step(unbroken):
    """Loss and learning rate come once a step; figures of an epoch at its last step."""
    steps = list(range(1, PARAMS["epochs"] * STEPS + 1))

    assert list(LOGGED["train/loss"]) == list(LOGGED["train/learning_rate"]) == steps
    for name in ("epoch/loss", "epoch/train_loss", "epoch/micro_f1"):
        assert list(LOGGED[name]) == steps[STEPS - 1 :: STEPS]
    assert all(math.isfinite(value) for values in LOGGED.values() for value in values.values())
    assert LOGGED["epoch/loss"][steps[-1]] == unbroken.metrics["validation/loss"]


def test_metrics_json_is_flat_and_beside_the_constant_predictor(unbroken):
    """``metrics.json`` holds finite numbers by ``split/name``, and the model has learned more than frequencies."""
    metrics = json.loads((unbroken.model.parents[1] / "metrics.json").read_bytes())

    assert metrics == dict(unbroken.metrics)
    assert all(isinstance(value, (int, float)) and math.isfinite(value) for value in metrics.values())
    for split, samples in (("validation", 9), ("test", 5)):
        assert metrics[f"{split}/samples"] == samples
        assert metrics[f"{split}/classes"] == 3
        assert f"{split}/micro_f1_constant" in metrics
    assert metrics["validation/mean_average_precision"] > metrics["validation/mean_average_precision_constant"]


@pytest.mark.parametrize("samples", [1, 17])
def test_the_loss_is_the_mean_over_real_samples(tmp_path, samples):
    """Padding counts for nothing: the first loss is the untrained model's mean loss over every sample."""
    working_folder(tmp_path, {"train": [samples]})
    job = job_of(tmp_path)
    dataset = load_dataset(job.folder.dataset)
    prepared = prepare(job, dataset, job.folder.shards, open_strategy(job.config.train))
    expected = Predictor(prepared.model, prepared.parser, 4)(prepared.files["train"]).loss
    losses = []

    def log(values, step):
        losses.extend(value for name, value in values.items() if name == "epoch/train_loss")

    # So small a rate that later steps of the epoch see the same weights.
    train_here(tmp_path, log=log, epochs=1, learning_rate=1e-12)

    assert losses == pytest.approx([expected], rel=1e-5)


def test_without_validation_the_test_split_stands_in(tmp_path):
    """Metrics are of the splits there are; with the training samples alone that is said."""
    working_folder(tmp_path / "a", {"train": [6], "test": [4]})
    assert "test/micro_f1" in train_here(tmp_path / "a", epochs=1).metrics

    progress = Steps()
    working_folder(tmp_path / "b", {"train": [6]})
    assert "train/micro_f1" in train_here(tmp_path / "b", progress, epochs=1).metrics
    assert any("metrics are of the training samples" in line for line in progress.lines)


def test_no_training_samples_is_refused(tmp_path):
    """A dataset without a train split is refused with the section to look at."""
    with pytest.raises(ConfigError, match=r"no training samples; see validate\.split"):
        train_here(working_folder(tmp_path, {"validation": [4]}))


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    """Diverging training stops at the step that shows it, names its samples, and writes no model."""
    working_folder(tmp_path)
    with pytest.raises(StageFailed, match=r"step \d+ \(epoch \d\): .*(loss is|not finite).*samples s0\d\d, s0"):
        train_here(tmp_path, learning_rate=1e38)
    assert not (tmp_path / "models").exists()


def test_a_damaged_record_is_named(tmp_path):
    """A flipped byte under the same size is named by shard, record and byte with the command that mends it."""
    shard = write_dataset(tmp_path, SHARDS).shards[1]
    path = tmp_path / "data/shards" / shard.file
    content = bytearray(path.read_bytes())
    content[shard.bytes // 2] ^= 1
    path.write_bytes(content)

    with pytest.raises(ShardError, match=rf"{shard.file} \(train-00001\), record 2 of 5, byte \d+.*--only train-00001"):
        train_here(tmp_path)


def test_a_record_without_a_feature_is_named(tmp_path):
    """A record of the right size that lacks a feature is named by shard, record and feature, not trained on."""
    shard = write_dataset(tmp_path, SHARDS).shards[1]
    path = tmp_path / "data/shards" / shard.file
    offset, length = read_index(path.with_suffix(".index"))[2]
    features = decode_example(read_record(path, offset))
    features["B0x"] = features.pop("B02")
    content = bytearray(path.read_bytes())
    content[offset : offset + length] = b"".join(frame(encode_example(features)))
    path.write_bytes(content)
    assert path.stat().st_size == shard.bytes

    with pytest.raises(ShardError, match=rf"{shard.file} \(train-00001\), record 2 of 5, .* feature B02 is missing"):
        train_here(tmp_path)


def test_the_stage_trains_once(tmp_path, monkeypatch):
    """A finished run is returned; when an output is gone it is made again from the last checkpoint, byte for byte."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    job = make_folder(tmp_path)
    build(job)

    def run(name: str = "shardtrail") -> tuple[Trained, int]:
        progress = Steps()
        params = TrainParams(**PARAMS | {"epochs": 1, "batch_size": 8})
        config = job.config.model_copy(update={"train": params, "register_": RegisterParams(name=name)})
        return train(Job(job.folder, config, progress=progress)), progress.done

    first, steps = run()
    content = (first.model / "model.keras").read_bytes(), job.folder.metrics.read_bytes()
    assert steps == 3
    assert run() == (first, 0)

    job.folder.metrics.unlink()
    (first.model / "model.keras").unlink()
    again, steps = run()
    assert steps == 0
    assert ((again.model / "model.keras").read_bytes(), job.folder.metrics.read_bytes()) == content
    assert again.metrics == first.metrics
    assert "best constant prediction" in first.headline

    renamed, steps = run("other")
    assert steps == 0
    assert (renamed.model / "model.keras").exists()
    assert [path.name for path in job.folder.models.iterdir()] == ["other"]


def test_the_key_changes_with_what_decides_the_weights(tmp_path):
    """Dataset, seed and model code make another run; strategy and checkpoints are another place for the same work."""
    dataset = write_dataset(tmp_path / "a", SHARDS)
    other = write_dataset(tmp_path / "b", {"train": [3]})
    key = run_key(dataset, TrainParams())

    assert run_key(dataset, TrainParams(checkpoint_steps=7)) == key
    assert run_key(dataset, TrainParams(strategy="mirrored")).work == key.work
    assert run_key(dataset, TrainParams(strategy="mirrored")) != key
    works = {
        key.work,
        run_key(other, TrainParams()).work,
        run_key(dataset, TrainParams(seed=1)).work,
        run_key(dataset, TrainParams(model="test_training:small_model")).work,
    }
    assert len(works) == 4


def test_gradients_are_summed_in_pairs():
    """Neighbours first, so that halves added apart give the same bits."""
    parts = [[f"{i}"] for i in range(4)]

    class Term(str):
        def __add__(self, other):
            return Term(f"({self}+{other})")

    terms = [[Term(part[0])] for part in parts]
    assert sum_in_pairs(terms) == ["((0+1)+(2+3))"]
    assert sum_in_pairs(terms[:3]) == ["((0+1)+2)"]


labelled = st.tuples(st.integers(1, 12), st.integers(1, 5)).flatmap(
    lambda shape: st.tuples(hnp.arrays(bool, shape), hnp.arrays(np.float32, shape, elements=st.floats(-9, 9, width=32)))
)


@given(labelled)
def test_metrics_agree_with_scikit_learn_and_tensorflow(arrays):
    """F1 and loss are those of the usual libraries; classes without samples are left out; nothing is ever NaN."""
    labels, logits = arrays
    predictions = Predictions(labels, logits)
    present = labels.any(0)

    expected = f1_score(labels.ravel(), predictions.chosen.ravel(), zero_division=0)
    assert micro_f1(labels, predictions.chosen) == pytest.approx(expected)
    for c in np.flatnonzero(present):
        assert class_f1(labels, predictions.chosen)[c] == pytest.approx(
            f1_score(labels[:, c], predictions.chosen[:, c], zero_division=0)
        )
    entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels.astype(np.float32), logits)
    assert predictions.loss == pytest.approx(float(tf.reduce_mean(entropy)), rel=1e-4, abs=1e-6)
    summary = summarise(predictions, labels.mean(0))
    assert summary["classes"] == present.sum()
    assert all(math.isfinite(value) for value in summary.values())


@given(hnp.arrays(bool, st.tuples(st.integers(1, 10), st.integers(1, 5))))
def test_no_constant_prediction_beats_the_chosen_one(labels):
    """Of all sets of labels that could be given to every sample, the chosen one has the best micro F1."""

    def score(chosen) -> float:
        return micro_f1(labels, np.broadcast_to(np.array(chosen), labels.shape))

    best = max(score(chosen) for chosen in itertools.product([False, True], repeat=labels.shape[1]))
    assert score(constant_choice(labels.mean(0))) == pytest.approx(best)
