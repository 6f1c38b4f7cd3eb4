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
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Final, TypeGuard

import numpy as np

from shardtrail.config import BigEarthNetParams
from shardtrail.errors import ConfigError
from shardtrail.layouts import Assembly, Grouping
from shardtrail.layouts.bigearthnet_classes import CLASSES_19, CLASSES_43, TO_19
from shardtrail.layouts.bigearthnet_tables import (
    METADATA_TABLES,
    S1_NAME,
    S2_NAME,
    Row,
    find_list,
    read_names,
    read_rows,
    read_splits,
)
from shardtrail.layouts.checks import BadContent, band_sums, check_dtype, check_finite, read_json_object, read_tiff
from shardtrail.samples import BandSums, Feature, Finding, Rejected, Report, Sample, Schema, SourceFile, Unit

S2_BANDS: Final = {
    "B01": 20,
    "B02": 120,
    "B03": 120,
    "B04": 120,
    "B05": 60,
    "B06": 60,
    "B07": 60,
    "B08": 120,
    "B8A": 60,
    "B09": 20,
    "B11": 60,
    "B12": 60,
}
"""Sentinel-2 Level-2A bands in the order of the authors' scripts, and their pixels a side (60, 10 and 20 m)."""

S1_BANDS: Final = {"VV": 120, "VH": 120}
"""Sentinel-1 polarisations: backscatter in decibel at 10 m."""

DECIBEL: Final = (-100.0, 60.0)
"""Bounds of a backscatter in decibel; real patches were seen from -40 to +10."""

PATCH_METRES: Final = 1200
"""Side of a patch on the ground."""

_BANDS: Final = {"s2": S2_BANDS, "s1": S1_BANDS}
_DTYPES: Final = {"s2": "uint16", "s1": "float32"}
_METADATA: Final = {"s2": "metadata", "s1": "metadata_s1"}
_NAMES: Final = {"s2": S2_NAME, "s1": S1_NAME}
_PARTS: Final = {
    kind: {f"{band}.tif": band for band in bands} | {"labels_metadata.json": _METADATA[kind]}
    for kind, bands in _BANDS.items()
}
_PART: Final = re.compile(
    r"(?P<patch>.+)_(?P<part>"
    + "|".join(sorted({re.escape(part) for parts in _PARTS.values() for part in parts}))
    + ")"
)
_ROLES: Final = {role: place for place, role in enumerate((*S2_BANDS, *S1_BANDS, *_METADATA.values(), "unknown"))}
"""Order of a sample's files: bands as in the schema, then label files."""

