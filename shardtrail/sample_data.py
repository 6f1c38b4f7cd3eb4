"""A made-up BigEarthNet v1 archive: true layout, names and formats, invented pixels.

    made = make_sample_data(Path("raw"), samples=600)
    made.broken   # patches broken on purpose, each with the reason that quarantine.csv gives

Every machine and every numpy makes the same bytes: pixels come from integer arithmetic on a hash of
(seed, patch), and Sentinel-1's decibels are sixteenths, which float32 holds exactly. Each class has a spectrum,
a backscatter and a texture of its own, so that a small network learns it.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from shardtrail.errors import ConfigError, StageFailed
from shardtrail.execution import local_mapper, serial_mapper
from shardtrail.layouts.bigearthnet_classes import CLASSES_43, TO_19
from shardtrail.progress import Progress, Silent

S2_FOLDER: Final = "BigEarthNet-v1.0"
S1_FOLDER: Final = "BigEarthNet-S1-v1.0"

_BATCH: Final = 25
"""Patches of one unit of work."""

_GRID: Final = 83
"""Patches a side that fit the 100 km square at a tile's upper left corner."""

_REVISIT_DAYS: Final = 20
"""When a tile is full, its next patches are of a later day."""


@dataclass(frozen=True, slots=True)
class SampleData:
    """What was made.

    Attributes:
        root: the archive's folder, to be used as ``source``.
        samples: Sentinel-2 patches there are now, the broken ones included.
        written: patches written by this call; the others were there.
        broken: ``(Sentinel-2 name, reason)`` of each patch broken on purpose.
    """

    root: Path
    samples: int
    written: int
    broken: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Scene:
    """One tile as both satellites see it first. Times are text, as in the real names."""

    tile: str
    ulx: int
    uly: int
    s2: str
    day: date
    s2_time: str
    s1_start: str
    s1_end: str


_SCENES: Final = (
    _Scene("33UUP", 300000, 5400000, "S2A", date(2017, 6, 13), "101031", "165043", "165108"),
    _Scene("29UPU", 600000, 5900040, "S2A", date(2017, 6, 17), "113321", "064724", "064749"),
    _Scene("34TEQ", 499980, 5000040, "S2B", date(2017, 7, 1), "93039", "162516", "162541"),
    _Scene("29SND", 499980, 4400040, "S2A", date(2017, 12, 21), "112501", "064238", "064303"),
    _Scene("35VPK", 600000, 7000020, "S2B", date(2018, 2, 4), "94161", "043253", "043318"),
    _Scene("35VNH", 499980, 6800040, "S2B", date(2017, 9, 24), "093019", "043321", "043346"),
    _Scene("35VLC", 300000, 6300000, "S2B", date(2017, 9, 27), "094019", "043436", "043501"),
    _Scene("35WPN", 600000, 7300020, "S2A", date(2018, 5, 10), "94033", "152514", "152539"),
    _Scene("33UVP", 399960, 5400000, "S2A", date(2017, 8, 18), "101021", "165110", "165135"),
    _Scene("34TFQ", 600000, 5000040, "S2B", date(2017, 11, 13), "093231", "162541", "162606"),
    _Scene("29SNC", 499980, 4300020, "S2A", date(2017, 10, 2), "112111", "064303", "064328"),
    _Scene("35VPJ", 600000, 6900000, "S2A", date(2018, 4, 26), "95031", "043318", "043343"),
    _Scene("29UNU", 499980, 5900040, "S2B", date(2018, 4, 21), "114349", "063917", "063942"),
    _Scene("35VMH", 399960, 6800040, "S2A", date(2018, 3, 9), "100021", "044130", "044155"),
)


@dataclass(frozen=True, slots=True)
class _Look:
    """How a class looks: reflectance times 10,000 in blue, green, red, red edge, near and two short-wave infrareds;
    backscatter of VV and VH in dB; texture."""

    spectrum: tuple[int, int, int, int, int, int, int]
    backscatter: tuple[int, int]
    texture: int


