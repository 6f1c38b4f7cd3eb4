"""Multi-label metrics, beside those of the best predictor that never looks at the image.

Without TensorFlow: plain functions on arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardtrail.dataset import Dataset

Floats = npt.NDArray[np.floating[Any]]
Bools = npt.NDArray[np.bool_]

THRESHOLD = 0.5
"""A class counts as predicted from this score on."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """What a model says of a split.

    Attributes:
        labels: [samples, classes] bool.
        logits: [samples, classes] float32.
    """

    labels: Bools
    logits: Floats

    @property
    def scores(self) -> Floats:
        """[samples, classes] float64 in 0..1: the sigmoid of the logits."""
        logits = self.logits.astype(np.float64)
        low = np.exp(-np.abs(logits))
        scores: Floats = np.where(logits >= 0, 1.0, low) / (1 + low)
        return scores

    @property
    def chosen(self) -> Bools:
        """[samples, classes] bool: scores at or above ``THRESHOLD``."""
        return self.scores >= THRESHOLD

    @property
    def loss(self) -> float:
        """Mean binary cross-entropy over samples and classes."""
        logits = self.logits.astype(np.float64)
        entropy = np.maximum(logits, 0) - logits * self.labels + np.log1p(np.exp(-np.abs(logits)))
        return float(entropy.mean())


def micro_f1(labels: Bools, chosen: Bools) -> float:
    """F1 over all (sample, class) pairs at once: ``2 TP / (2 TP + FP + FN)``; 0 when nothing is positive."""
    hits, total = int((labels & chosen).sum()), int(labels.sum() + chosen.sum())
    return 2 * hits / total if total else 0.0


def class_f1(labels: Bools, chosen: Bools) -> Floats:
    """[classes] F1 of each class; NaN for a class that no sample has."""
    hits, total = (labels & chosen).sum(0), labels.sum(0) + chosen.sum(0)
    return np.where(labels.any(0), 2 * hits / np.maximum(total, 1), np.nan)


def class_average_precision(labels: Bools, scores: Floats) -> Floats:
    """[classes] average precision of each class; NaN for a class that no sample has."""
    from sklearn.metrics import average_precision_score

    present = labels.any(0)
    result = np.full(labels.shape[1], np.nan)
    result[present] = [average_precision_score(labels[:, c], scores[:, c]) for c in np.flatnonzero(present)]
    return result


def constant_choice(frequencies: Floats) -> Bools:
    """[classes] bool: the one set of labels that, given to every sample, has the best micro F1.

    Such a set holds the most frequent classes; how many of them is tried out.

    Args:
        frequencies: [classes] share of the training samples that have each class.
    """
    ranking = np.argsort(-frequencies, kind="stable")
    sizes = np.arange(1, len(frequencies) + 1)
    scores = 2 * np.cumsum(frequencies[ranking]) / (sizes + frequencies.sum())
    chosen = np.zeros(len(frequencies), bool)
    chosen[ranking[: 1 + int(np.argmax(scores))]] = True
    return chosen


def summarise(predictions: Predictions, frequencies: Floats) -> dict[str, float]:
    """Metrics of a split; ``*_constant`` are those of the best predictor that ignores the image.

    Means over classes (``macro_f1``, ``mean_average_precision``) leave out classes that no sample of the split has;
    ``classes`` says how many are left.

    Args:
        predictions: of the split.
        frequencies: [classes] share of the *training* samples that have each class.
    """
    labels, shape = predictions.labels, predictions.labels.shape
    constant = np.broadcast_to(constant_choice(frequencies), shape)
    return {
        "samples": shape[0],
        "classes": int(labels.any(0).sum()),
        "loss": predictions.loss,
        "micro_f1": micro_f1(labels, predictions.chosen),
        "macro_f1": _mean(class_f1(labels, predictions.chosen)),
        "mean_average_precision": _mean(class_average_precision(labels, predictions.scores)),
        "micro_f1_constant": micro_f1(labels, constant),
        "macro_f1_constant": _mean(class_f1(labels, constant)),
        "mean_average_precision_constant": _mean(class_average_precision(labels, np.broadcast_to(frequencies, shape))),
    }


def train_frequencies(dataset: Dataset) -> Floats:
    """[classes] share of the training samples that have each class, in the vocabulary's order."""
    counts = dataset.classes["train"]
    samples = sum(shard.records for shard in dataset.of_split("train"))
    return np.array([counts.get(name, 0) for name in dataset.schema.vocabulary], np.float64) / samples


def _mean(values: Floats) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0
