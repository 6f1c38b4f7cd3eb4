"""``python -m flows.serve [-C DIR]``: the deployments ``rebuild``, ``train`` and ``nightly``, until Ctrl-C.

Uses the Prefect server that ``PREFECT_API_URL`` names; where it names none, one is started over the working
folder's own database. Every run is a process of its own that imports the flow anew.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from flows.server import prefect_api
from shardtrail.config import Config, load_config
from shardtrail.folder import Folder


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m flows.serve", description=__doc__)
    parser.add_argument("-C", "--folder", type=Path, default=Path(), help="the working folder")
    parser.add_argument("--port", type=int, default=0, help="of the server that is started; 0 picks a free one")
    arguments = parser.parse_args()
    folder = Folder(arguments.folder.resolve())
    config = load_config(folder.params)
    with prefect_api(folder, port=arguments.port) as address:
        print(f"Prefect: {address.removesuffix('/api')} (Ctrl-C ends it)", flush=True)
        _serve(folder, config)


def _serve(folder: Folder, config: Config) -> None:
    from prefect import serve
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.client.schemas.schedules import CronSchedule
    from prefect.deployments.runner import EntrypointType

    from flows.nightly import nightly
    from flows.rebuild import rebuild
    from flows.train import train

    os.environ["PYTHONUNBUFFERED"] = "1"
    one = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)
    night = CronSchedule(cron=config.schedule.cron, timezone=config.schedule.timezone)
    parameters = {"folder": str(folder.root)}
    module = EntrypointType.MODULE_PATH
    serve(
        rebuild.to_deployment("rebuild", parameters=parameters, concurrency_limit=one, entrypoint_type=module),
        train.to_deployment("train", parameters=parameters, concurrency_limit=one, entrypoint_type=module),
        nightly.to_deployment(
            "nightly", parameters=parameters, concurrency_limit=one, entrypoint_type=module, schedules=[night]
        ),
    )


if __name__ == "__main__":
    main()
