"""``python -m benchmarks.write_shards.run``: raw patches to shards, ours and others.

The same patches for all, page cache warm, two cores, every writer in a process tree of its own, rounds of all of them
in turn. Times are those of the work: starting Python and importing packages is left out on all sides.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.contest import (
    COPY,
    STREAMING,
    Contestant,
    keep,
    peer,
    run_once,
    run_rounds,
    say,
    started,
    summarise,
    versions_of,
    warm,
)
from benchmarks.peers.contestant import versions
from benchmarks.peers.sample import write_list
from benchmarks.write_shards.patches import pairs

HERE = Path(__file__).parent
READ = "benchmarks.write_shards.patches:read"


def main() -> None:
    """Measure and keep the figures in result.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patches", type=int, default=4000)
    parser.add_argument("--slow", type=int, default=400, help="patches for the slow way; its rate is what counts")
    parser.add_argument("--small", type=int, default=1000, help="patches of the first measurement of memory")
    parser.add_argument("--large", type=int, default=10000, help="patches of the second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=None, help="where to work; 6 GB are needed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch, prefix="bench-write-") as scratch:
        keep(HERE / "result.json", run(Path(scratch), options))


def run(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All figures. The archive grows from step to step, so that every patch is made once."""
    raw = scratch / "raw"
    hardware = started(scratch)
    _grow(raw, options.small)
    ours = _ours(raw, options.small)
    memory = [_memory(ours, scratch)]
    _grow(raw, options.patches)
    write_list(scratch / "list", pairs(raw))
    contestants = _contestants(raw, scratch / "list", options)
    runs = run_rounds(contestants, scratch, options.rounds)
    _grow(raw, options.large)
    memory.append(_memory(replace(ours, samples=options.large), scratch))
    return {
        "machine": hardware,
        "versions": {".venv": versions()} | versions_of(contestants, runs),
        "rows": summarise(contestants, runs),
        "memory": memory,
    }


def _contestants(raw: Path, listed: Path, options: argparse.Namespace) -> list[Contestant]:
    def writer(name: str, function: str, checks: str, **others: Any) -> Contestant:
        return peer(name, function, READ, listed, options.patches, checks, **others)

    old = Contestant(
        "BigEarthNet's own way",
        "benchmarks.write_shards.bigearthnet_scripts",
        (str(raw), str(options.slow)),
        options.slow,
        "CRC-32C a record",
        role="old",
    )
    return [
        _ours(raw, options.patches),
        old,
        writer("plain TensorFlow", "tensorflow_records:write", "CRC-32C a record"),
        writer("tensorflow-datasets", "tfds:write", "CRC-32C a record"),
        writer("array_record", "array_record:write", "HighwayHash a chunk"),
        writer("array_record, uncompressed", "array_record:write_uncompressed", "HighwayHash a chunk"),
        writer("webdataset", "webdataset:write", "none"),
        writer("mosaicml-streaming", "mds:write", "none", environment=STREAMING, merge="mds:merge"),
        writer("reading and decoding alone", "files:only_read", "none", role="floor"),
        writer(COPY, "files:copy", "none", role="floor"),
        writer(f"{COPY} durably", "files:copy_durably", "fsync", role="floor"),
    ]


def _ours(raw: Path, patches: int) -> Contestant:
    write = ("shard", "hash")
    return Contestant(
        "shardtrail",
        "benchmarks.write_shards.ours",
        (str(raw),),
        patches,
        "CRC-32C a record, md5, fsync",
        role="ours",
        environment=".venv",
        rows={
            "shardtrail": write,
            "shardtrail, then every byte read back": (*write, "verify"),
            "shardtrail, every pixel checked before, too": ("download", "validate", *write, "verify"),
        },
        output="data/shards/*",
    )


def _grow(raw: Path, patches: int) -> None:
    from shardtrail.sample_data import make_sample_data

    say(f"making {patches:,} patches")
    make_sample_data(raw, samples=patches, seed=1, broken=0)
    warm(raw)


def _memory(ours: Contestant, scratch: Path) -> dict[str, int]:
    taken = run_once(ours, scratch / "out").measured
    say(f"memory at {ours.samples:,} patches: {taken.peak_mib:.0f} MiB, {taken.worker_mib:.0f} the largest worker")
    return {
        "samples": ours.samples,
        "peak_mib": round(taken.peak_mib),
        "largest_mib": round(taken.largest_mib),
        "worker_mib": round(taken.worker_mib),
    }


if __name__ == "__main__":
    main()
