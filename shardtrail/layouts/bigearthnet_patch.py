"""One patch folder of BigEarthNet: its names, its files, and the check of everything in it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Final, TypeGuard

from shardtrail.layouts.checks import BadContent, band_sums, check_dtype, check_finite, read_json_object, read_tiff
from shardtrail.layouts.utm import tile_corner, to_degrees
from shardtrail.packed import pack_files
from shardtrail.samples import BandSums, Finding, Report, SourceFile, Unit

S2_NAME: Final = re.compile(
    r"S2[A-Z]_MSIL2A_(?P<date>[0-9]{8})T[0-9]{4,6}(?P<v2>_N[0-9]{4}_R[0-9]{3}_T(?P<tile>[0-9]{2}[A-Z]{3}))?"
    r"_[0-9]{1,2}_[0-9]{1,2}"
)
"""A Sentinel-2 patch. The time is text: some names lack the hour's leading zero, one has second 61."""

S1_NAME: Final = re.compile(
    r"S1[A-Z]_IW_GRDH_1SDV_(?P<date>[0-9]{8})T[0-9]{4,6}_[0-9]{2}[A-Z]{3}_[0-9]{1,2}_[0-9]{1,2}"
)
"""A Sentinel-1 patch."""

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

BAND_SHAPES: Final = {band: (side, side) for band, side in (S2_BANDS | S1_BANDS).items()}
"""Height and width of every band."""

DECIBEL: Final = (-100.0, 60.0)
"""Bounds of a backscatter in decibel; real patches were seen from -40 to +10."""

PATCH_METRES: Final = 1200
"""Side of a patch on the ground."""

COORDINATES: Final = ("longitude", "latitude")
"""Attributes of a sample: of its centre, in decimal degrees of WGS 84."""

BANDS: Final = {"s2": S2_BANDS, "s1": S1_BANDS}
DTYPES: Final = {"s2": "uint16", "s1": "float32"}
METADATA: Final = {"s2": "metadata", "s1": "metadata_s1"}
_NAMES: Final = {"s2": S2_NAME, "s1": S1_NAME}
_PARTS: Final = {
    kind: {f"{band}.tif": band for band in bands} | {"labels_metadata.json": METADATA[kind]}
    for kind, bands in BANDS.items()
}
_PART: Final = re.compile(
    r"(?P<patch>.+)_(?P<part>"
    + "|".join(sorted({re.escape(part) for parts in _PARTS.values() for part in parts}))
    + ")"
)
_ROLES: Final = {role: place for place, role in enumerate((*S2_BANDS, *S1_BANDS, *METADATA.values(), "unknown"))}
"""Order of a sample's files: bands as in the schema, then label files."""

_LITTER: Final = {"thumbs.db", "desktop.ini", "__macosx", "@eadir"}
_EPSG: Final = re.compile(r'AUTHORITY\["EPSG",\s*"(32[67][0-9]{2})"\]\s*\]\s*$')


def is_litter(path: str) -> bool:
    """Hidden files and folders, and what file managers and GIS programs leave behind."""
    return path.endswith(".aux.xml") or any(
        part.startswith(".") or part.casefold() in _LITTER for part in path.split("/")
    )


def units_of_folder(folder: str, members: Sequence[tuple[str, int]]) -> Iterator[Unit]:
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
    return Unit(key, kind, pack_files(in_order(files)))


def _patch_name(unit: Unit) -> str:
    return unit.key.rpartition("/")[2]


def is_v2(patch: str) -> bool:
    """Whether a Sentinel-2 name is one of v2."""
    match = S2_NAME.fullmatch(patch)
    return match is not None and match["v2"] is not None


def day_of(match: re.Match[str]) -> str:
    """The day of a patch name as an ISO date; empty where the calendar has no such day."""
    digits = match["date"]
    try:
        return date(int(digits[:4]), int(digits[4:6]), int(digits[6:])).isoformat()
    except ValueError:
        return ""