_KEPT_19: Final = {name: name for name in CLASSES_19}
_KEPT_43: Final = {name: name for name in CLASSES_43}
_LITTER: Final = {"thumbs.db", "desktop.ini", "__macosx", "@eadir"}
_EPSG: Final = re.compile(r'AUTHORITY\["EPSG",\s*"(32[67][0-9]{2})"\]\s*\]\s*$')


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
    rows: Mapping[str, Row] = field(default_factory=dict)

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
    check_version = 1

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
        """One unit a patch folder. Files that belong to no patch are left aside and counted."""
        lists = {*self._options.splits, *self._options.exclude}
        folders: dict[str, list[tuple[str, int]]] = defaultdict(list)
        tables, ignored = [], 0
        for path, size in files:
            folder, _, name = path.rpartition("/")
            if _is_litter(path) or name.endswith("_reference_map.tif"):
                ignored += 1
            elif name in METADATA_TABLES or path in lists:
                tables.append(path)
            else:
                folders[folder].append((name, size))
        units: list[Unit] = []
        for folder, members in folders.items():
            found = list(_units(folder, members))
            units += found
            ignored += len(members) - sum(len(unit.files) for unit in found)
        return Grouping(tuple(sorted(units, key=lambda unit: unit.key)), tuple(sorted(tables)), ignored)

    def check(self, unit: Unit, contents: Mapping[str, bytes]) -> Report:
        """Decode every band of one patch and read its label file; see docs/quarantine.md for the reasons."""
        faults = list(_check_files(unit))
        sums: dict[str, BandSums] = {}
        for file in unit.files:
            if file.role in _BANDS[unit.kind]:
                try:
                    sums[file.role] = _check_band(file.role, unit.kind, contents[file.path])
                except BadContent as bad:
                    faults.append(Finding(bad.reason, file.path, f"{file.role}: {bad.detail}"))
        faults += _zero_bands(unit, sums)

        match = _NAMES[unit.kind].fullmatch(_patch_name(unit))
        # A patch known under a wrong name has none: it must not stand for the one of that name.
        facts: dict[str, Any] = {
            "patch": "" if any(fault.reason == "bad_name" for fault in faults) else _patch_name(unit)
        }
        warnings: list[Finding] = []
        metadata = next((file for file in unit.files if file.role == _METADATA[unit.kind]), None)
        if metadata:
            try:
                labels = read_json_object(contents[metadata.path])
                facts |= _read_facts(labels)
                facts["region"], odd = _locate(labels)
                warnings += [Finding("odd_coordinates", metadata.path, detail) for detail in odd]
            except BadContent as bad:
                faults.append(Finding(bad.reason, metadata.path, bad.detail))
        elif unit.kind == "s2" and not (match and match["v2"]):
            faults.append(
                Finding("missing_labels", unit.key, f"expected {_patch_name(unit)}_labels_metadata.json, found none")
            )
        return Report(unit.key, unit.kind, unit.files, tuple(faults), tuple(warnings), facts, sums)

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
            claims[report.facts.get("partner") or partners.get(report.facts["patch"], "")].append(report)
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
                Feature(band, _DTYPES[kind], (side, side)) for kind in kinds for band, side in _BANDS[kind].items()
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
        bands = S2_BANDS | S1_BANDS
        return {
            file.role: read_tiff(content, (bands[file.role], bands[file.role]))
            for file, content in zip(files, contents, strict=True)
            if file.role in bands
        }

    def _metadata_tables(self, raw: Path, tables: Sequence[str]) -> list[Path]:
        found = [raw / table for table in tables if Path(table).name in METADATA_TABLES]
        named = [self._find(name, raw) for name in self._options.splits if name.endswith(".parquet")]
        return list(dict.fromkeys(path.resolve() for path in (*found, *named)))

    def _read_rows(self, by_kind: Mapping[str, Sequence[Report]], places: Sequence[Path]) -> dict[str, Row]:
        names = {kind: [report.facts["patch"] for report in reports] for kind, reports in by_kind.items()}
        v2 = next((name for name in names["s2"] if (match := S2_NAME.fullmatch(name)) and match["v2"]), "")
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
        acquired = _date(match)
        texts = {"patch_name": patch}
        if candidate.s1:
            texts = {"patch_name_s1": candidate.s1.facts["patch"], "patch_name_s2": patch}
        return Sample(
            id=candidate.id,
            files=_in_order(file for report in reports for file in report.files),
            labels=labels,
            split=lists.split(patch),
            attributes={
                "acquired": acquired,
                "country": row.country if row else "",
                "month": acquired[:7],
                "region": match["tile"] or candidate.s2.facts.get("region", ""),
            },
            texts=texts,
            units=tuple(report.unit for report in reports),
        )

    def _labels(self, report: Report, rows: Mapping[str, Row]) -> tuple[tuple[str, ...], list[Finding]]:
        """Label names in vocabulary order, and what is wrong with them."""
        match = S2_NAME.fullmatch(report.facts["patch"])
        if match and match["v2"]:
            row = rows.get(match.string)
            if row is None:
                return (), [Finding("missing_row", report.unit, "no row of v2's metadata tables has this patch_id")]
            path, given, known = row.table.name, row.labels, _KEPT_19
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


def _is_litter(path: str) -> bool:
    """Hidden files and folders, and what file managers and GIS programs leave behind."""
    return path.endswith(".aux.xml") or any(
        part.startswith(".") or part.casefold() in _LITTER for part in path.split("/")
    )


