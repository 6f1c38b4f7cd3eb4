"""The tree of ``tree.py`` as a layout: a folder a sample, its files one array."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quiet_night.tree import BYTES
from shardtrail.layouts import Assembly, Grouping
from shardtrail.packed import pack_files
from shardtrail.samples import BandSums, Feature, Report, Sample, Schema, SourceFile, Unit


class Folders:
    """``<tile>/<patch>/<patch>_<band>.bin``."""

    name = "folders"
    check_version = 1

    def __init__(self, options: Mapping[str, Any]) -> None:
        """The option is the number of files a sample."""
        self.files = int(options["files"])

    def group(self, files: Iterable[tuple[str, int]]) -> Grouping:
        """A unit a folder."""
        folders = itertools.groupby(files, key=lambda file: file[0].rpartition("/")[0])
        return Grouping([Unit(folder, "patch", pack_files(map(_file, members))) for folder, members in folders])

    def check(self, unit: Unit, contents: Mapping[str, bytes]) -> Report:
        """Any bytes are right."""
        pixels = np.frombuffer(b"".join(contents.values()), np.uint8).astype(np.int64)
        low, high = int(pixels.min()), int(pixels.max())
        sums = BandSums(len(pixels), int(pixels.sum()), int((pixels**2).sum()), low, high)
        return Report(unit.key, unit.kind, unit.files, sums={"pixels": sums})

    def assemble(self, reports: Iterable[Report], raw: Path, tables: Sequence[str]) -> Assembly:
        """Everything is for training: shards are then as many as samples divided by their target."""
        return Assembly([_sample(report) for report in reports], [])

    def schema(self) -> Schema:
        """One array."""
        return Schema((Feature("pixels", "uint8", (self.files, BYTES)),), (), ("land", "water"))

    def decode(self, files: Sequence[SourceFile], contents: Sequence[bytes]) -> dict[str, np.ndarray]:
        """All files, one row each."""
        return {"pixels": np.frombuffer(b"".join(contents), np.uint8).reshape(self.files, BYTES)}


def _file(member: tuple[str, int]) -> SourceFile:
    path, size = member
    return SourceFile(path[-7:-4], path, size)


def _sample(report: Report) -> Sample:
    region, _, name = report.unit.rpartition("/")
    return Sample(name, report.files, ("land",), "train", {"region": region}, units=(report.unit,))