def check_patch(unit: Unit, contents: Mapping[str, bytes]) -> Report:
    """Decode every band of one patch and read its label file.

    Facts of the report: ``patch`` (its name; empty where that is wrong) and, with a label file that can be read,
    ``labels`` as written, ``partner``, ``region``, ``longitude`` and ``latitude``.
    """
    faults = list(_check_files(unit))
    # A patch under a wrong name has none: it must not stand for the one of that name.
    patch = "" if any(fault.reason == "bad_name" for fault in faults) else _patch_name(unit)
    sums: dict[str, BandSums] = {}
    for file in unit.files:
        if file.role in BANDS[unit.kind]:
            try:
                sums[file.role] = _check_band(file.role, unit.kind, contents[file.path])
            except BadContent as bad:
                faults.append(Finding(bad.reason, file.path, f"{file.role}: {bad.detail}"))
    faults += _zero_bands(unit, sums)
    facts: dict[str, Any] = {"patch": patch}
    warnings: list[Finding] = []
    metadata = next((file for file in unit.files if file.role == METADATA[unit.kind]), None)
    if metadata is not None:
        try:
            values = read_json_object(contents[metadata.path])
            facts |= _read_facts(values)
            place, odd = _locate(values)
            facts |= place
            warnings = [Finding("odd_coordinates", metadata.path, detail) for detail in odd]
        except BadContent as bad:
            faults.append(Finding(bad.reason, metadata.path, bad.detail))
    elif unit.kind == "s2" and not is_v2(patch):
        name = f"{_patch_name(unit)}_labels_metadata.json"
        faults.append(Finding("missing_labels", unit.key, f"expected {name}, found none"))
    return Report(unit.key, unit.kind, unit.files, tuple(faults), tuple(warnings), facts, sums)


def _check_files(unit: Unit) -> Iterator[Finding]:
    """Faults of names alone: the patch's, foreign files, missing bands."""
    patch, folder = _patch_name(unit), unit.files[0].path.rpartition("/")[0]
    match = _NAMES[unit.kind].fullmatch(patch)
    sensor = {"s2": "Sentinel-2", "s1": "Sentinel-1"}[unit.kind]
    if match is None or not day_of(match):
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
    missing = [band for band in BANDS[unit.kind] if band not in present]
    if missing:
        total = len(BANDS[unit.kind])
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
    side = BANDS[kind][band]
    array = read_tiff(content, (side, side))
    check_dtype(array, DTYPES[kind])
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
    if len(zero) == len(BANDS[unit.kind]):
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


def _locate(metadata: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Where a v1 patch lies, and what is odd about it.

    Returns:
        ``region``: the 100 km square of its centre as ``<EPSG code>_<column>_<row>`` (such as ``32633_4_53``), with
        ``longitude`` and ``latitude`` of the centre; empty where unknown. And a sentence for everything that cannot be
        right.
    """
    odd = []
    unknown = {"region": "", "longitude": "", "latitude": ""}
    epsg = _EPSG.search(str(metadata.get("projection", "")))
    if epsg is None:
        odd.append("the projection does not end with the EPSG code of a UTM zone")
    corners = metadata.get("coordinates")
    corners = corners if isinstance(corners, dict) else {}
    # Sentinel-1's files call the lower edge lly.
    found = [corners.get(key) for key in ("ulx", "uly", "lrx", "lry" if "lry" in corners else "lly")]
    metres = [corner for corner in found if _is_metres(corner)]
    if len(metres) < 4:
        return unknown, [*odd, f"expected corners in metres of UTM, found {_shown(corners)}"]
    ulx, uly, lrx, lry = metres
    if (lrx - ulx, uly - lry) != (PATCH_METRES, PATCH_METRES):
        odd.append(
            f"the corners span {lrx - ulx} m by {uly - lry} m, expected {PATCH_METRES} by {PATCH_METRES} "
            f"(ulx {ulx}, uly {uly}, lrx {lrx}, lry {lry})"
        )
    odd += _odd_outline(metadata.get("geometry"))
    if epsg is None:
        return unknown, odd
    half = PATCH_METRES // 2
    region = f"{epsg[1]}_{int(ulx + half) // 100_000}_{int(uly - half) // 100_000}"
    return {"region": region} | _degrees(int(epsg[1]), ulx, uly), odd


def place_of_tile(match: re.Match[str]) -> dict[str, str]:
    """``longitude`` and ``latitude`` of a v2 patch's centre, from the tile, column and row in its name."""
    try:
        epsg, ulx, uly = tile_corner(match["tile"])
    except ValueError:
        return {"longitude": "", "latitude": ""}
    column, row = (int(part) for part in match[0].split("_")[-2:])
    return _degrees(epsg, ulx + PATCH_METRES * column, uly - PATCH_METRES * row)


def _degrees(epsg: int, ulx: float, uly: float) -> dict[str, str]:
    """``longitude`` and ``latitude`` of a patch's centre: degrees as text, to 0.1 m; empty outside any zone."""
    half = PATCH_METRES // 2
    try:
        longitude, latitude = to_degrees(epsg, ulx + half, uly - half)
    except ValueError:
        return {"longitude": "", "latitude": ""}
    return {"longitude": f"{longitude:.6f}", "latitude": f"{latitude:.6f}"}


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


def in_order(files: Iterable[SourceFile]) -> tuple[SourceFile, ...]:
    """Bands as in the schema, then label files."""
    return tuple(sorted(files, key=lambda file: (_ROLES[file.role], file.path)))