def _units(folder: str, members: Sequence[tuple[str, int]]) -> Iterator[Unit]:
    """The units of one folder: itself when it is named like a patch; otherwise what its files are named after."""
    name = folder.rpartition("/")[2]
    kind = next((kind for kind, pattern in _NAMES.items() if pattern.fullmatch(name)), "")
    if kind:
        yield _unit(folder, kind, folder, members)
        return
    patches: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for member in members:
        match = _PART.fullmatch(member[0])
        if match:
            patches[match["patch"]].append(member)
    for patch, files in patches.items():
        kind = "s1" if any(file.endswith(tuple(f"_{band}.tif" for band in S1_BANDS)) for file, _ in files) else "s2"
        yield _unit(folder if patch == name else f"{folder}/{patch}".lstrip("/"), kind, folder, files)


def _unit(key: str, kind: str, folder: str, members: Sequence[tuple[str, int]]) -> Unit:
    """Files in role order; what has no place in such a patch has the role ``unknown``."""
    patch, parts = key.rpartition("/")[2], _PARTS[kind]
    roles = {f"{patch}_{part}": role for part, role in parts.items()}
    files = [SourceFile(roles.get(name, "unknown"), f"{folder}/{name}".lstrip("/"), size) for name, size in members]
    return Unit(key, kind, _in_order(files))


def _patch_name(unit: Unit) -> str:
    return unit.key.rpartition("/")[2]


def _date(match: re.Match[str]) -> str:
    """The day of a patch name as an ISO date; empty where the calendar has no such day."""
    digits = match["date"]
    try:
        return date(int(digits[:4]), int(digits[4:6]), int(digits[6:])).isoformat()
    except ValueError:
        return ""


def _check_files(unit: Unit) -> Iterator[Finding]:
    """Faults of names alone: the patch's, foreign files, missing bands."""
    patch, folder = _patch_name(unit), unit.files[0].path.rpartition("/")[0]
    match = _NAMES[unit.kind].fullmatch(patch)
    sensor = {"s2": "Sentinel-2", "s1": "Sentinel-1"}[unit.kind]
    if match is None or not _date(match):
        yield Finding("bad_name", folder, f"{patch!r} is not the name of a {sensor} patch")
    elif folder.rpartition("/")[2] != patch:
        yield Finding("bad_name", folder, f"files of {patch} lie in a folder of another name; expected {patch}")
    unknown = [file.path for file in unit.files if file.role == "unknown"]
    if unknown:
        names = ", ".join(path.rpartition("/")[2] for path in unknown[:3]) + (", ..." if len(unknown) > 3 else "")
        yield Finding(
            "unknown_file", unknown[0], f"{len(unknown)} with no place in the {sensor} patch {patch}: {names}"
        )
    present = {file.role for file in unit.files}
    missing = [band for band in _BANDS[unit.kind] if band not in present]
    if missing:
        total = len(_BANDS[unit.kind])
        yield Finding(
            "missing_band",
            folder,
            f"{', '.join(missing)} missing: expected {total} bands, found {total - len(missing)}",
        )


def _check_band(band: str, kind: str, content: bytes) -> BandSums:
    """Decode one band and sum it up.

    Raises:
        BadContent: it cannot be used.
    """
    side = _BANDS[kind][band]
    array = read_tiff(content, (side, side))
    check_dtype(array, _DTYPES[kind])
    check_finite(array)
    sums = band_sums(array)
    if kind == "s1" and not _is_zero(sums):
        _check_decibel(sums)
    return sums


def _check_decibel(sums: BandSums) -> None:
    """Refuse linear power and digital numbers: a patch in decibel has values below zero."""
    low, high = DECIBEL
    if sums.low >= 0 or sums.low < low or sums.high > high:
        raise BadContent(
            "not_decibel",
            f"expected decibel (some values below 0, all from {low:g} to {high:g}), "
            f"found minimum {sums.low:g}, maximum {sums.high:g}",
        )


def _is_zero(sums: BandSums) -> bool:
    return sums.low == 0 == sums.high


def _zero_bands(unit: Unit, sums: Mapping[str, BandSums]) -> list[Finding]:
    """Bands without data: one finding each, or one for the patch when every band is empty."""
    zero = [file for file in unit.files if file.role in sums and _is_zero(sums[file.role])]
    if len(zero) == len(_BANDS[unit.kind]):
        return [Finding("all_zero", unit.key, f"every pixel of all {len(zero)} bands is 0")]
    return [Finding("all_zero", file.path, f"every pixel of {file.role} is 0") for file in zero]


