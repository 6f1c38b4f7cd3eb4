"""``python -m benchmarks.quiet_night.run``: what a night costs on which nothing, or next to nothing, changed.

A tree of hard links to a few hundred tiny files is built once. Then, in fresh processes and in turn: ``find`` over the
same tree, the four stages, the whole command. Then the stages once more under ``strace``, which tells what they opened.
Last, some samples are added.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.contest import keep, say, started
from benchmarks.measure import Measured, measure_command
from benchmarks.quiet_night.tree import add_samples, make_tree

HERE = Path(__file__).parent

_SETTLED = 3
"""Seconds after which a file's time stamp tells any later change; see ``shardtrail.stat_cache.GRAIN_NS``."""

_PARAMS = """\
source: {raw}
layout: benchmarks.quiet_night.layout:Folders
custom: {{files: {files}}}
shard: {{target_samples: {target}}}
"""

_FIND = r"""exec find "$0" -printf '%s %T@\n' > /dev/null"""

_OPENED = re.compile(r'\b(?:open|openat|creat)\((?:[^,"]*, )?"(?P<path>[^"]*)"(?:, (?P<flags>[A-Z_|0-9]+))?')


def main() -> None:
    """Measure and keep the figures in result.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=500_000)
    parser.add_argument("--files", type=int, default=16, help="files a sample")
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--added", type=int, default=100, help="samples added in the last night")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=None, help="where to work; 8 million files need 7 GB and ext4")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch, prefix="bench-quiet-night-") as scratch:
        keep(HERE / "result.json", run(Path(scratch), options))


def run(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    hardware = started(scratch)
    raw, root = scratch / "raw", scratch / "work"
    say(f"linking {options.samples * options.files:,} files")
    make_tree(raw, scratch / "contents", options.samples, options.files)
    root.mkdir()
    target = options.samples // options.shards
    (root / "params.yaml").write_text(_PARAMS.format(raw=raw, files=options.files, target=target))
    time.sleep(_SETTLED)
    stages = [sys.executable, "-m", "benchmarks.quiet_night.stages", str(root)]
    rows = [_row("first build", [_measured("first build", stages)])]
    return {
        "machine": hardware,
        "versions": {".venv": {name: version(name) for name in ("numpy", "pyarrow", "prefect")}},
        "samples": options.samples,
        "files": options.samples * options.files,
        **_nights(raw, root, options, rows),
    }


def _nights(raw: Path, root: Path, options: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What is measured once everything is built."""
    stages = [sys.executable, "-m", "benchmarks.quiet_night.stages", str(root)]
    commands = {
        "find": ["sh", "-c", _FIND, str(raw)],
        "quiet night, stages": stages,
        "quiet night, command": [sys.executable, "-m", "flows.cli", "-C", str(root), "run", "--until", "hash"],
    }
    before = _stamps(root / "data")
    runs: dict[str, list[Measured]] = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            runs[name].append(_measured(name, command))
    opened = _opened(stages, root / "trace", raw, root / "data")
    changed = sum(before.get(path) != stamp for path, stamp in _stamps(root / "data").items())
    rows += [_row(name, some) for name, some in runs.items()]
    add_samples(raw, options.samples, options.added, options.files)
    time.sleep(_SETTLED)
    name = f"{options.added} samples added"
    rows.append(_row(name, [_measured(name, stages)]))
    shards = sum(1 for _ in (root / "data" / "shards").glob("*.tfrecord"))
    return {"shards": shards, "rows": rows, "quiet": {"opened": opened, "changed_in_data": changed}}


def _measured(name: str, command: list[str]) -> Measured:
    found = measure_command(command)
    took = f"{found.seconds:.1f} s, {found.processor_seconds:.1f} s of processor"
    say(f"{name}: {took}, {found.largest_mib:.0f} MiB {found.output.splitlines()[-1:]}")
    return found


def _row(name: str, runs: list[Measured]) -> dict[str, Any]:
    last = runs[-1].output.splitlines()[-1:]
    return {
        "night": name,
        "seconds": [round(run.seconds, 2) for run in runs],
        "processor_seconds": [round(run.processor_seconds, 2) for run in runs],
        "largest_mib": round(max(run.largest_mib for run in runs)),
        "peak_mib": round(max(run.peak_mib for run in runs)),
        **(json.loads(last[0]) if last and last[0].startswith('{"stages"') else {}),
    }


def _opened(command: list[str], trace: Path, raw: Path, data: Path) -> dict[str, int]:
    """What a command opened, by kind: folders and files of the raw tree, shards, files in ``data`` for writing."""
    measure_command(["strace", "-f", "--seccomp-bpf", "-e", "trace=open,openat,creat", "-o", str(trace), *command])
    counts = Counter(dict.fromkeys(("raw folders", "raw files", "shards and indexes", "written in data"), 0))
    counts.update(_kinds(trace, raw, data))
    trace.unlink()
    return dict(counts)


def _kinds(trace: Path, raw: Path, data: Path) -> Iterator[str]:
    with trace.open(errors="backslashreplace") as lines:
        for line in lines:
            if not (match := _OPENED.search(line)):
                continue
            path, flags = Path(match["path"]), match["flags"] or ""
            if path.is_relative_to(raw):
                yield "raw folders" if "O_DIRECTORY" in flags else "raw files"
            elif path.suffix in (".tfrecord", ".index"):
                yield "shards and indexes"
            if path.is_relative_to(data) and re.search("O_WRONLY|O_RDWR|O_CREAT", flags):
                yield "written in data"


def _stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Size, time and inode of everything in a folder."""
    found = {str(path): path.lstat() for path in folder.rglob("*")}
    return {name: (stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in found.items()}


if __name__ == "__main__":
    main()
