"""Photographs in a folder a class as a layout: what is stored are the files' own bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.jpeg.photos import CLASSES
from shardtrail.layouts import Assembly, Grouping
from shardtrail.samples import Feature, Finding, Report, Sample, Schema, SourceFile, Unit


class Photographs:
    """``<class>/<photograph>.jpg``."""

    name = "photographs"
    check_version = 1

    def __init__(self, options: Mapping[str, Any]) -> None:
        """There are no options."""

    def group(self, files: Iterable[tuple[str, int]]) -> Grouping:
        """A unit a photograph."""
        return Grouping([Unit(path, "photograph", (SourceFile("image", path, size),)) for path, size in files])

    def check(self, unit: Unit, contents: Mapping[str, bytes]) -> Report:
        """Whether it begins and ends as JPEG does. Nothing is decoded: the time of this is not measured."""
        content = contents[unit.key]
        whole = content.startswith(b"\xff\xd8") and content.endswith(b"\xff\xd9")
        faults = () if whole else (Finding("no_jpeg", unit.key, "it does not begin and end as JPEG does"),)
        return Report(unit.key, unit.kind, unit.files, faults)

    def assemble(self, reports: Iterable[Report], raw: Path, tables: Sequence[str]) -> Assembly:
        """The folder is the label."""
        paths = ((Path(report.unit), report) for report in reports)
        return Assembly([Sample(path.stem, report.files, (path.parent.name,)) for path, report in paths], [])

    def schema(self) -> Schema:
        """One image as it is."""
        return Schema((Feature("image", "uint8", (None, None, 3), format="jpeg"),), (), CLASSES)

    def decode(self, files: Sequence[SourceFile], contents: Sequence[bytes]) -> dict[str, bytes]:
        """The bytes themselves."""
        return {"image": contents[0]}