_LOOKS: Final = {
    "": _Look((1400, 1500, 1600, 1700, 1900, 2100, 1900), (-9, -17), 0),
    "Urban fabric": _Look((900, 1100, 1200, 1400, 2100, 2200, 1900), (-3, -10), 3),
    "Industrial or commercial units": _Look((1800, 2000, 2100, 2200, 2500, 2800, 2600), (1, -8), 4),
    "Arable land": _Look((700, 1000, 1100, 1500, 2700, 2900, 2000), (-11, -18), 1),
    "Permanent crops": _Look((600, 850, 950, 1300, 2100, 2400, 1600), (-12, -16), 5),
    "Pastures": _Look((400, 850, 500, 1400, 4300, 2100, 1100), (-12, -20), 0),
    "Complex cultivation patterns": _Look((600, 900, 800, 1400, 3100, 2300, 1500), (-10, -17), 3),
    "Land principally occupied by agriculture, with significant areas of natural vegetation": _Look(
        (500, 800, 650, 1300, 3500, 1900, 1000), (-10, -15), 2
    ),
    "Agro-forestry areas": _Look((600, 950, 1000, 1500, 2300, 2800, 1700), (-9, -15), 5),
    "Broad-leaved forest": _Look((250, 600, 300, 1000, 3800, 1600, 700), (-8, -13), 6),
    "Coniferous forest": _Look((150, 300, 200, 500, 1700, 750, 350), (-9, -14), 6),
    "Mixed forest": _Look((200, 450, 250, 750, 2700, 1150, 500), (-8, -14), 6),
    "Natural grassland and sparsely vegetated areas": _Look((750, 1050, 1250, 1600, 2000, 3100, 2400), (-13, -21), 0),
    "Moors, heathland and sclerophyllous vegetation": _Look((400, 500, 650, 850, 1300, 2000, 1400), (-11, -18), 2),
    "Transitional woodland, shrub": _Look((350, 650, 450, 1000, 2300, 1900, 1000), (-10, -15), 4),
    "Beaches, dunes, sands": _Look((2600, 3200, 3600, 3800, 4000, 4400, 4000), (-17, -26), 0),
    "Inland wetlands": _Look((350, 550, 450, 750, 1500, 900, 400), (-14, -20), 1),
    "Coastal wetlands": _Look((800, 1000, 900, 950, 1100, 700, 400), (-15, -23), 2),
    "Inland waters": _Look((300, 450, 250, 180, 120, 70, 40), (-20, -28), 0),
    "Marine waters": _Look((800, 700, 350, 200, 110, 60, 30), (-17, -27), 1),
}

_MIXTURE: Final = (
    ("B01", 20, (4, 0, 0, 0, 0, 0, 0)),
    ("B02", 120, (4, 0, 0, 0, 0, 0, 0)),
    ("B03", 120, (0, 4, 0, 0, 0, 0, 0)),
    ("B04", 120, (0, 0, 4, 0, 0, 0, 0)),
    ("B05", 60, (0, 0, 0, 4, 0, 0, 0)),
    ("B06", 60, (0, 0, 0, 1, 3, 0, 0)),
    ("B07", 60, (0, 0, 0, 0, 4, 0, 0)),
    ("B08", 120, (0, 0, 0, 0, 4, 0, 0)),
    ("B8A", 60, (0, 0, 0, 0, 4, 0, 0)),
    ("B09", 20, (0, 0, 0, 0, 3, 1, 0)),
    ("B11", 60, (0, 0, 0, 0, 0, 4, 0)),
    ("B12", 60, (0, 0, 0, 0, 0, 0, 4)),
)
"""Band, pixels a side, and quarters of the seven colours of a ``_Look`` that it mixes."""

