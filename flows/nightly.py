"""What runs at night: rebuild, then train where the dataset is new."""

from __future__ import annotations

from prefect import flow

from flows.rebuild import rebuild
from flows.train import train


@flow(name="nightly", persist_result=False)
def nightly(folder: str = ".") -> str:
    """Rebuild the dataset, then train on it; a dataset and parameters that were trained on already cost nothing."""
    rebuild(folder)
    return train(folder)
