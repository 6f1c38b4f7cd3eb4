"""Writers of the same samples beside each other: rounds of all of them in turn, medians, one result.json."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measure import Measured, machine, measure

PEERS = ".venv-peers"
STREAMING = ".venv-peers-streaming"

COPY = "copying the raw files"
"""The writer that is the floor."""


BUSY_PERCENT = 10
"""Other work that takes more of the machine than this makes noise of the figures."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One writer.

    Attributes:
        name: as in the table.
        module: run as ``python -m module arguments OUT``; prints JSON with ``records`` and seconds.
        arguments: before the folder to write to.
        samples: how many it has to write.
        checks: what it does against damage, in a word or two.
        role: ``ours``, ``peer``, ``old`` (the slow way that others are compared with) or ``floor``.
        environment: its virtual environment.
        rows: name of each row -> keys of the JSON whose seconds are added up; several rows may come of one run.
        output: glob of what counts as written, below OUT.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    samples: int
    checks: str
    role: str = "peer"
    environment: str = PEERS
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    output: str = "**/*"


@dataclass(frozen=True, slots=True)
class Run:
    """One contestant's run: what it printed, and what it took."""

    printed: Mapping[str, Any]
    measured: Measured
    written: int
    """Bytes."""


def peer(name: str, writer: str, question: str, listed: Path, samples: int, checks: str, **others: Any) -> Contestant:
    """A writer of ``benchmarks.peers`` that runs in two processes.

    Args:
        writer: ``module:function`` below ``benchmarks.peers``.
        question: ``package.module:function`` that reads a sample.
        listed: the list of samples.
        others: further attributes; ``merge`` names a function that makes one data set of the parts.
    """
    merge = others.pop("merge", "")
    arguments = (f"benchmarks.peers.{writer}", question, str(listed))
    arguments = (*(("--merge", f"benchmarks.peers.{merge}") if merge else ()), *arguments)
    return Contestant(name, "benchmarks.peers.contestant", arguments, samples, checks, **others)


def run_rounds(contestants: Sequence[Contestant], scratch: Path, rounds: int) -> dict[str, list[Run]]:
    """Every contestant once in each round, so that a noisy minute falls on all.

    Raises:
        SystemExit: one wrote another number of records than it was given.
    """
    runs: dict[str, list[Run]] = {contestant.name: [] for contestant in contestants}
    total = rounds * len(contestants)
    for number in range(total):
        contestant = contestants[number % len(contestants)]
        run = run_once(contestant, scratch / "out")
        runs[contestant.name].append(run)
        row, seconds = next(iter(_seconds(contestant, run).items()))
        speed = contestant.samples / seconds
        say(f"[{number + 1}/{total}] {row}: {contestant.samples:,} in {seconds:.1f} s, {speed:,.0f}/s")
    return runs


def run_once(contestant: Contestant, out: Path) -> Run:
    """Run it into an empty folder, which is gone afterwards. Nothing is left to write back when it starts."""
    out.mkdir()
    os.sync()
    try:
        measured = measure(contestant.module, *contestant.arguments, str(out), environment=contestant.environment)
        written = sum(path.stat().st_size for path in out.glob(contestant.output) if path.is_file())
    finally:
        shutil.rmtree(out)
    printed = json.loads(measured.output.splitlines()[-1])
    if printed["records"] != contestant.samples:
        raise SystemExit(f"{contestant.name}: {printed['records']} records of {contestant.samples} samples")
    return Run(printed, measured, written)


def summarise(contestants: Sequence[Contestant], runs: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """The rows of the table: medians over the rounds, in the contestants' order."""
    rows = [row for contestant in contestants for row in _rows(contestant, runs[contestant.name])]
    speeds = {
        "old": [row["per_second"] for row in rows if row["role"] == "old"],
        "best_peer": [row["per_second"] for row in rows if row["role"] == "peer"],
        "copy": [row["per_second"] for row in rows if row["writer"] == COPY],
    }
    for row in rows:
        row["ratio"] = {to: round(row["per_second"] / max(found), 3) for to, found in speeds.items() if found}
    return rows


def _rows(contestant: Contestant, runs: Sequence[Run]) -> list[dict[str, Any]]:
    rows = []
    for name in _seconds(contestant, runs[0]):
        seconds = [_seconds(contestant, run)[name] for run in runs]
        rows.append(
            {
                "writer": name,
                "role": contestant.role,
                "checks": contestant.checks,
                "samples": contestant.samples,
                "seconds": [round(value, 4) for value in seconds],
                "per_second": round(contestant.samples / statistics.median(seconds), 1),
                "peak_mib": round(statistics.median(run.measured.peak_mib for run in runs)),
                "largest_mib": round(statistics.median(run.measured.largest_mib for run in runs)),
                "worker_mib": round(statistics.median(run.measured.worker_mib for run in runs)),
                "bytes_per_sample": round(runs[0].written / contestant.samples),
            }
        )
    return rows


def _seconds(contestant: Contestant, run: Run) -> dict[str, float]:
    rows = contestant.rows or {contestant.name: ("seconds",)}
    return {name: sum(run.printed[key] for key in keys) for name, keys in rows.items()}


def versions_of(contestants: Sequence[Contestant], runs: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, str]]:
    """Packages of each environment."""
    return {
        contestant.environment: runs[contestant.name][0].printed["versions"]
        for contestant in contestants
        if "versions" in runs[contestant.name][0].printed
    }


def warm(root: Path) -> None:
    """Read every file, so that the page cache is the same for all."""
    for folder, _, names in os.walk(root):
        for name in names:
            Path(folder, name).read_bytes()


def started(scratch: Path) -> dict[str, Any]:
    """The machine, and how busy others keep it: percent of all cores over three seconds, near 0 on a quiet one."""
    found = machine(scratch) | {"busy_percent": round(psutil.cpu_percent(3))}
    if found["busy_percent"] > BUSY_PERCENT:
        say(f"other work takes {found['busy_percent']} % of the machine: the figures will be noise")
    return found


def say(text: str) -> None:
    """Progress goes to standard error, at once."""
    print(text, file=sys.stderr, flush=True)


def keep(path: Path, result: Mapping[str, Any]) -> None:
    """Write result.json."""
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    say(f"kept in {path}; the page: python -m benchmarks.tables")
