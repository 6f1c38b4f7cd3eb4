"""The layout of BigEarthNet v1 (BigEarthNet-MM) and v2 (reBEN), as their archives unpack.

v1: <S2 patch>/<S2 patch>_B01.tif ... _B12.tif, _labels_metadata.json
    <S1 patch>/<S1 patch>_VV.tif, _VH.tif, _labels_metadata.json (which names the S2 patch)
v2: <tile>/<S2 patch>/<S2 patch>_B01.tif ..., <scene>/<S1 patch>/<S1 patch>_VV.tif, _VH.tif,
    and metadata.parquet with labels, splits, countries and partners

A unit is one patch folder of one sensor, found by its name at any depth. A sample is a Sentinel-2 patch, or
one with its Sentinel-1 partner; its id is the Sentinel-2 name.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from shardtrail.config import BigEarthNetParams
from shardtrail.errors import ConfigError
from shardtrail.layouts import Assembly, Grouping
from shardtrail.layouts.bigearthnet_classes import CLASSES_19, CLASSES_43, TO_19
from shardtrail.layouts.bigearthnet_patch import (
    BAND_SHAPES,
    BANDS,
    COORDINATES,
    DTYPES,
    S2_NAME,
    check_patch,
    day_of,
    in_order,
    is_litter,
    is_v2,
    place_of_tile,
    units_of_folder,
)
from shardtrail.layouts.bigearthnet_tables import METADATA_TABLES, Row, find_list, read_names, read_rows, read_splits
from shardtrail.layouts.checks import read_tiff
from shardtrail.packed import pack_files
from shardtrail.samples import Feature, Finding, Rejected, Report, Sample, Schema, SourceFile, Unit

_KEPT_19: Final = {name: name for name in CLASSES_19}
_KEPT_43: Final = {name: name for name in CLASSES_43}


@dataclass(frozen=True, slots=True)
class _Candidate:
    """What may become a sample: the reports it is made of, and what is wrong with their joining."""

    id: str
    s2: Report | None = None
    s1: Report | None = None
    s2_name: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class _Lists:
    """The official lists in use. Patches are known by their v2 and their v1 name."""

    excluded: frozenset[str]
    splits: Mapping[str, str]
    used: bool
    rows: Mapping[str, Row]

    def names(self, patch: str) -> tuple[str, ...]:
        row = self.rows.get(patch)
        return (patch, row.v1_name) if row and row.v1_name else (patch,)

    def split(self, patch: str) -> str:
        """The official split; empty where there is none."""
        if self.used:
            return next((self.splits[name] for name in self.names(patch) if name in self.splits), "")
        row = self.rows.get(patch)
        return row.split if row else ""

    def refusal(self, patch: str, path: str) -> Finding | None:
        """Why the user's lists leave a patch out, if they do."""
        if any(name in self.excluded for name in self.names(patch)):
            return Finding("excluded_by_list", path, f"{patch} is on a list of bigearthnet.exclude")
        if self.used and not self.split(patch):
            return Finding("not_in_split_lists", path, f"{patch} is on none of the lists of bigearthnet.splits")
        return None


