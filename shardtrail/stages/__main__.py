"""``python -m shardtrail.stages STAGE``: one stage in the current folder, with a plain pool and no Prefect.

This is what ``dvc.yaml`` runs: what is recorded is reproduced, news in the raw tree are refused.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from shardtrail.errors import ConfigError, PipelineError
from shardtrail.execution import open_mapper
from shardtrail.job import open_job
from shardtrail.progress import Lines
from shardtrail.stages import STAGES


def main(arguments: Sequence[str]) -> int:
    """Run the named stage; 0: done, 1: the work failed, 2: usage or configuration."""
    parser = argparse.ArgumentParser("python -m shardtrail.stages", description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--encoding-version", type=int, help="the version of the records' encoding that is expected")
    options = parser.parse_args(arguments)
    stage: str = options.stage
    try:
        _check_encoding(options.encoding_version)
        job = open_job(Path.cwd(), progress=Lines())
        module, _, function = STAGES[stage].partition(":")
        with open_mapper(job) as mapper:
            getattr(importlib.import_module(module), function)(dataclasses.replace(job, mapper=mapper, reproduce=True))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except (PipelineError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{stage}: interrupted; what is done is kept", file=sys.stderr)
        return 1
    return 0


def _check_encoding(expected: int | None) -> None:
    """``dvc.yaml`` names the encoding's version, so that DVC sees a new one as a change of the stage."""
    if expected is None:
        return
    from shardtrail.records.example import ENCODING_VERSION

    if expected != ENCODING_VERSION:
        raise ConfigError(
            f"dvc.yaml was made for encoding version {expected}, this shardtrail writes {ENCODING_VERSION}; "
            "remake it: shardtrail init . (parameters are kept)"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
