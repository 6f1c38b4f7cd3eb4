"""What Prefect costs a build of 10,000 shards, and whether a retry does what failed and nothing else.

    python -m benchmarks.orchestration.run --shards 10000 --failures 37

One build without Prefect gives the time to compare with. Then, on a real server and a clone of this repository:
raw files of some shards vanish after validation, the build fails, the files come back, the writer's code is edited,
and the run is retried as its Retry button does. And once more with the run killed in the middle.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.contest import keep, say, started
from benchmarks.measure import ROOT
from benchmarks.orchestration.layout import make
from benchmarks.orchestration.server import Served, by_stage, served, wait_for

LAYOUT = "benchmarks.orchestration.layout:Tiny"
SAMPLES = 4
"""Of a shard."""


def main() -> None:
    """Run it all; print, and keep result.json."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.orchestration.run")
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--failures", type=int, default=37)
    parser.add_argument("--scratch", type=Path, help="an empty folder; a temporary one by default")
    options = parser.parse_args()
    scratch = options.scratch or Path(tempfile.mkdtemp(prefix="orchestration-"))
    try:
        result = {
            "machine": started(scratch),
            "versions": {".venv": {name: version(name) for name in ("prefect", "sqlalchemy")}},
            "shards": options.shards,
            "failures": options.failures,
            **_measure(scratch, options.shards, options.failures),
        }
    finally:
        if options.scratch is None:
            shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps(result, indent=1))
    keep(Path(__file__).parent / "result.json", result)


def _measure(scratch: Path, shards: int, failures: int) -> dict[str, Any]:
    _say(f"{shards * SAMPLES} files")
    make(scratch / "raw", shards * SAMPLES)
    code = scratch / "code"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(code)], check=True)
    local = _folder(scratch / "local", scratch / "raw", code)
    _say("a build without Prefect")
    seconds = json.loads(_python(local, code, "benchmarks.orchestration.local"))
    digest = _digest(local)
    return {
        "seconds_without": {stage: round(value, 1) for stage, value in seconds.items()},
        "failed": _failed(scratch, code, failures, digest),
        "killed": _killed(scratch, code, failures, digest),
    }


def _failed(scratch: Path, code: Path, failures: int, digest: str) -> dict[str, Any]:
    """Some shards fail; the retry writes them and no other."""
    folder = _folder(scratch / "failed", scratch / "raw", code)
    with served(folder, code) as server:
        run = server.start()
        _say("a build on Prefect, raw files vanish")
        with _vanished(folder, scratch, failures) as lost:
            state, message = server.ended(run, 1)
        status = json.loads(_python(folder, code, "flows.cli", "status", "--json"))
        runs = server.task_runs(run)
        in_runs = sum(_units(one["name"]) for one in runs if one["name"].startswith("shard "))
        result = {
            "ended": state,
            "missing": len(_planned(folder)) - len(_written(folder)),
            "named_by_state": sum(address in message for address in lost),
            "named_by_status": len(lost.intersection(one["shard"] for one in status["failed"])),
            "task_runs": len(runs),
            "task_runs_by_stage": by_stage(runs),
            "shards_in_task_runs": in_runs,
            "shard_seconds": round(next(one["total_run_time"] for one in runs if one["name"] == "shard"), 1),
        }
        return result | _retried(server, run, folder, code, digest)


def _killed(scratch: Path, code: Path, failures: int, digest: str) -> dict[str, Any]:
    """Killed with half of the shards written; the retry writes the other half."""
    folder = _folder(scratch / "killed", scratch / "raw", code)
    with served(folder, code) as server:
        run = server.start()
        _say("a build on Prefect, raw files vanish, killed in the middle")
        with _vanished(folder, scratch, failures):
            planned = len(_planned(folder))
            wait_for(lambda: len(_written(folder)) >= planned // 2, 3600)
            server.kill()
            state, _ = server.ended(run, 1, 600)
        result = {"ended": state, "missing": planned - len(_written(folder))}
        return result | _retried(server, run, folder, code, digest)


def _retried(server: Served, run: str, folder: Path, code: Path, digest: str) -> dict[str, Any]:
    """The files are back; the code of writer and tasks is other than it was."""
    before = _written(folder)
    for edited in ("shardtrail/sharding/write.py", "tasks/mapping.py"):
        with (code / edited).open("a") as file:
            file.write("# edited before the retry\n")
    _say("files are back, code is edited; retried")
    server.retry(run)
    state, message = server.ended(run, 2)
    after = _written(folder)
    if state != "COMPLETED":
        raise SystemExit(message)
    return {
        "written_by_retry": len(after.keys() - before.keys()),
        "written_again": sum(after.get(name) != inode for name, inode in before.items()),
        "same_digest": _digest(folder) == digest,
    }


@contextmanager
def _vanished(folder: Path, scratch: Path, failures: int) -> Iterator[set[str]]:
    """When all is planned, a raw file each of some shards of the last half goes; it comes back in the end."""
    wait_for(lambda: (folder / "data" / "plan.parquet").exists(), 3600)
    planned = _planned(folder)
    chosen = random.Random(37).sample(sorted(planned)[len(planned) // 2 :], failures)
    moved = []
    for address in chosen:
        sample = planned[address]
        path = scratch / "raw" / f"{int(sample[-8:]) // 1000:05d}" / f"{sample}.bin"
        moved.append((path.rename(scratch / path.name), path))
    yield set(chosen)
    for aside, path in moved:
        aside.rename(path)


def _planned(folder: Path) -> dict[str, str]:
    """Address -> a sample of every shard."""
    from shardtrail.manifest import read_table

    plan = read_table(folder / "data" / "plan.parquet").select(["address", "sample_id"]).to_pydict()
    return dict(zip(plan["address"], plan["sample_id"], strict=True))


def _folder(root: Path, raw: Path, code: Path) -> Path:
    _python(code, code, "flows.cli", "init", str(root), "--source", str(raw), "--layout", LAYOUT)
    params = root / "params.yaml"
    text = params.read_text().replace("target_samples: null ", f"target_samples: {SAMPLES} ")
    params.write_text(text.replace("cut: stable ", "cut: exact  "))
    return root


def _python(place: Path, code: Path, module: str, *arguments: str) -> str:
    """What ``python -m module`` of that checkout prints, run in ``place``; its exit status is its caller's to judge."""
    command = [sys.executable, "-m", module, *arguments]
    variables = os.environ | {"PYTHONPATH": str(code)}
    done = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    return done.stdout


def _written(folder: Path) -> dict[str, int]:
    """Inode of every shard: one that is written again has another."""
    shards = folder / "data" / "shards"
    shards.mkdir(parents=True, exist_ok=True)
    with os.scandir(shards) as entries:
        return {entry.name: entry.inode() for entry in entries if entry.name.endswith(".tfrecord")}


def _digest(folder: Path) -> str:
    digest: str = json.loads((folder / "data" / "dataset.json").read_text())["digest"]
    return digest


def _units(name: str) -> int:
    """Shards of a task run, from its name: ``shard A to B (34)`` or ``shard A``."""
    return int(name.rpartition("(")[2].rstrip(")")) if name.endswith(")") else 1


def _say(text: str) -> None:
    say(f"{time.strftime('%H:%M:%S')} {text}")


if __name__ == "__main__":
    main()
