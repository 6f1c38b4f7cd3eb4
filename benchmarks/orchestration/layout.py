"""Tiny samples as a layout: what a shard costs beside its bytes is all that is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardtrail.layouts import Assembly, Grouping
from shardtrail.samples import Feature, Finding, Report, Sample, Schema, SourceFile, Unit

BYTES = 64


class Tiny:
    """``<folder>/<sample>.bin``: 64 bytes each, all of them for training."""

    name = "tiny"
    check_version = 1

    def __init__(self, options: Mapping[str, Any]) -> None:
        """There are no options."""

    def group(self, files: Iterable[tuple[str, int]]) -> Grouping:
        """A unit a file."""
        return Grouping([Unit(path, "tiny", (SourceFile("values", path, size),)) for path, size in files])

    def check(self, unit: Unit, contents: Mapping[str, bytes]) -> Report:
        """Whether it is as long as it must be."""
        found = len(contents[unit.key])
        faults = () if found == BYTES else (Finding("wrong_size", unit.key, f"{BYTES} bytes expected, {found} found"),)
        return Report(unit.key, unit.kind, unit.files, faults)

    def assemble(self, reports: Iterable[Report], raw: Path, tables: Sequence[str]) -> Assembly:
        """A sample a unit."""
        return Assembly([Sample(Path(report.unit).stem, report.files, ("any",), "train") for report in reports], [])

    def schema(self) -> Schema:
        """One array of bytes."""
        return Schema((Feature("values", "uint8", (BYTES,)),), (), ("any",))

    def decode(self, files: Sequence[SourceFile], contents: Sequence[bytes]) -> dict[str, npt.NDArray[np.uint8]]:
        """The bytes themselves."""
        return {"values": np.frombuffer(contents[0], np.uint8)}


def make(raw: Path, samples: int) -> None:
    """Make the source: ``samples`` files, no two alike."""
    for number in range(samples):
        folder = raw / f"{number // 1000:05d}"
        if number % 1000 == 0:
            folder.mkdir(parents=True, exist_ok=True)
        (folder / f"sample-{number:08d}.bin").write_bytes(f"{number:08d}".encode() * (BYTES // 8))