_FREQUENT: Final = {
    "Coniferous forest": 90,
    "Mixed forest": 90,
    "Non-irrigated arable land": 85,
    "Transitional woodland/shrub": 65,
    "Broad-leaved forest": 65,
    "Land principally occupied by agriculture, with significant areas of natural vegetation": 60,
    "Complex cultivation patterns": 50,
    "Pastures": 50,
    "Discontinuous urban fabric": 35,
    "Sea and ocean": 35,
    "Water bodies": 35,
    "Agro-forestry areas": 20,
    "Peatbogs": 14,
    "Industrial or commercial units": 12,
    "Olive groves": 10,
    "Permanently irrigated land": 10,
    "Natural grassland": 10,
    "Sclerophyllous vegetation": 9,
    "Continuous urban fabric": 8,
    "Water courses": 8,
    "Vineyards": 8,
    "Moors and heathland": 6,
}
_WEIGHTS: Final = tuple(_FREQUENT.get(name, 3) for name in CLASSES_43)
"""How often a class is drawn: a long tail, as in the real archive."""

_FAULTS: Final = ("missing_band", "unreadable_tiff", "all_zero", "unknown_label", "non_finite", "missing_partner")
_S2_FAULTS: Final = _FAULTS[:4]


def make_sample_data(
    target: Path,
    samples: int = 600,
    seed: int = 0,
    sentinel1: bool = True,
    broken: int | None = None,
    workers: int = 0,
    progress: Progress | None = None,
) -> SampleData:
    """Write an archive below ``target``, or complete one that was begun.

    A patch folder appears as a whole, and one that is there is left alone: after an interruption the same call
    goes on, and a call with more samples adds them.

    Args:
        target: folder that gets ``BigEarthNet-v1.0`` and ``BigEarthNet-S1-v1.0``.
        samples: Sentinel-2 patches, the broken ones included.
        seed: other seeds give other labels and pixels.
        sentinel1: whether each patch gets its Sentinel-1 partner.
        broken: patches to break on purpose, spread evenly; none: one in a hundred.
        workers: processes; 0: as many as there are usable cores.
        progress: told how far it is.

    Raises:
        ConfigError: ``target`` holds sample data of another seed, or the numbers make no sense.
        StageFailed: patches could not be written.
    """
    if samples < 1 or not 0 <= (broken or 0) <= samples:
        raise ConfigError(f"sample data: samples must be positive and broken at most that (got {samples}, {broken})")
    progress = progress or Silent()
    faults = _plan_faults(samples, broken, sentinel1)
    recipes = [_Recipe(str(target), index, seed, sentinel1, faults.get(index, "")) for index in range(samples)]
    _refuse_other_seed(recipes[:20])
    batches = [tuple(recipes[start : start + _BATCH]) for start in range(0, samples, _BATCH)]
    units = [(f"patches {batch[0].index} to {batch[-1].index}", batch) for batch in batches]
    written, failures = 0, []
    progress.start("sample-data", samples, "patches")
    with local_mapper(workers) as pool:
        mapper = pool if len(units) > 1 else serial_mapper
        for outcome in mapper("sample-data", write_batch, units):
            if outcome.value is None:
                failures.append((outcome.label, outcome.error))
            else:
                written += outcome.value[0]
                progress.advance(outcome.value[1])
    if failures:
        raise StageFailed("sample-data", failures, "Run the same command again: patches that are there stay.")
    progress.finish(f"{samples} patches in {target}, {written} of them new, {len(faults)} broken on purpose")
    return SampleData(
        target, samples, written, tuple((_Patch(recipes[index]).s2_name, fault) for index, fault in faults.items())
    )


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Everything that decides one patch's bytes, and where they go."""

    target: str
    index: int
    seed: int
    sentinel1: bool
    fault: str