class BigEarthNet:
    """BigEarthNet v1 and v2; fills the ``Layout`` protocol.

    ``check`` depends on no option: another nomenclature or split decodes nothing again.
    """

    name = "bigearthnet"
    check_version = 3
    decode_version = 2  # as it was before check told where a patch lies: no shard is built again
    decode_roles = frozenset(BAND_SHAPES)

    def __init__(self, options: BigEarthNetParams, root: Path = Path()) -> None:
        """Options are the section ``bigearthnet`` of params.yaml; ``root`` is the working folder."""
        self._options = options
        self._root = root
        self._sensors: str = options.sensors

    @property
    def sensors(self) -> str:
        """``s2`` or ``s1s2``; ``auto`` until ``assemble`` has decided."""
        return self._sensors

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Label names in the official index order."""
        return CLASSES_19 if self._options.classes == 19 else CLASSES_43

    def group(self, files: Iterable[tuple[str, int]]) -> Grouping:
        """One unit a patch folder. Files that belong to no patch are left aside and counted.

        With ``sensors: s2`` those of Sentinel-1 are, too: no sample would have them.
        """
        lists = {*self._options.splits, *self._options.exclude}
        tables: list[str] = []
        ignored = 0

        def of_patches() -> Iterator[tuple[str, int]]:
            nonlocal ignored
            for path, size in files:
                name = path.rpartition("/")[2]
                if is_litter(path) or name.endswith("_reference_map.tif"):
                    ignored += 1
                elif name in METADATA_TABLES or path in lists:
                    tables.append(path)
                else:
                    yield path, size

        units: list[Unit] = []
        for folder, members in _folders(of_patches()):
            found = [unit for unit in units_of_folder(folder, members) if unit.kind in self._kinds()]
            units += found
            ignored += len(members) - sum(len(unit.files) for unit in found)
        return Grouping(tuple(sorted(units, key=lambda unit: unit.key)), tuple(sorted(tables)), ignored)

    def check(self, unit: Unit, contents: Mapping[str, bytes]) -> Report:
        """Decode every band of one patch and read its label file; see docs/quarantine.md for the reasons."""
        return check_patch(unit, contents)

    def assemble(self, reports: Iterable[Report], raw: Path, tables: Sequence[str]) -> Assembly:
        """Join patches with their partners, labels and official splits.

        Raises:
            ConfigError: a list that is not there or no list; v2 patches without metadata.parquet, or with
                ``classes: 43``.
            SourceError: a metadata.parquet that is none.
        """
        by_kind: dict[str, list[Report]] = {"s2": [], "s1": []}
        for report in reports:
            by_kind[report.kind].append(report)
        places = self._metadata_tables(raw, tables)
        rows = self._read_rows(by_kind, places)
        lists = self._read_lists(raw, rows)
        partners = {row.s1_name: row.patch for row in rows.values() if row.s1_name}

        s2, repeated_s2 = _set_repeated_aside(by_kind["s2"])
        s1, repeated_s1 = _set_repeated_aside(by_kind["s1"])
        claims: dict[str, list[Report]] = defaultdict(list)
        for report in s1:
            partner = report.facts.get("partner") or partners.get(report.facts["patch"], "")
            # A misnamed copy claims nothing, so that it does no harm to the original's pair.
            claims[partner if report.facts["patch"] else ""].append(report)
        if self._options.sensors == "auto":
            self._sensors = (
                "s1s2" if any(report.facts["patch"] in claims for report in s2 if report.facts["patch"]) else "s2"
            )
        if self._sensors == "s2":
            candidates = [_Candidate(_id(report), s2=report, s2_name=report.facts["patch"]) for report in s2]
            candidates += repeated_s2
        else:
            candidates = [*_pair(s2, claims, tables=bool(places)), *repeated_s2, *repeated_s1]

        decided = sorted((self._decide(candidate, lists) for candidate in candidates), key=lambda each: each.id)
        return Assembly(
            samples=tuple(each for each in decided if isinstance(each, Sample)),
            rejected=tuple(each for each in decided if isinstance(each, Rejected)),
        )

    def schema(self) -> Schema:
        """Bands in the official order at native size; valid once ``sensors`` is decided."""
        if self._sensors == "auto":
            raise ValueError("the schema is known after assemble(): sensors is auto")
        kinds = ("s2",) if self._sensors == "s2" else ("s2", "s1")
        return Schema(
            features=tuple(
                Feature(band, DTYPES[kind], (side, side)) for kind in kinds for band, side in BANDS[kind].items()
            ),
            texts=("patch_name",) if self._sensors == "s2" else ("patch_name_s1", "patch_name_s2"),
            vocabulary=self.vocabulary,
            label_prefix="BigEarthNet-19" if self._options.classes == 19 else "original",
        )

    def decode(self, files: Sequence[SourceFile], contents: Sequence[bytes]) -> dict[str, np.ndarray]:
        """Bands by name: [height, width] uint16 (reflectance times 10,000) or float32 (decibel).

        Raises:
            BadContent: a band that ``check`` would refuse as well.
        """
        return {
            file.role: read_tiff(content, BAND_SHAPES[file.role])
            for file, content in zip(files, contents, strict=True)
            if file.role in BAND_SHAPES
        }

    def _kinds(self) -> tuple[str, ...]:
        return ("s2",) if self._options.sensors == "s2" else ("s2", "s1")

    def _metadata_tables(self, raw: Path, tables: Sequence[str]) -> dict[Path, str]:
        """v2's tables -> how they are called in findings: those in the source, then those named as split lists."""
        found = {(raw / table).resolve(): table for table in tables if Path(table).name in METADATA_TABLES}
        named = {self._find(name, raw).resolve(): name for name in self._options.splits if name.endswith(".parquet")}
        return named | found

    def _read_rows(self, by_kind: Mapping[str, Sequence[Report]], places: Mapping[Path, str]) -> dict[str, Row]:
        names = {kind: [report.facts["patch"] for report in reports] for kind, reports in by_kind.items()}
        v2 = next(filter(is_v2, names["s2"]), "")
        if v2 and self._options.classes == 43:
            raise ConfigError(
                f"bigearthnet.classes: 43 needs v1's label files; v2 patches such as {v2} have the 19 classes only"
            )
        if v2 and not places:
            raise ConfigError(
                f"bigearthnet: {v2} is a v2 patch, whose labels are in metadata.parquet, and there is none in the "
                "source; put it there, or name it under bigearthnet.splits"
            )
        return read_rows(places, names["s2"], names["s1"]) if places else {}

    def _read_lists(self, raw: Path, rows: Mapping[str, Row]) -> _Lists:
        splits = read_splits([self._find(name, raw) for name in self._options.splits])
        excluded = frozenset(name for each in self._options.exclude for name in read_names(self._find(each, raw)))
        return _Lists(excluded, splits, bool(self._options.splits), rows)

    def _find(self, name: str, raw: Path) -> Path:
        return find_list(name, (self._root, raw))

    def _decide(self, candidate: _Candidate, lists: _Lists) -> Sample | Rejected:
        """A candidate's fate: left out by the user's lists, quarantined for its faults, or a sample."""
        reports = [report for report in (candidate.s2, candidate.s1) if report]
        refusal = lists.refusal(candidate.s2_name, reports[0].unit) if candidate.s2_name else None
        if refusal:
            return Rejected(candidate.id, refusal, excluded=True)
        findings = [*(fault for report in reports for fault in report.faults), *candidate.findings]
        labels: tuple[str, ...] = ()
        if candidate.s2:
            labels, bad_labels = self._labels(candidate.s2, lists.rows)
            findings += bad_labels
        if findings or not candidate.s2:
            return Rejected(
                candidate.id, replace(findings[0], detail="; ".join(finding.detail for finding in findings))
            )
        patch = candidate.s2_name
        match = S2_NAME.fullmatch(patch)
        assert match is not None  # a name of another form is a fault of check
        row = lists.rows.get(patch)
        acquired = day_of(match)
        facts = candidate.s2.facts
        place = place_of_tile(match) if match["tile"] else {name: facts.get(name, "") for name in COORDINATES}
        texts = {"patch_name": patch}
        if candidate.s1:
            texts = {"patch_name_s1": candidate.s1.facts["patch"], "patch_name_s2": patch}
        return Sample(
            id=candidate.id,
            files=pack_files(in_order(file for report in reports for file in report.files)),
            labels=labels,
            split=lists.split(patch),
            attributes={
                "acquired": acquired,
                "country": row.country if row else "",
                "month": acquired[:7],
                "region": match["tile"] or facts.get("region", ""),
                **place,
            },
            texts=texts,
            units=tuple(report.unit for report in reports),
        )

    def _labels(self, report: Report, rows: Mapping[str, Row]) -> tuple[tuple[str, ...], list[Finding]]:
        """Label names in vocabulary order, and what is wrong with them."""
        if is_v2(report.facts["patch"]):
            row = rows.get(report.facts["patch"])
            if row is None:
                return (), [Finding("missing_row", report.unit, "no row of v2's metadata tables has this patch_id")]
            path, given, known = row.table, row.labels, _KEPT_19
        elif "labels" in report.facts:
            path = next(file.path for file in report.files if file.role == "metadata")
            given, known = tuple(report.facts["labels"]), TO_19 if self._options.classes == 19 else _KEPT_43
        else:
            return (), []  # the label file is missing or unreadable, which check has reported
        unknown = [name for name in given if name not in known]
        if unknown:
            return (), [Finding("unknown_label", path, "; ".join(_nearest(name, known) for name in unknown))]
        names = {known[name] for name in given} - {""}
        if not names and self._options.empty_labels == "quarantine":
            held = f"none of its labels ({'; '.join(given)}) is among the {self._options.classes} classes"
            return (), [Finding("no_labels", path, held if given else "its list of labels is empty")]
        return tuple(name for name in self.vocabulary if name in names), []


