"""``shardtrail run``: the flows, in this process, against a Prefect server that is up or started for it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from flows import show
from flows.console import progress
from flows.server import prefect_api
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
    registered = ""
    folder = Folder(root.resolve())
    # Prefect's log goes to its server; the terminal shows our progress and one summary.
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
    with prefect_api(folder):
        from flows.rebuild import rebuild
        from tasks.stage import full_check, terminal

        terminal.set(progress())
        full_check.set(full)
        try:
            last = until if until in _DATA and until != "hash" else "record"
            digest = _outcome(rebuild(str(folder.root), last, only, return_state=True))
            if digest and until not in _DATA:
                from flows.train import train

                registered = _outcome(
                    train(str(folder.root), "train" if until == "train" else "record", return_state=True)
                )
        finally:
            _deliver()
    show.summary(open_job(folder.root), registered, time.monotonic() - began)


def _outcome(state: Any) -> Any:
    """The flow's result, or the error that made it fail."""
    return state.result()


def _deliver() -> None:
    """Send what Prefect still holds back before its server goes: it would try for a minute, then complain."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogHandler

    APILogHandler().flush()
    EventsWorker.drain_all(timeout=10)
