"""Small raw trees in the true formats, and the working folders that use them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from shardtrail.execution import Mapper, serial_mapper
from shardtrail.job import Job, open_job
from shardtrail.layouts.bigearthnet import S1_BANDS, S2_BANDS

PROJECTION = 'PROJCS["WGS 84 / UTM zone 33N",AUTHORITY["EPSG","32633"]]'
LABELS = ("Pastures", "Coniferous forest", "Sea and ocean", "Water bodies")


def patch_name(number: int) -> str:
    """The Sentinel-2 name of patch ``number``: one a month, at its place in the grid."""
    return f"S2A_MSIL2A_2017{number % 12 + 1:02}13T101031_{number}_{number % 7}"


def write_s2(root: Path, number: int, labels: Sequence[str] | None = None, seed: int | None = None) -> Path:
    """One Sentinel-2 patch in BigEarthNet v1's format. Every third number lies in the same 100 km square."""
    name = patch_name(number)
    folder = root / "BigEarthNet-v1.0" / name
    folder.mkdir(parents=True)
    rng = np.random.default_rng(number if seed is None else seed)
    for band, side in S2_BANDS.items():
        tifffile.imwrite(folder / f"{name}_{band}.tif", rng.integers(1, 4000, (side, side)).astype("<u2"))
    metadata = {
        "labels": list(labels) if labels is not None else [LABELS[number % 4], LABELS[0]][: 1 + number % 2],
        "coordinates": _corners(number, "lry"),
        "projection": PROJECTION,
        "tile_source": "S2A_MSIL1C_20170613T101031_N0205_R022_T33UUP_20170613T101608.SAFE",
        "acquisition_date": "2017-06-13 10:10:31",
    }
    (folder / f"{name}_labels_metadata.json").write_text(json.dumps(metadata))
    return folder


def write_s1(root: Path, number: int) -> Path:
    """The Sentinel-1 partner of patch ``number``."""
    name = f"S1A_IW_GRDH_1SDV_20170613T165043_33UUP_{number}_{number % 7}"
    folder = root / "BigEarthNet-S1-v1.0" / name
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1000 + number)
    for band, side in S1_BANDS.items():
        tifffile.imwrite(folder / f"{name}_{band}.tif", rng.normal(-12, 3, (side, side)).astype("<f4"))
    metadata = {
        "labels": [LABELS[number % 4]],
        "coordinates": _corners(number, "lly"),
        "projection": PROJECTION,
        "corresponding_s2_patch": patch_name(number),
        "scene_source": "S1A_IW_GRDH_1SDV_20170613T165043",
        "acquisition_time": "2017-06-13T16:50:43",
    }
    (folder / f"{name}_labels_metadata.json").write_text(json.dumps(metadata))
    return folder


def _corners(number: int, lower: str) -> dict[str, int]:
    ulx, uly = 300_000 + 100_000 * (number % 3) + 1200 * number, 5_342_400
    return {"ulx": ulx, "uly": uly, "lrx": ulx + 1200, lower: uly - 1200}


def write_numbers(root: Path, samples: dict[str, dict[str, Any]]) -> Path:
    """A tree of the layout ``numbers_layout:Numbers``: one JSON file a sample, by its path."""
    for path, content in samples.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))
    return root


def working_folder(root: Path, source: Path, **params: Any) -> Path:
    """A folder with a ``params.yaml`` (JSON is YAML)."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "params.yaml").write_text(json.dumps({"source": str(source), **params}))
    return root


def numbers_folder(root: Path, source: Path, **params: Any) -> Path:
    """A working folder whose source is a tree of numbers."""
    return working_folder(root, source, layout="numbers_layout:Numbers", **params)


def job_in(root: Path, mapper: Mapper = serial_mapper, **changes: Any) -> Job:
    """The job of a working folder."""
    import dataclasses

    return dataclasses.replace(open_job(root, mapper=mapper), **changes)


def let_settle(root: Path) -> None:
    """Wait until no file of a tree is so young that its time stamps could hide a later change."""
    newest = max(path.stat().st_ctime_ns for path in root.rglob("*"))
    time.sleep(max(0.0, newest / 1e9 + 2.1 - time.time()))


def tree_state(root: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and modification time of every file of a tree."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def outputs(root: Path) -> dict[str, bytes]:
    """Bytes of everything in ``data/``."""
    return {path.name: path.read_bytes() for path in sorted((root / "data").iterdir())}
