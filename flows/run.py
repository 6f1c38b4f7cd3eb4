"""``shardtrail run``: the flows, in this process, against a Prefect server that is up or started for it."""

from __future__ import annotations

import logging
import time
import warnings
from pathlib import Path
from typing import Any

from flows import show
from flows.console import progress
from flows.server import prefect_api, settle
from shardtrail.config import Config
from shardtrail.folder import Folder
from shardtrail.job import open_job

_DATA = ("download", "validate", "shard", "hash")


def run_pipeline(root: Path, config: Config, until: str, only: tuple[str, ...], full: bool) -> None:
    """Run the flows up to a stage and print what came of it.

    Raises:
        PipelineError: what made a flow fail.
    """
    began = time.monotonic()
    folder = Folder(root.resolve())
    with prefect_api(folder) as address:
        _hush()
        from flows.rebuild import rebuild
        from flows.train import train
        from tasks.stage import full_check, terminal

        terminal.set(progress())
        full_check.set(full)
        try:
            last = until if until in _DATA and until != "hash" else "record"
            digest = _outcome(rebuild(str(folder.root), last, only, return_state=True))
            if digest and until not in _DATA:
                _outcome(train(str(folder.root), "train" if until == "train" else "record", return_state=True))
        finally:
            settle(address)
    show.summary(open_job(folder.root), until, time.monotonic() - began)


def _outcome(state: Any) -> Any:
    """The flow's result, or the error that made it fail."""
    return state.result()


def _hush() -> None:
    """Prefect's own log goes to its server; the terminal shows our progress and one summary."""
    warnings.filterwarnings("ignore", module="prefect|pydantic|starlette")
    import prefect.main  # noqa: F401  (sets up its logging, which the next line turns down)

    logging.getLogger("prefect").setLevel(logging.INFO)
    for handler in logging.getLogger("prefect").handlers:
        if "Console" in type(handler).__name__:
            handler.setLevel(logging.CRITICAL)
