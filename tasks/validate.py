"""Good samples into the manifest, bad ones into quarantine."""

from __future__ import annotations

from prefect.artifacts import create_table_artifact

from shardtrail.job import Job
from shardtrail.stages import validate as stage
from tasks.stage import run_stage


def validate(job: Job) -> stage.Books:
    """Check what is new or changed; verdicts are kept as they come, so repeating is cheap."""
    books = run_stage("validate", lambda: stage.validate(job))
    create_table_artifact(
        [
            {
                "seen": books.seen,
                "accepted": books.accepted,
                "quarantined": books.quarantined,
                "excluded": books.excluded,
            }
        ],
        key="books",
        description="seen = accepted + quarantined + excluded; reasons stand in data/quarantine.csv",
    )
    return books
