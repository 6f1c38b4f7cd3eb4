"""Pictures and the table of a run, drawn without a display; the same figures give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from shardtrail.files import write_atomic
from shardtrail.training.checkpoint import Epoch
from shardtrail.training.metrics import Predictions, class_average_precision, class_f1


def draw_learning_curves(history: Sequence[Epoch], split: str, constant_micro_f1: float, path: Path) -> None:
    """Losses and micro F1 after each epoch, beside the F1 of the best constant prediction."""
    epochs = range(1, len(history) + 1)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(epochs, [epoch.train_loss for epoch in history], marker=".", label="train")
    left.plot(epochs, [epoch.loss for epoch in history], marker=".", label=split)
    left.set(title="Binary cross-entropy", xlabel="epoch")
    right.plot(epochs, [epoch.micro_f1 for epoch in history], marker=".", color="C1", label=split)
    right.axhline(constant_micro_f1, color="grey", linestyle="--", label="best constant prediction")
    right.set(title="Micro F1", xlabel="epoch", ylim=(0, 1))
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()
    _save(figure, path)


def draw_classes(predictions: Predictions, vocabulary: Sequence[str], split: str, path: Path) -> None:
    """F1 and average precision of each class that the split has, with its number of samples."""
    support = predictions.labels.sum(0)
    present = np.flatnonzero(support).tolist()
    figure = Figure(figsize=(9, 1.5 + 0.32 * len(present)), layout="constrained")
    axes = figure.subplots()
    rows = np.arange(len(present))
    f1 = class_f1(predictions.labels, predictions.chosen)[present]
    precision = class_average_precision(predictions.labels, predictions.scores)[present]
    axes.barh(rows - 0.2, f1, 0.4, label="F1")
    axes.barh(rows + 0.2, precision, 0.4, label="average precision")
    axes.set_yticks(rows, [f"{_short(vocabulary[c])} ({support[c]})" for c in present], fontsize=8)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), title=f"Classes of {split} (samples)")
    figure.legend(loc="outside lower right", ncols=2)
    _save(figure, path)


def write_learning_table(history: Sequence[Epoch], path: Path) -> None:
    """The learning curves as CSV, for ``dvc plots``."""
    lines = [",".join(["epoch", *(field.name for field in fields(Epoch))])]
    lines += [",".join([str(number), *map(repr, astuple(epoch))]) for number, epoch in enumerate(history, start=1)]
    write_atomic(path, ("\n".join(lines) + "\n").encode())


def _short(name: str) -> str:
    return name if len(name) <= 40 else name[:39] + "…"


def _save(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    write_atomic(path, buffer.getvalue())