def _folders(files: Iterable[tuple[str, int]]) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Every folder with ``(name, size)`` of the files in it, when the last of them has come; ``files`` by path.

    So that few are held at a time, however many there are.
    """
    entered: list[tuple[str, list[tuple[str, int]]]] = []
    for path, size in files:
        folder, _, name = path.rpartition("/")
        while entered and folder != entered[-1][0] and not folder.startswith(f"{entered[-1][0]}/".lstrip("/")):
            yield entered.pop()
        if not entered or folder != entered[-1][0]:
            entered.append((folder, []))
        entered[-1][1].append((name, size))
    while entered:
        yield entered.pop()


def _nearest(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, list(known), n=3, cutoff=0)
    return f"unknown label {name!r} (nearest known: {', '.join(map(repr, nearest))})"


def _id(report: Report) -> str:
    """The patch's name; the unit's key where the name is none."""
    return report.facts["patch"] or report.unit


def _set_repeated_aside(reports: Sequence[Report]) -> tuple[list[Report], list[_Candidate]]:
    """Patches whose name is there once; and, as rejects, every copy of the others."""
    keys: dict[str, list[str]] = defaultdict(list)
    for report in reports:
        keys[_id(report)].append(report.unit)
    once = [report for report in reports if len(keys[_id(report)]) == 1]
    repeated = []
    for report in reports:
        folders = keys[_id(report)]
        if len(folders) > 1:
            found = Finding("duplicate_patch", report.unit, f"{_id(report)} is in {' and in '.join(sorted(folders))}")
            s2_name = report.facts["patch"] if report.kind == "s2" else ""
            repeated.append(_Candidate(report.unit, **{report.kind: report}, s2_name=s2_name, findings=(found,)))
    return once, repeated


def _pair(s2: Sequence[Report], claims: Mapping[str, Sequence[Report]], tables: bool) -> Iterator[_Candidate]:
    """One-to-one pairs; everything else alone, with the reason.

    Args:
        s2: Sentinel-2 reports, each name once.
        claims: Sentinel-1 reports by the Sentinel-2 name they belong to; empty where they do not say.
        tables: whether v2's tables were there to tell.
    """
    claimed = set()
    for report in s2:
        patch = report.facts["patch"]
        partners = claims.get(patch, ()) if patch else ()
        claimed.add(patch)
        if len(partners) == 1:
            yield _Candidate(patch, s2=report, s1=partners[0], s2_name=patch)
        elif partners:
            detail = f"{' and '.join(sorted(map(_id, partners)))} each name {patch} as their partner"
            for each in (report, *partners):
                finding = Finding("ambiguous_partner", each.unit, detail)
                yield _Candidate(_id(each), **{each.kind: each}, s2_name=patch, findings=(finding,))
        else:
            finding = Finding("missing_partner", report.unit, f"no Sentinel-1 patch in the source belongs to {patch}")
            yield _Candidate(_id(report), s2=report, s2_name=patch, findings=(finding,) if patch else ())
    for patch, partners in claims.items():
        if patch and patch in claimed:
            continue
        for report in partners:
            yield _Candidate(
                _id(report),
                s1=report,
                s2_name=patch if S2_NAME.fullmatch(patch) else "",
                findings=_why_alone(report, patch, tables),
            )


def _why_alone(report: Report, patch: str, tables: bool) -> tuple[Finding, ...]:
    """Why a Sentinel-1 report has no partner; nothing where its own faults say it."""
    name, has_label_file = report.facts["patch"], any(file.role == "metadata_s1" for file in report.files)
    if not name or (not patch and has_label_file and report.faults):
        return ()
    if patch:
        detail = f"{name} belongs to {patch}, which is not in the source"
    elif tables:
        detail = f"no row of metadata.parquet names {name} as s1_name"
    elif has_label_file:
        detail = f"the label file of {name} has no corresponding_s2_patch"
    else:
        return (Finding("missing_labels", report.unit, f"{name} has no label file, which names its partner"),)
    return (Finding("missing_partner", report.unit, detail),)
