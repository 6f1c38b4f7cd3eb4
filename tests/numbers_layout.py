"""A layout of a user's own: every ``*.json`` file is a sample with labels, attributes and a band of numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardtrail.layouts import Assembly, Grouping
from shardtrail.samples import BandSums, Feature, Finding, Rejected, Report, Sample, Schema, SourceFile, Unit


class Numbers:
    name = "numbers"
    check_version = 1

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.vocabulary = tuple(options.get("classes", ("a", "b", "c")))

    def group(self, files: Iterable[tuple[str, int]]) -> Grouping:
        units = [Unit(path, "sample", (SourceFile("numbers", path, size),)) for path, size in files if ".json" in path]
        return Grouping(units)

    def check(self, unit: Unit, contents: Mapping[str, bytes]) -> Report:
        path = unit.files[0].path
        try:
            value = json.loads(contents[path])
        except ValueError as error:
            return Report(unit.key, unit.kind, unit.files, (Finding("no_json", path, str(error)),))
        numbers = value.pop("numbers", [1])
        sums = BandSums(len(numbers), sum(numbers), sum(x * x for x in numbers), min(numbers), max(numbers))
        warnings = (Finding("odd", path, "said to be odd"),) if value.get("odd") else ()
        return Report(unit.key, unit.kind, unit.files, (), warnings, value, {"numbers": sums})

    def assemble(self, reports: Iterable[Report], raw: Path, tables: Sequence[str]) -> Assembly:
        samples, rejected = [], []
        for report in reports:
            id = report.facts.get("id") or report.unit.removesuffix(".json")
            if report.faults:
                rejected.append(Rejected(id, report.faults[0]))
                continue
            facts = report.facts
            samples.append(
                Sample(
                    id,
                    report.files,
                    tuple(facts.get("labels", ("a",))),
                    facts.get("split", ""),
                    facts.get("attributes", {}),
                    {"note": facts.get("note", "")},
                    (report.unit,),
                )
            )
        return Assembly(samples, rejected)

    def schema(self) -> Schema:
        return Schema((Feature("numbers", "float32", (1,)),), ("note",), self.vocabulary)

    def decode(self, files: Sequence[SourceFile], contents: Sequence[bytes]) -> dict[str, np.ndarray]:
        return {"numbers": np.asarray(json.loads(contents[0])["numbers"][:1], np.float32)}
