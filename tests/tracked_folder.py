"""A working folder with tiny raw samples, built by the real stages through a layout of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardtrail.dataset import Dataset
from shardtrail.job import Job, open_job
from shardtrail.layouts import Assembly, Grouping
from shardtrail.samples import BandSums, Feature, Report, Sample, Schema, SourceFile, Unit
from shardtrail.stages.download import download
from shardtrail.stages.hash import hash_shards
from shardtrail.stages.shard import shard
from shardtrail.stages.validate import validate

PARAMS = """\
source: raw
layout: tracked_folder:Squares
validate:
  split: {by: sample, train: 0.7, validation: 0.3, test: 0}
shard:
  target_samples: 4
"""


class Squares:
    """``<id>/B02.bin``: 12 x 12 little-endian uint16; ``<id>/label.txt``: one label."""

    name = "squares"
    check_version = 1

    def __init__(self, options: Mapping[str, Any]) -> None:
        pass

    def group(self, files: Iterable[tuple[str, int]]) -> Grouping:
        units: dict[str, list[SourceFile]] = {}
        for path, size in files:
            role = "B02" if path.endswith("B02.bin") else "label"
            units.setdefault(path.partition("/")[0], []).append(SourceFile(role, path, size))
        return Grouping([Unit(key, "square", tuple(parts)) for key, parts in sorted(units.items())])

    def check(self, unit: Unit, contents: Mapping[str, bytes]) -> Report:
        values = np.frombuffer(contents[unit.files[0].path], "<u2").astype(np.int64)
        sums = BandSums(values.size, int(values.sum()), int((values**2).sum()), int(values.min()), int(values.max()))
        label = contents[unit.files[1].path].decode()
        return Report(unit.key, unit.kind, unit.files, facts={"label": label}, sums={"B02": sums})

    def assemble(self, reports: Iterable[Report], raw: Path, tables: Sequence[str]) -> Assembly:
        samples = [
            Sample(report.unit, report.files, (report.facts["label"],), units=(report.unit,)) for report in reports
        ]
        return Assembly(samples, [])

    def schema(self) -> Schema:
        return Schema((Feature("B02", "uint16", (12, 12)),), (), ("dark", "light"))

    def decode(self, files: Sequence[SourceFile], contents: Sequence[bytes]) -> dict[str, np.ndarray]:
        return {"B02": np.frombuffer(contents[0], "<u2").reshape(12, 12)}


def write_square(raw: Path, number: int, seed: int = 0) -> None:
    """Raw files of sample ``number``; another seed gives other pixels."""
    folder = raw / f"square-{number:03}"
    folder.mkdir(parents=True, exist_ok=True)
    light = number % 2
    pixels = np.random.default_rng([number, seed]).integers(1, 1000, (12, 12)) + 5000 * light
    (folder / "B02.bin").write_bytes(pixels.astype("<u2").tobytes())
    (folder / "label.txt").write_text(("dark", "light")[light])


def make_folder(root: Path, samples: int = 24, params: str = PARAMS) -> Job:
    """A working folder with raw samples; nothing is built yet."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "params.yaml").write_text(params)
    for number in range(samples):
        write_square(root / "raw", number)
    return open_job(root)


def build(job: Job) -> Dataset:
    """The dataset of a folder, through the real stages."""
    download(job)
    validate(job)
    shard(job)
    return hash_shards(job)
