"""``python -m benchmarks.encodings.run [RAW]``: what each encoding costs in bytes and in processor time.

RAW is a folder in BigEarthNet's layout; without one, patches are made up, whose noise compresses otherwise than pixels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.contest import keep, say, started
from benchmarks.encodings.one import GZIP
from benchmarks.measure import measure
from shardtrail.files import write_atomic
from shardtrail.init import params_text
from shardtrail.job import open_job
from shardtrail.records.example import ENCODINGS

HERE = Path(__file__).parent

BATCH = 32


def main() -> None:
    """Measure and keep the figures in result.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("raw", type=Path, nargs="?", help="real patches; default: 200 made-up ones")
    parser.add_argument("--batches", type=int, default=30, help=f"of {BATCH} records, the patches taken in turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=None, help="where to work; 1 GB is needed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch, prefix="bench-encodings-") as scratch:
        keep(HERE / "result.json", run(Path(scratch), options.raw, BATCH * options.batches, options.rounds))


def run(scratch: Path, raw: Path | None, records: int, rounds: int) -> dict[str, Any]:
    """All figures."""
    hardware = started(scratch)
    work = scratch / "work"
    samples = _validated(work, (raw or _made_up(scratch / "raw")).resolve())
    names = (*ENCODINGS, GZIP)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            with tempfile.TemporaryDirectory(dir=scratch) as out:
                printed = measure("benchmarks.encodings.one", name, str(work), str(records), out).output
            runs[name].append(json.loads(printed.splitlines()[-1]))
            say(f"[{number + 1}/{rounds}] {name}: {runs[name][-1]}")
    return {
        "machine": hardware,
        "versions": {".venv": {name: version(name) for name in ("imagecodecs", "numpy", "tensorflow")}},
        "source": "real patches" if raw else "made-up patches",
        "samples": samples,
        "records": records,
        "rows": [_row(name, runs[name], records) for name in names],
    }


def _made_up(raw: Path) -> Path:
    from shardtrail.sample_data import make_sample_data

    make_sample_data(raw, samples=200, seed=1, broken=0)
    return raw


def _validated(work: Path, raw: Path) -> int:
    """A working folder with a manifest; how many samples."""
    from shardtrail.stages.download import download
    from shardtrail.stages.validate import validate

    write_atomic(work / "params.yaml", params_text(str(raw), "bigearthnet").encode())
    job = open_job(work)
    download(job)
    return validate(job).accepted


def _row(name: str, runs: list[dict[str, float]], records: int) -> dict[str, Any]:
    row: dict[str, Any] = {"encoding": name, "bytes_per_sample": round(runs[0]["bytes"] / records)}
    for what in ("write", "read"):
        seconds = [run[what] for run in runs]
        row[f"{what}_seconds"] = [round(value, 3) for value in seconds]
        row[f"{what}_per_second"] = round(records / statistics.median(seconds))
    return row


if __name__ == "__main__":
    main()
