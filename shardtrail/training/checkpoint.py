"""Checkpoints: all that decides how a run goes on, in one ``.npz`` that appears whole or not at all."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from shardtrail.files import write_atomic


@dataclass(frozen=True, slots=True)
class Epoch:
    """Figures of one finished epoch: mean losses a sample, and the micro F1 of the evaluated split."""

    train_loss: float
    loss: float
    micro_f1: float


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run is.

    Attributes:
        epoch: the current one, from 0.
        step: steps of it that are done.
        loss_sum: sum of the samples' losses over these steps.
        history: the finished epochs.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    history: tuple[Epoch, ...] = ()


def save(path: Path, position: Position, variables: Sequence[Any]) -> None:
    """Write a checkpoint of variables (model's and optimizer's) in place of the last one."""
    arrays: dict[str, Any] = {f"variable_{number}": np.asarray(variable) for number, variable in enumerate(variables)}
    arrays["position"] = np.array([position.epoch, position.step], np.int64)
    arrays["loss_sum"] = np.array(position.loss_sum, np.float64)
    arrays["history"] = np.array([astuple(epoch) for epoch in position.history], np.float64).reshape(-1, 3)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_atomic(path, buffer.getvalue())


def load(path: Path, variables: Sequence[Any]) -> Position | None:
    """Set variables to those of a checkpoint, all or none.

    Returns:
        Where the run was; None without a checkpoint of exactly these variables.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            values = [stored[f"variable_{number}"] for number in range(len(variables))]
            epoch, step = stored["position"].tolist()
            loss_sum, history = float(stored["loss_sum"]), stored["history"].tolist()
    except (FileNotFoundError, KeyError, ValueError, EOFError, BadZipFile):
        return None
    if [value.shape for value in values] != [tuple(variable.shape) for variable in variables]:
        return None
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return Position(epoch, step, loss_sum, tuple(Epoch(*row) for row in history))
