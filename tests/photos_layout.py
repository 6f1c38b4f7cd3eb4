"""A layout of a user's own whose images stay encoded: ``<class>/<name>.jpg`` or ``.png``, a folder a class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import imagecodecs

from shardtrail.layouts import Assembly, Grouping
from shardtrail.samples import Feature, Finding, Rejected, Report, Sample, Schema, SourceFile, Unit


class Photos:
    """Options: ``shape`` and ``format`` of ``Feature``, and the file's ``role``."""

    name = "photos"
    check_version = 1

    def __init__(self, options: Mapping[str, Any]) -> None:
        shape = tuple(options.get("shape", (None, None, 3)))
        self.image = Feature("image", options.get("dtype", "uint8"), shape, format=options.get("format", "jpeg"))
        self.role = options.get("role", "image")
        self.vocabulary: tuple[str, ...] = ("cat", "dog")

    def group(self, files: Iterable[tuple[str, int]]) -> Grouping:
        return Grouping([Unit(path, "photo", (SourceFile(self.role, path, size),)) for path, size in files])

    def check(self, unit: Unit, contents: Mapping[str, bytes]) -> Report:
        faults: tuple[Finding, ...] = ()
        try:
            imagecodecs.imread(contents[unit.key])
        except Exception as error:
            faults = (Finding("unreadable_image", unit.key, str(error)),)
        return Report(unit.key, unit.kind, unit.files, faults)

    def assemble(self, reports: Iterable[Report], raw: Any, tables: Sequence[str]) -> Assembly:
        samples, rejected = [], []
        for report in reports:
            path = PurePosixPath(report.unit)
            if report.faults:
                rejected.append(Rejected(path.stem, report.faults[0]))
            else:
                samples.append(Sample(path.stem, report.files, (path.parent.name,), "train", units=(report.unit,)))
        return Assembly(samples, rejected)

    def schema(self) -> Schema:
        return Schema((self.image,), (), self.vocabulary)

    def decode(self, files: Sequence[SourceFile], contents: Sequence[bytes]) -> dict[str, bytes]:
        return {"image": contents[0]}
