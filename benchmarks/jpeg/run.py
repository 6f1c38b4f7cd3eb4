"""``python -m benchmarks.jpeg.run``: photographs to shards byte for byte, ours and others, as in ``write_shards``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.contest import (
    COPY,
    STREAMING,
    Contestant,
    keep,
    peer,
    run_rounds,
    say,
    started,
    summarise,
    versions_of,
    warm,
)
from benchmarks.jpeg.photos import make, photographs
from benchmarks.peers.contestant import versions
from benchmarks.peers.sample import write_list

HERE = Path(__file__).parent


def main() -> None:
    """Measure and keep the figures in result.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photographs", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=None, help="where to work; 8 GB are needed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch, prefix="bench-jpeg-") as scratch:
        keep(HERE / "result.json", run(Path(scratch), options.photographs, options.rounds))


def run(scratch: Path, count: int, rounds: int) -> dict[str, Any]:
    """All figures."""
    raw, listed = scratch / "raw", scratch / "list"
    hardware = started(scratch)
    say(f"making {count:,} photographs")
    make(raw, count)
    write_list(listed, photographs(raw))
    warm(raw)

    def writer(name: str, function: str, checks: str, **others: Any) -> Contestant:
        return peer(name, function, "benchmarks.jpeg.photos:read", listed, count, checks, **others)

    ours = Contestant(
        "shardtrail",
        "benchmarks.jpeg.ours",
        (str(raw),),
        count,
        "CRC-32C a record, md5, fsync",
        role="ours",
        environment=".venv",
        rows={"shardtrail": ("shard", "hash")},
        output="data/shards/*",
    )
    contestants = [
        ours,
        writer("plain TensorFlow", "tensorflow_records:write", "CRC-32C a record"),
        writer("tensorflow-datasets", "tfds:write", "CRC-32C a record"),
        writer("array_record", "array_record:write", "HighwayHash a chunk"),
        writer("array_record, uncompressed", "array_record:write_uncompressed", "HighwayHash a chunk"),
        writer("webdataset", "webdataset:write", "none"),
        writer("mosaicml-streaming", "mds:write", "none", environment=STREAMING, merge="mds:merge"),
        writer(COPY, "files:copy", "none", role="floor"),
        writer(f"{COPY} durably", "files:copy_durably", "fsync", role="floor"),
    ]
    runs = run_rounds(contestants, scratch, rounds)
    return {
        "machine": hardware,
        "versions": {".venv": versions()} | versions_of(contestants, runs),
        "rows": summarise(contestants, runs),
    }


if __name__ == "__main__":
    main()
