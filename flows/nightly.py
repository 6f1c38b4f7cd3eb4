"""What runs at night: rebuild, then train where the dataset is new."""

from __future__ import annotations

from prefect import flow
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound

from flows.rebuild import rebuild
from flows.train import train


@flow(name="nightly", persist_result=False)
def nightly(folder: str = ".") -> None:
    """Rebuild the dataset, then train on it; a dataset and parameters that were trained on already cost nothing.

    Where the deployment ``train`` is served, the training is a run of its own: however long it takes, the next
    night's rebuild does not wait for it.
    """
    rebuild(folder)
    try:
        run_deployment("train/train", parameters={"folder": folder}, timeout=0, as_subflow=False)
    except ObjectNotFound:
        train(folder)
