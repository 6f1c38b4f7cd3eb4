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
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, machine
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
        result = _measure(scratch, options.shards, options.failures) | {"machine": machine(scratch)}
    finally:
        if options.scratch is None:
            shutil.rmtree(scratch, ignore_errors=True)
    result = {"shards": options.shards, "failures": options.failures} | result
    text = json.dumps(result, indent=1)
    print(text)
    (Path(__file__).parent / "result.json").write_text(text + "\n")


def _measure(scratch: Path, shards: int, failures: int) -> dict[str, Any]:
    _say(f"{shards * SAMPLES} files")
    make(scratch / "raw", shards * SAMPLES)
    code = scratch / "code"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(code)], check=True)
    local = _folder(scratch / "local", scratch / "raw", code)
    _say("a build without Prefect")
    seconds = json.loads(_python(local, code, "benchmarks.orchestration.local"))
    digest = _digest(local)
    failed = _failed(scratch, code, failures, digest, seconds)
    killed = _killed(scratch, code, failures, digest)
    return {"seconds without Prefect": seconds, "failed, then retried": failed, "killed, then retried": killed}


def _failed(scratch: Path, code: Path, failures: int, digest: str, local: dict[str, float]) -> dict[str, Any]:
    """37 shards fail; the retry writes them and no other."""
    folder = _folder(scratch / "failed", scratch / "raw", code)
    with served(folder, code) as server:
        run = server.start()
        _say("a build on Prefect, raw files vanish")
        with _vanished(folder, scratch, failures) as lost:
            result = _ended_with(server, run, 1, folder, code, lost)
        runs = server.task_runs(run)
        named = sum(_units(one["name"]) for one in runs if one["name"].startswith("shard "))
        shard = next(one for one in runs if one["name"] == "shard")
        overhead = shard["total_run_time"] - local["shard"]
        result |= {
            "task runs recorded": len(runs),
            "by stage": by_stage(runs),
            "shards in the recorded task runs": named,
            "seconds of the shard stage": round(shard["total_run_time"], 1),
            "orchestration seconds": round(overhead, 1),
            "orchestration share": round(overhead / local["shard"], 4),
        }
        return result | _retried(server, run, 2, folder, code, digest)


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
            began = time.monotonic()
            state, _ = server.ended(run, 1, 600)
            shown = time.monotonic() - began
        missing = planned - len(_written(folder))
        result = {"ended": state, "seconds until the server said so": round(shown, 1), "shards missing": missing}
        return result | _retried(server, run, 2, folder, code, digest)


def _ended_with(server: Served, run: str, attempt: int, folder: Path, code: Path, lost: set[str]) -> dict[str, Any]:
    state, message = server.ended(run, attempt)
    status = json.loads(_python(folder, code, "flows.cli", "status", "--json"))
    failed = {one["shard"] for one in status["failed"]}
    return {
        "ended": state,
        "named by the run's state": sum(address in message for address in lost),
        "named by status": len(failed & lost) if failed == lost else f"{len(failed)}, not {len(lost)}",
        "written": len(_written(folder)),
    }


def _retried(server: Served, run: str, attempt: int, folder: Path, code: Path, digest: str) -> dict[str, Any]:
    """The files are back; the code of writer and tasks is other than it was."""
    before = _written(folder)
    for edited in ("shardtrail/sharding/write.py", "tasks/mapping.py"):
        with (code / edited).open("a") as file:
            file.write(f"# edited before attempt {attempt}\n")
    _say("files are back, code is edited; retried")
    server.retry(run)
    state, message = server.ended(run, attempt)
    after = _written(folder)
    if state != "COMPLETED":
        raise SystemExit(message)
    return {
        "written by the retry": len(after.keys() - before.keys()),
        "written again by the retry": sum(after[name] != inode for name, inode in before.items()),
        "digest as without Prefect": _digest(folder) == digest,
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
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    main()