def _plan_faults(samples: int, broken: int | None, sentinel1: bool) -> dict[int, str]:
    """Index of each broken patch -> its fault. With ``broken`` none, more samples leave the first ones as they are."""
    stride = 100 if broken is None else samples // max(broken, 1)
    count = samples // 100 if broken is None else broken
    kinds = _FAULTS if sentinel1 else _S2_FAULTS
    return {place * stride + stride // 2: kinds[place % len(kinds)] for place in range(count)}


def _refuse_other_seed(recipes: Sequence[_Recipe]) -> None:
    for recipe in recipes:
        patch = _Patch(recipe)
        path = Path(recipe.target, S2_FOLDER, patch.s2_name, f"{patch.s2_name}_labels_metadata.json")
        if path.exists() and path.read_bytes() != patch.s2_metadata():
            raise ConfigError(f"{path} is of other sample data (another seed?); choose an empty folder")


def write_batch(batch: Sequence[_Recipe]) -> tuple[int, int]:
    """Write the patches that are not there yet; runs in a worker.

    Returns:
        Patches written, patches of the batch.
    """
    return sum(_write_patch(recipe) for recipe in batch), len(batch)


def _write_patch(recipe: _Recipe) -> bool:
    patch = _Patch(recipe)
    s2 = Path(recipe.target, S2_FOLDER, patch.s2_name)
    s1 = Path(recipe.target, S1_FOLDER, patch.s1_name)
    wanted: list[tuple[Path, Callable[[], dict[str, bytes]]]] = []
    if not s2.exists():
        wanted.append((s2, patch.s2_files))
    if recipe.sentinel1 and recipe.fault != "missing_partner" and not s1.exists():
        wanted.append((s1, patch.s1_files))
    for folder, files in wanted:
        _write_folder(folder, files())
    return bool(wanted)


def _write_folder(folder: Path, files: dict[str, bytes]) -> None:
    """All files or none: written under a hidden name, then renamed."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for ending, content in files.items():
        (temporary / f"{folder.name}_{ending}").write_bytes(content)
    os.replace(temporary, folder)


class _Patch:
    """One patch of both sensors: names, labels and files as functions of its recipe alone."""

    def __init__(self, recipe: _Recipe) -> None:
        self._recipe = recipe
        self._scene = _SCENES[recipe.index % len(_SCENES)]
        visit, place = divmod(recipe.index // len(_SCENES), _GRID**2)
        # 2,903 has no divisor in common with 83 * 83: every place once, neighbours far apart.
        start = 4569 + 997 * (recipe.index % len(_SCENES))
        self._v, self._h = divmod((place * 2903 + start) % _GRID**2, _GRID)
        self._day = self._scene.day + timedelta(days=visit * _REVISIT_DAYS)
        digits = self._day.strftime("%Y%m%d")
        self._draws = _draws(_mix(_mix(recipe.seed) ^ recipe.index))
        # All draws are made here, in one order, so that each file is the same whichever others are written.
        self._key = next(self._draws)
        self._classes = self._draw_classes()
        self._owners, self._centres = self._draw_cells()
        self._light = 236 + self._draw(41)
        self._texture_at = self._draw(120), self._draw(120)
        self.s2_name = f"{self._scene.s2}_MSIL2A_{digits}T{self._scene.s2_time}_{self._h}_{self._v}"
        self.s1_name = f"S1A_IW_GRDH_1SDV_{digits}T{self._scene.s1_start}_{self._scene.tile}_{self._h}_{self._v}"

    def _draw(self, below: int) -> int:
        return next(self._draws) % below

    def _draw_classes(self) -> list[int]:
        """One to five different indices of the 43 classes, ascending as in the real files."""
        count = (1, 1, 1, 2, 2, 2, 3, 3, 4, 5)[self._draw(10)]
        drawn: set[int] = set()
        while len(drawn) < count:
            point = self._draw(sum(_WEIGHTS))
            for index, weight in enumerate(_WEIGHTS):
                point -= weight
                if point < 0:
                    # The first one is of the nomenclature of 19 too: no patch ends up without a label.
                    if drawn or TO_19[CLASSES_43[index]]:
                        drawn.add(index)
                    break
        return sorted(drawn)

    def _draw_cells(self) -> tuple[list[int], np.ndarray]:
        """Nine cells: the class (its place among the patch's) that owns each, every class at least one; and
        [2, 9] int32 row and column of their centres."""
        classes = len(self._classes)
        owners = list(range(classes)) + [self._draw(classes) for _ in range(9 - classes)]
        for last in range(8, 0, -1):
            other = self._draw(last + 1)
            owners[last], owners[other] = owners[other], owners[last]
        centres = [[20 + 40 * at + self._draw(25) - 12 for at in divmod(cell, 3)] for cell in range(9)]
        return owners, np.array(centres, dtype=np.int32).T

    def s2_metadata(self) -> bytes:
        """The label file, byte for byte in the real one's form."""
        digits, tile, time = self._day.strftime("%Y%m%d"), self._scene.tile, self._scene.s2_time
        clock = time.zfill(6)
        labels = self._labels()
        if self._recipe.fault == "unknown_label":
            labels.append("Coniferous forests")
        return _to_bytes(
            {
                "labels": labels,
                "coordinates": self._corners("lry"),
                "projection": _projection(self._zone),
                "tile_source": f"{self._scene.s2}_MSIL1C_{digits}T{time}_N0205_R022_T{tile}_{digits}T{clock}.SAFE",
                "acquisition_date": f"{self._day.isoformat()} {_clock(clock)}",
            }
        )

    def s1_metadata(self) -> bytes:
        """As ``s2_metadata``; the real Sentinel-1 files say ``lly`` and ``acquisition_time``."""
        digits, scene = self._day.strftime("%Y%m%d"), self._scene
        orbit = 16000 + self._day.toordinal() % 5000
        return _to_bytes(
            {
                "labels": self._labels(),
                "coordinates": self._corners("lly"),
                "projection": _projection(self._zone),
                "corresponding_s2_patch": self.s2_name,
                "scene_source": (
                    f"S1A_IW_GRDH_1SDV_{digits}T{scene.s1_start}_{digits}T{scene.s1_end}"
                    f"_{orbit:06}_{orbit * 7:06X}_{_mix(orbit) & 0xFFFF:04X}"
                ),
                "acquisition_time": f"{self._day.isoformat()}T{_clock(scene.s1_start)}",
            }
        )

    def s2_files(self) -> dict[str, bytes]:
        """Twelve bands and the label file, by the ending of their names."""
        files = {}
        for place, (band, side, mixture) in enumerate(_MIXTURE):
            step = 120 // side
            colours = self._spectra @ np.array(mixture, dtype=np.int64) // 4
            area = self._area[::step, ::step]
            change = 256 + self._texture[::step, ::step] + (self._noise(place, side) >> 3)
            values = np.maximum(colours[area] * change * self._light >> 16, 1)
            if self._recipe.fault == "all_zero" and band == "B08":
                values[:] = 0
            files[f"{band}.tif"] = self._tiff(values.astype("<u2"))
        if self._recipe.fault == "missing_band":
            del files["B09.tif"]
        if self._recipe.fault == "unreadable_tiff":
            files["B04.tif"] = files["B04.tif"][:-7000]
        return files | {"labels_metadata.json": self.s2_metadata()}

    def s1_files(self) -> dict[str, bytes]:
        """Two polarisations and the label file."""
        files = {}
        for place, band in enumerate(("VV", "VH")):
            sixteenths = self._backscatter[:, place][self._area] + (self._texture >> 1)
            sixteenths += 3 * self._noise(len(_MIXTURE) + place, 120) >> 3
            values = sixteenths.astype("<f4") / np.float32(16)
            if self._recipe.fault == "non_finite" and band == "VH":
                values[7, 10:15] = np.nan
            files[f"{band}.tif"] = self._tiff(values)
        return files | {"labels_metadata.json": self.s1_metadata()}

    @property
    def _zone(self) -> int:
        return int(self._scene.tile[:2])

    def _labels(self) -> list[str]:
        return [CLASSES_43[index] for index in self._classes]

    def _corners(self, lower: str) -> dict[str, int]:
        ulx, uly = self._scene.ulx + 1200 * self._h, self._scene.uly - 1200 * self._v
        return {"ulx": ulx, "uly": uly, "lrx": ulx + 1200, lower: uly - 1200}

    def _tiff(self, values: np.ndarray) -> bytes:
        corners = self._corners("lry")
        return _tiff(values, self._zone, corners["ulx"], corners["uly"])

    @functools.cached_property
    def _area(self) -> np.ndarray:
        """[120, 120] which of the patch's classes covers a pixel: the owner of the nearest cell."""
        row, column = self._centres[:, :, None, None]
        side = np.arange(120, dtype=np.int32)
        distance = np.square(side[:, None] - row) + np.square(side - column)
        covered: np.ndarray = np.array(self._owners)[distance.argmin(axis=0)]
        return covered

    @functools.cached_property
    def _looks(self) -> list[_Look]:
        return [_LOOKS[TO_19[name]] for name in self._labels()]

    @functools.cached_property
    def _spectra(self) -> np.ndarray:
        """[class, 7] colours of the patch's classes; classes that share a look differ in brightness."""
        shade = np.array([[100 + 7 * (index % 3 - 1)] for index in self._classes], dtype=np.int64)
        return np.array([look.spectrum for look in self._looks], dtype=np.int64) * shade // 100

    @functools.cached_property
    def _backscatter(self) -> np.ndarray:
        """[class, 2] VV and VH in sixteenths of a decibel."""
        return np.array([look.backscatter for look in self._looks], dtype=np.int64) * 16

    @functools.cached_property
    def _texture(self) -> np.ndarray:
        """[120, 120] from -64 to 64, each class with its own pattern at a drawn place."""
        x, y = self._texture_at
        patterns = _patterns()[:, y : y + 120, x : x + 120]
        kinds = np.array([look.texture for look in self._looks])[self._area]
        texture: np.ndarray = np.take_along_axis(patterns, kinds[None], axis=0)[0]
        return texture

    def _noise(self, band: int, side: int) -> np.ndarray:
        """[side, side] from -128 to 127, of this patch and band."""
        return _noise(_mix(self._key ^ band), side)


def _mix(value: int) -> int:
    """A 64-bit hash.

    Source:
        SplitMix64: G. Steele, D. Lea, C. Flood, OOPSLA 2014.
    """
    value = (value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)


def _draws(key: int) -> Iterator[int]:
    while True:
        key = _mix(key)
        yield key >> 11


def _noise(key: int, side: int) -> np.ndarray:
    """[side, side] int64 from -128 to 127: bytes of ``_mix`` over a counter; unsigned arithmetic wraps."""
    value = np.arange((side * side + 7) // 8, dtype="<u8") * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
    noise: np.ndarray = value.view(np.uint8)[: side * side].reshape(side, side).astype(np.int64) - 128
    return noise


@functools.cache
def _patterns() -> np.ndarray:
    """[7, 240, 240] int64 from -64 to 64: plain, narrow and slanted stripes, two checkers, dots, grain."""
    y, x = np.mgrid[0:240, 0:240]
    signs = (
        y % 6 < 3,
        (x + y) % 12 < 6,
        (x // 8 + y // 8) % 2 == 0,
        (x // 16 + y // 16) % 2 == 0,
        (x % 6 < 3) & (y % 6 < 3),
    )
    stripes = [np.where(sign, 40, -40) for sign in signs]
    return np.stack([np.zeros((240, 240), np.int64), *stripes, _noise(1, 240) >> 1]).astype(np.int64)


def _to_bytes(metadata: dict[str, Any]) -> bytes:
    """JSON on one line without a newline at the end, as the real files are."""
    return json.dumps(metadata).encode("ascii")


def _clock(digits: str) -> str:
    return f"{digits[:2]}:{digits[2:4]}:{min(int(digits[4:]), 59):02}"


def _projection(zone: int) -> str:
    """Well-known text of a northern UTM zone on WGS 84."""
    return (
        f'PROJCS["WGS 84 / UTM zone {zone}N",GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563,'
        'AUTHORITY["EPSG","7030"]],AUTHORITY["EPSG","6326"]],PRIMEM["Greenwich",0,AUTHORITY["EPSG","8901"]],'
        'UNIT["degree",0.0174532925199433,AUTHORITY["EPSG","9122"]],AXIS["Latitude",NORTH],AXIS["Longitude",EAST],'
        'AUTHORITY["EPSG","4326"]],PROJECTION["Transverse_Mercator"],PARAMETER["latitude_of_origin",0],'
        f'PARAMETER["central_meridian",{6 * zone - 183}],PARAMETER["scale_factor",0.9996],'
        'PARAMETER["false_easting",500000],PARAMETER["false_northing",0],UNIT["metre",1,AUTHORITY["EPSG","9001"]],'
        f'AXIS["Easting",EAST],AXIS["Northing",NORTH],AUTHORITY["EPSG","{32600 + zone}"]]'
    )


def _tiff(values: np.ndarray, zone: int, ulx: int, uly: int) -> bytes:
    """A little-endian GeoTIFF in uncompressed strips of up to 8 KiB, tag for tag like the archive's own.

    Args:
        values: [side, side] ``<u2`` or ``<f4``, covering 1,200 m.
        zone: UTM zone, north.
        ulx: easting of the upper left corner in metres.
        uly: its northing.

    Source:
        TIFF 6.0; OGC GeoTIFF 1.1.
    """
    side, size = len(values), values.dtype.itemsize
    rows = min(side, 8192 // (side * size))
    heights = [min(rows, side - top) for top in range(0, side, rows)]
    counts = [height * side * size for height in heights]
    keys = [1, 1, 0, 7, 1024, 0, 1, 1, 1025, 0, 1, 1, 1026, 34737, 22, 0, 2049, 34737, 7, 22, 2054, 0, 1, 9102]
    keys += [3072, 0, 1, 32600 + zone, 3076, 0, 1, 9001]
    short, long, double, text = 3, 4, 12, 2
    values_of: list[tuple[int, int, Sequence[float]]] = [
        (256, short, [side]),
        (257, short, [side]),
        (258, short, [8 * size]),
        (259, short, [1]),
        (262, short, [1]),
        (273, long, [0] * len(counts)),
        (277, short, [1]),
        (278, short, [rows]),
        (279, long, counts),
        (284, short, [1]),
        (339, short, [3 if values.dtype.kind == "f" else 1]),
        (33550, double, [1200 / side, 1200 / side, 0]),
        (33922, double, [0, 0, 0, ulx, uly, 0]),
        (34735, short, keys),
        (34737, text, f"WGS 84 / UTM zone {zone}N|WGS 84|\0".encode()),
    ]
    codes = {short: "H", long: "I", double: "d", text: "B"}
    packed = {tag: struct.pack(f"<{len(numbers)}{codes[kind]}", *numbers) for tag, kind, numbers in values_of}
    # Values of more than four bytes follow the directory: the strips' first, then the others in tag order.
    long_tags = [tag for tag in (279, 273, 33550, 33922, 34735, 34737) if len(packed[tag]) > 4]
    place, places = 8 + 2 + 12 * len(values_of) + 4, {}
    for tag in long_tags:
        places[tag] = place
        place += len(packed[tag])
    packed[273] = struct.pack(f"<{len(counts)}I", *(place + sum(counts[:strip]) for strip in range(len(counts))))
    entries = [
        struct.pack("<HHI", tag, kind, len(numbers))
        + (struct.pack("<I", places[tag]) if tag in places else packed[tag].ljust(4, b"\0"))
        for tag, kind, numbers in values_of
    ]
    return b"".join(
        [
            struct.pack("<2sHIH", b"II", 42, 8, len(entries)),
            *entries,
            bytes(4),
            *(packed[tag] for tag in long_tags),
            values.tobytes(),
        ]
    )