def _read_facts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Labels as written and, on Sentinel-1, the partner.

    Raises:
        BadContent: ``bad_json``, they are not of the kind that a label file holds.
    """
    labels, partner = metadata.get("labels"), metadata.get("corresponding_s2_patch", "")
    if not isinstance(labels, list) or not all(_is_text(label) for label in labels):
        raise BadContent("bad_json", f'expected "labels" to be a list of names, found {_shown(labels)}')
    if not _is_text(partner):
        raise BadContent("bad_json", f'expected "corresponding_s2_patch" to be a name, found {_shown(partner)}')
    return {"labels": labels, "partner": partner}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _locate(metadata: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Where a v1 patch lies, and what is odd about it.

    Returns:
        The 100 km square of its centre as ``<EPSG code>_<column>_<row>`` (such as ``32633_4_53``), empty where
        unknown; and a sentence for everything that cannot be right.
    """
    odd = []
    epsg = _EPSG.search(str(metadata.get("projection", "")))
    if epsg is None:
        odd.append("the projection does not end with the EPSG code of a UTM zone")
    corners = metadata.get("coordinates")
    corners = corners if isinstance(corners, dict) else {}
    # Sentinel-1's files call the lower edge lly.
    found = [corners.get(key) for key in ("ulx", "uly", "lrx", "lry" if "lry" in corners else "lly")]
    metres = [corner for corner in found if _is_metres(corner)]
    if len(metres) < 4:
        return "", [*odd, f"expected corners in metres of UTM, found {_shown(corners)}"]
    ulx, uly, lrx, lry = metres
    if (lrx - ulx, uly - lry) != (PATCH_METRES, PATCH_METRES):
        odd.append(
            f"the corners span {lrx - ulx} m by {uly - lry} m, expected {PATCH_METRES} by {PATCH_METRES} "
            f"(ulx {ulx}, uly {uly}, lrx {lrx}, lry {lry})"
        )
    odd += _odd_outline(metadata.get("geometry"))
    if epsg is None:
        return "", odd
    half = PATCH_METRES // 2
    return f"{epsg[1]}_{int(ulx + half) // 100_000}_{int(uly - half) // 100_000}", odd


def _is_metres(value: object) -> TypeGuard[float]:
    """A coordinate of a UTM zone: false eastings and northings are positive and below 10,000 km."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 10_000_000


def _odd_outline(geometry: object) -> list[str]:
    """A GeoJSON outline in degrees, which some tools add: no corner of a 1.2 km patch lies a degree from another."""
    try:
        corners = [(float(x), float(y)) for x, y, *_ in geometry["coordinates"][0]]  # type: ignore[index]
        first = corners[0]
    except (TypeError, ValueError, KeyError, IndexError):
        return []
    far = [corner for corner in corners if max(abs(corner[0] - first[0]), abs(corner[1] - first[1])) > 1]
    return [f"the outline jumps from {first} to {far[0]} (longitude and latitude swapped?)"] if far else []


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
            detail = f"no Sentinel-1 patch in the source belongs to {_id(report)}"
            finding = Finding("missing_partner", report.unit, detail)
            yield _Candidate(_id(report), s2=report, s2_name=patch, findings=(finding,))
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
    if patch:
        detail = f"{_id(report)} belongs to {patch}, which is not in the source"
    elif tables:
        detail = f"no row of metadata.parquet names {_id(report)} as s1_name"
    elif any(file.role == "metadata_s1" for file in report.files):
        if report.faults:
            return ()  # its label file may be what is wrong
        detail = f"the label file of {_id(report)} has no corresponding_s2_patch"
    else:
        return (Finding("missing_labels", report.unit, f"{_id(report)} has no label file, which names its partner"),)
    return (Finding("missing_partner", report.unit, detail),)


def _in_order(files: Iterable[SourceFile]) -> tuple[SourceFile, ...]:
    return tuple(sorted(files, key=lambda file: (_ROLES[file.role], file.path)))
