"""``python -m benchmarks.write_shards.run``: raw patches to verified shards, beside BigEarthNet's own way.

Same patches, page cache warm for both, each in a process of its own, one after the other in one run. Times are those
of the work: starting Python and importing packages is left out on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

from benchmarks.measure import Measured, measure
from benchmarks.write_shards import bigearthnet_scripts, data

HERE = Path(__file__).parent


def main() -> None:
    """Measure, print a table, keep the figures in result.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patches", type=int, default=4000)
    parser.add_argument("--theirs", type=int, default=400, help="patches for the slow way; its rate is what counts")
    parser.add_argument("--scratch", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        rows = run(Path(scratch), options.patches, options.theirs)
    theirs = rows[0]["patches_per_second"]
    print(
        f"{'writer':38} {'patches':>8} {'s':>7} {'patches/s':>10} {'ratio':>6} {'peak MiB':>9} {'largest process':>16}"
    )
    for row in rows:
        print(
            f"{row['writer']:38} {row['patches']:8} {row['seconds']:7.1f} {row['patches_per_second']:10.0f} "
            f"{row['patches_per_second'] / theirs:6.1f} {row['peak_mib']:9.0f} {row['largest_process_mib']:16.0f}"
        )
    (HERE / "result.json").write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


def run(scratch: Path, patches: int, theirs: int) -> list[dict[str, float | str]]:
    """The rows of the table; the first is what the others are compared with."""
    data.make(scratch / "small", theirs)
    data.make(scratch / "raw", patches)
    _warm(scratch)
    slow = measure("benchmarks.write_shards.bigearthnet_scripts", str(scratch / "small"), str(scratch / "theirs"))
    rows = [_row(bigearthnet_scripts.LABEL, theirs, json.loads(slow.output)["seconds"], slow)]
    fast = measure("benchmarks.write_shards.ours", str(scratch / "raw"), str(scratch / "ours"))
    seconds = json.loads(fast.output)
    if seconds["records"] != patches:
        raise SystemExit(f"{seconds['records']} records of {patches} patches")
    write = seconds["shard"] + seconds["hash"]
    rows.append(_row("shardtrail, write", patches, write, fast))
    rows.append(_row("shardtrail, write and read back", patches, write + seconds["verify"], fast))
    stages = sum(seconds[name] for name in ("download", "validate", "shard", "hash", "verify"))
    rows.append(_row("shardtrail, every pixel checked before", patches, stages, fast))
    shutil.rmtree(scratch / "ours")
    return rows


def _row(writer: str, patches: int, seconds: float, measured: Measured) -> dict[str, float | str]:
    return {
        "writer": writer,
        "patches": patches,
        "seconds": round(seconds, 2),
        "patches_per_second": round(patches / seconds, 1),
        "peak_mib": round(measured.peak_mib),
        "largest_process_mib": round(measured.largest_mib),
    }


def _warm(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            path.read_bytes()


def machine() -> dict[str, str | int]:
    """What the figures were measured on."""
    packages = ("numpy", "imagecodecs", "tensorflow", "rasterio", "shardtrail")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


if __name__ == "__main__":
    main()
