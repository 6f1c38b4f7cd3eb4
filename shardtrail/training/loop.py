"""The training loop: one for every strategy.

A global batch is computed in micro-batches. Their gradients are summed in pairs, in a fixed order, within a replica
and then over replicas, before one update: so the weights do not depend on how the micro-batches are dealt out (bit
for bit for one or two replicas; for more, equal numbers of replicas give equal bits). TensorFlow's own kernels divide
their work by the number of cores, so bits are those of a kind of machine.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from shardtrail.config import TrainParams
from shardtrail.errors import StageFailed
from shardtrail.progress import Progress
from shardtrail.reading.files import ShardFiles, naming_damage
from shardtrail.reading.order import Lane, plan_epoch, steps_per_epoch
from shardtrail.reading.pipeline import Batch, Parser, global_batches
from shardtrail.training import checkpoint
from shardtrail.training.checkpoint import Epoch, Position

Log = Callable[[Mapping[str, float], int], None]


@dataclass(frozen=True)
class Task:
    """What is trained on what.

    Attributes:
        model: built under the strategy's scope; {band: [n, ...]} -> logits [n, classes].
        files: shards of the train split.
        parser: reads the bands that the model takes.
        params: section ``train``.
        validate: (loss, micro F1) of the model on the split that is looked at after each epoch.
    """

    model: keras.Model
    files: ShardFiles
    parser: Parser
    params: TrainParams
    validate: Callable[[], tuple[float, float]]

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return steps_per_epoch(sum(self.files.records), self.params.batch_size, self.params.micro_batches)

    def lanes(self, epoch: int) -> tuple[Lane, ...]:
        """The order of an epoch."""
        return plan_epoch(self.files.records, seed=self.params.seed, epoch=epoch, lanes=self.params.micro_batches)

    def batches(self, lanes: Sequence[Lane], start: int, replicas: int) -> tf.data.Dataset:
        """Global batches of an epoch from step ``start`` on, in one element a replica."""
        micro_batch = self.params.batch_size // self.params.micro_batches
        return global_batches(
            self.files, lanes, self.parser, micro_batch=micro_batch, steps=self.steps, start=start, replicas=replicas
        )


def fit(
    task: Task, strategy: tf.distribute.Strategy, path: Path, *, resume: Path | None, progress: Progress, log: Log
) -> tuple[Epoch, ...]:
    """Train ``task.model`` to the end of the last epoch, from the last checkpoint if there is one.

    Args:
        task: what to train.
        strategy: where; the model was built under its scope.
        path: the checkpoint to keep.
        resume: the checkpoint to begin from, if not ``path``.
        progress: told of every step.
        log: gets ``train/loss`` and ``train/learning_rate`` by step, and figures of each epoch.

    Returns:
        The figures of every epoch.

    Raises:
        StageFailed: a loss or gradient is not finite; names the step and its samples.
        ShardError: a shard is damaged.
        SystemExit, KeyboardInterrupt: on SIGTERM and Ctrl-C, after a checkpoint.
    """
    params, steps = task.params, task.steps
    with strategy.scope():
        optimizer = make_optimizer(params, steps * params.epochs)
        optimizer.build(task.model.trainable_variables)
        variables = [*task.model.variables, *optimizer.variables]
        position = checkpoint.load(resume or path, variables) or Position()
    step = make_step(strategy, task.model, optimizer)

    done = position.epoch * steps + position.step
    if done:
        progress.say(f"train: continues after step {done} of {steps * params.epochs}")
    _log_history(position, steps, log)
    progress.start("train", sum(task.files.records) * params.epochs - _seen(task, position), "samples")
    with _stop_signals() as stop:
        while position.epoch < params.epochs:
            lanes = task.lanes(position.epoch)
            for batch in _distributed(task, strategy, lanes, position.step):
                loss, finite = (value.numpy() for value in step(batch))
                if not finite:
                    raise _not_finite(task, position, float(loss))
                position, samples = _advance(task, position, lanes, float(loss))
                done = position.epoch * steps + position.step
                progress.advance(samples, f"step {done} / {steps * params.epochs}, loss {loss:.4f}")
                if done % _log_every(steps * params.epochs) == 0:
                    log({"train/loss": float(loss), "train/learning_rate": float(optimizer.learning_rate)}, done)
                if stop.signal or (done % params.checkpoint_steps == 0 and position.step < steps):
                    checkpoint.save(path, position, variables)
                stop.leave(f"train: stopped after step {done}, which is kept; run again to go on", progress)
            position = _end_epoch(task, position)
            checkpoint.save(path, position, variables)
            _log_epoch(position, steps, log)
    return position.history


def make_optimizer(params: TrainParams, steps: int) -> keras.optimizers.Optimizer:
    """AdamW whose learning rate falls along a half cosine over all steps, after a short rise from zero.

    Biases and the scales of normalisation are not decayed. Source: Loshchilov and Hutter, Decoupled Weight Decay
    Regularization (2019).
    """
    warmup = min(20, steps // 10)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0 if warmup else params.learning_rate,
        max(steps - warmup, 1),
        warmup_target=params.learning_rate if warmup else None,
        warmup_steps=warmup,
    )
    optimizer = keras.optimizers.AdamW(rate, weight_decay=params.weight_decay)
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma"])
    return optimizer


def make_step(
    strategy: tf.distribute.Strategy, model: keras.Model, optimizer: keras.optimizers.Optimizer
) -> Callable[[Batch], tuple[tf.Tensor, tf.Tensor]]:
    """One update from one global batch.

    Returns:
        A function of a distributed ``Batch`` of [micro-batches a replica, n, ...] to the mean loss a sample before
        the update, and whether it and all gradients were finite.
    """
    variables = model.trainable_variables
    values = [variable.value for variable in variables]
    add = tf.distribute.ReduceOp.SUM

    def micro_batch(batch: Batch, samples: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = model(batch.bands, training=True)
            entropy = tf.nn.sigmoid_cross_entropy_with_logits(batch.labels, tf.cast(logits, tf.float32))
            loss = tf.reduce_sum(batch.weight * tf.reduce_mean(entropy, axis=1)) / samples
        return [loss, *tape.gradient(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)]

    def replica(batch: Batch, samples: tf.Tensor) -> list[tf.Tensor]:
        number = batch.weight.shape[0]
        parts = [tf.nest.map_structure(lambda value, i=i: value[i], batch) for i in range(number)]
        return sum_in_pairs([micro_batch(part, samples) for part in parts])

    @tf.function  # type: ignore[untyped-decorator]
    def step(batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        counted = strategy.run(lambda part: tf.reduce_sum(part.weight), (batch,))
        samples = strategy.reduce(add, counted, axis=None)
        loss, *gradients = strategy.run(replica, (batch, samples))
        loss = strategy.reduce(add, loss, axis=None)
        gradients = strategy.extended.batch_reduce_to(add, list(zip(gradients, values, strict=True)))
        # Outside any replica, where Keras does not sum over them a second time.
        optimizer.apply(gradients, variables)
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in [loss, *gradients]])
        return loss, finite

    apply: Callable[[Batch], tuple[tf.Tensor, tf.Tensor]] = step
    return apply


def sum_in_pairs(parts: list[list[Any]]) -> list[Any]:
    """The sum of lists of tensors, element by element: neighbours first, so that any even division adds alike."""
    while len(parts) > 1:
        pairs = [
            [a + b for a, b in zip(left, right, strict=True)]
            for left, right in zip(parts[::2], parts[1::2], strict=False)
        ]
        parts = pairs + parts[2 * len(pairs) :]
    return parts[0]


def _distributed(task: Task, strategy: tf.distribute.Strategy, lanes: Sequence[Lane], start: int) -> Iterator[Any]:
    def feed(context: tf.distribute.InputContext) -> tf.data.Dataset:
        share = len(lanes) // context.num_input_pipelines
        mine = lanes[context.input_pipeline_id * share : (context.input_pipeline_id + 1) * share]
        replicas = strategy.num_replicas_in_sync // context.num_input_pipelines
        # Strings cannot be copied to a GPU.
        return task.batches(mine, start, replicas).map(lambda batch: batch._replace(sample_id=()))

    with naming_damage(task.files):
        yield from strategy.distribute_datasets_from_function(feed)


def _advance(task: Task, position: Position, lanes: Sequence[Lane], loss: float) -> tuple[Position, int]:
    """The position after one more step, and the samples of that step."""
    samples = _samples(task, lanes, position.step + 1) - _samples(task, lanes, position.step)
    total = position.loss_sum + loss * samples
    return Position(position.epoch, position.step + 1, total, position.history), samples


def _end_epoch(task: Task, position: Position) -> Position:
    loss, micro_f1 = task.validate()
    epoch = Epoch(position.loss_sum / sum(task.files.records), loss, micro_f1)
    return Position(position.epoch + 1, history=(*position.history, epoch))


def _samples(task: Task, lanes: Sequence[Lane], steps: int) -> int:
    """Samples of the first ``steps`` steps of an epoch."""
    return sum(min(len(lane), steps * (task.params.batch_size // task.params.micro_batches)) for lane in lanes)


def _seen(task: Task, position: Position) -> int:
    whole = position.epoch * sum(task.files.records)
    return whole + (_samples(task, task.lanes(position.epoch), position.step) if position.step else 0)


def _log_every(steps: int) -> int:
    """About a thousand points of a curve are enough, however long the run."""
    return max(1, steps // 1000)


def _log_history(position: Position, steps: int, log: Log) -> None:
    """A continued run may be another run on the tracking server: the epochs before belong to it too."""
    for number in range(len(position.history)):
        _log_epoch(Position(number + 1, history=position.history[: number + 1]), steps, log)


def _log_epoch(position: Position, steps: int, log: Log) -> None:
    last = position.history[-1]
    figures = {"epoch/train_loss": last.train_loss, "epoch/loss": last.loss, "epoch/micro_f1": last.micro_f1}
    log(figures, position.epoch * steps)


def _not_finite(task: Task, position: Position, loss: float) -> StageFailed:
    """The step is read once more, now with the samples' names."""
    lanes = task.lanes(position.epoch)
    batch = next(iter(task.batches(lanes, position.step, 1)))
    names = [name.decode() for name in batch.sample_id.numpy().ravel() if name]
    step = position.epoch * task.steps + position.step + 1
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    what = "gradients are not finite" if math.isfinite(loss) else f"the loss is {loss}"
    return StageFailed(
        "train",
        [(f"step {step} (epoch {position.epoch + 1})", f"{what}; samples {shown}")],
        "Look at these samples (shardtrail inspect), or lower train.learning_rate; the last checkpoint is kept.",
    )


@dataclass
class _Stop:
    """A signal that asks to stop, obeyed between two steps."""

    signal: int = 0

    def leave(self, message: str, progress: Progress) -> None:
        """Raise what the signal asks for, if there was one."""
        if self.signal:
            progress.say(message)
            if self.signal == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + self.signal)


@contextlib.contextmanager
def _stop_signals() -> Iterator[_Stop]:
    """Note SIGTERM and Ctrl-C instead of dying of them; a second one acts at once."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Python allows handlers in the main thread alone
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def note(number: int, _frame: Any) -> None:
        stop.signal = number
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        restore()
