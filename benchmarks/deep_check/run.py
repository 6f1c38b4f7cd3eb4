"""``python -m benchmarks.deep_check.run``: what one core checks of shards in a second, beside other readers.

Shards of our writer in the page cache, every reader in a process of its own on one core, rounds of all of them in turn.
Time is processor time, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.contest import keep, say, started, warm
from benchmarks.deep_check.readers import shards
from benchmarks.measure import measure

HERE = Path(__file__).parent

READERS = (  # name in the table, function in readers.py, role, what it would notice
    ("shardtrail, `verify --deep`", "ours", "ours", "every byte, sample, feature, index and book"),
    ("`md5sum`", "md5sum", "peer", "any other byte, but not where"),
    ("TensorFlow, records counted", "tensorflow_count", "peer", "CRCs; stops at the first"),
    ("TensorFlow, records parsed", "tensorflow_parse", "peer", "CRCs, features; stops at the first"),
    ("tfrecord package", "tfrecord_package", "peer", "what cannot be parsed"),
    ("reading alone", "read", "part", ""),
    ("reading, and md5", "md5", "part", ""),
    ("CRC-32C alone", "crc", "part", ""),
    ("features alone", "features", "part", ""),
)


def main() -> None:
    """Measure and keep the figures in result.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patches", type=int, default=4000, help="4,000 are 1.1 GB of shards")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=None, help="where to work; 3 GB are needed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch, prefix="bench-deep-check-") as scratch:
        keep(HERE / "result.json", run(Path(scratch), options.patches, options.rounds))


def run(scratch: Path, patches: int, rounds: int) -> dict[str, Any]:
    """All figures."""
    root, hardware = scratch / "work", started(scratch)
    records = _build(scratch / "raw", root, patches)
    warm(root / "data" / "shards")
    size = sum(path.stat().st_size for path in shards(root))
    seconds: dict[str, list[float]] = {name: [] for name, *_ in READERS}
    for number in range(rounds):
        for name, function, *_ in READERS:
            printed = json.loads(measure("benchmarks.deep_check.readers", function, str(root)).output.splitlines()[-1])
            if printed["records"] not in (0, records):
                raise SystemExit(f"{name}: {printed['records']} records of {records}")
            seconds[name].append(round(printed["seconds"], 3))
            say(f"[{number + 1}/{rounds}] {name}: {size / printed['seconds'] / 1e9:.2f} GB/s")
    return {
        "machine": hardware,
        "versions": {".venv": {name: version(name) for name in ("google-crc32c", "tensorflow", "tfrecord")}},
        "bytes": size,
        "records": records,
        "rows": [_row(name, role, notices, seconds[name], size) for name, _, role, notices in READERS],
    }


def _build(raw: Path, root: Path, patches: int) -> int:
    """Raw patches and shards of them; how many records."""
    from benchmarks.write_shards.ours import write
    from shardtrail.sample_data import make_sample_data

    say(f"making {patches:,} patches and their shards")
    make_sample_data(raw, samples=patches, seed=1, broken=0)
    root.mkdir()
    return int(write(raw, root)["records"])


def _row(name: str, role: str, notices: str, seconds: list[float], size: int) -> dict[str, Any]:
    speed = size / statistics.median(seconds) / 1e9
    return {"reader": name, "role": role, "notices": notices, "seconds": seconds, "gb_per_second": round(speed, 3)}


if __name__ == "__main__":
    main()
