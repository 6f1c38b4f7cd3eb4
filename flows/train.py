"""Dataset -> trained, registered, recorded model."""

from __future__ import annotations

from prefect import flow

from shardtrail.record import MODEL_STAGES
from tasks.record import record
from tasks.register import register
from tasks.stage import opened
from tasks.train import train as train_model


@flow(name="train", persist_result=False)
def train(folder: str = ".", until: str = "record") -> str:
    """Train on the dataset as it is and register the model; what was done already is not done again.

    Args:
        folder: the working folder.
        until: the last step to take: ``train``, ``register`` or ``record``.

    Returns:
        ``name/version`` of the registered model; empty when it did not come that far.
    """
    job = opened(folder)
    train_model(job)
    if until == "train":
        return ""
    registration = register(job)
    if until == "record":
        record(job, MODEL_STAGES)
    return f"{registration.name}/{registration.version}"
