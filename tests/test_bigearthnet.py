"""The layout of BigEarthNet: what is found, what is refused and why, what becomes of it."""

from __future__ import annotations

import io
import json
import pickle
import re
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rasterio
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtrail.config import BigEarthNetParams
from shardtrail.errors import ConfigError, SourceError
from shardtrail.layouts import Assembly, Grouping, Layout
from shardtrail.layouts.bigearthnet import BigEarthNet
from shardtrail.layouts.bigearthnet_classes import CLASSES_19, CLASSES_43, TO_19
from shardtrail.layouts.bigearthnet_patch import S1_BANDS, S2_BANDS
from shardtrail.layouts.checks import band_sums, read_tiff
from shardtrail.samples import Rejected, Report, Unit

S2 = "S2A_MSIL2A_20170613T101031_10_40"
S2_OTHER = "S2B_MSIL2A_20180204T94161_4_5"
S1 = "S1A_IW_GRDH_1SDV_20170613T165043_33UUP_10_40"
S1_OTHER = "S1A_IW_GRDH_1SDV_20180204T043253_35VPK_4_5"
V2 = "S2A_MSIL2A_20170613T101031_N9999_R022_T33UUP_75_43"
V2_FOLDER = f"BigEarthNet-S2/{V2.rsplit('_', 2)[0]}/{V2}"

PROJECTION = 'PROJCS["WGS 84 / UTM zone 33N",AUTHORITY["EPSG","9001"]],AUTHORITY["EPSG","32633"]]'
CORNERS = {"ulx": 404400, "uly": 5342400, "lrx": 405600, "lry": 5341200}


def tiff(array: np.ndarray, **options: Any) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, array, **options)
    return buffer.getvalue()


def reflectance(side: int = 120, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 12000, (side, side), dtype=np.uint16)


def decibel(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(-14, 4, (120, 120)).astype(np.float32)


@dataclass
class Built:
    """A tree run through group, check and assemble."""

    layout: BigEarthNet
    grouping: Grouping
    reports: Sequence[Report]
    assembly: Assembly

    @property
    def accepted(self) -> list[str]:
        return [sample.id for sample in self.assembly.samples]

    @property
    def reasons(self) -> dict[str, str]:
        return {rejected.id: rejected.finding.reason for rejected in self.assembly.rejected}

    def rejected(self, id: str) -> Rejected:
        return next(each for each in self.assembly.rejected if each.id == id)

    def detail(self, id: str) -> str:
        return self.rejected(id).finding.detail


@dataclass
class Tree:
    """Writes patches in the true layout and runs the layout over them, as the stages do."""

    root: Path
    options: dict[str, Any] = field(default_factory=dict)

    def write(self, path: str, content: bytes) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)

    def s2(
        self,
        name: str = S2,
        labels: Sequence[str] = ("Pastures",),
        files: Mapping[str, bytes | None] | None = None,
        folder: str = "",
        **metadata: Any,
    ) -> None:
        """A Sentinel-2 patch; ``files`` replaces files by ending, none leaves one out."""
        contents: dict[str, bytes | None] = {
            f"{band}.tif": tiff(reflectance(side, seed)) for seed, (band, side) in enumerate(S2_BANDS.items())
        }
        if "_N9999_" not in name:
            values = {"labels": list(labels), "coordinates": CORNERS, "projection": PROJECTION, **metadata}
            contents["labels_metadata.json"] = json.dumps(values).encode()
        self._patch(folder or f"BigEarthNet-v1.0/{name}", name, contents | dict(files or {}))

    def s1(
        self,
        name: str = S1,
        partner: str | None = S2,
        files: Mapping[str, bytes | None] | None = None,
        folder: str = "",
    ) -> None:
        """A Sentinel-1 patch; without ``partner`` it has no label file, as in v2."""
        contents: dict[str, bytes | None] = {f"{band}.tif": tiff(decibel(seed)) for seed, band in enumerate(S1_BANDS)}
        if partner is not None:
            corners = {key.replace("lry", "lly"): value for key, value in CORNERS.items()}
            values = {
                "labels": ["Pastures"],
                "coordinates": corners,
                "projection": PROJECTION,
                "corresponding_s2_patch": partner,
            }
            contents["labels_metadata.json"] = json.dumps(values).encode()
        self._patch(folder or f"BigEarthNet-S1-v1.0/{name}", name, contents | dict(files or {}))

    def _patch(self, folder: str, name: str, contents: Mapping[str, bytes | None]) -> None:
        for ending, content in contents.items():
            if content is not None:
                self.write(f"{folder}/{name}_{ending}", content)

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        defaults = {"labels": ["Pastures"], "split": "train", "country": "Austria", "s1_name": "", "s2v1_name": ""}
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([{**defaults, **row} for row in rows]), self.root / name)

    def build(self, root: Path = Path(), **options: Any) -> Built:
        layout = BigEarthNet(BigEarthNetParams(**options), root)
        paths = sorted(path for path in self.root.rglob("*") if path.is_file())
        grouping = layout.group((path.relative_to(self.root).as_posix(), path.stat().st_size) for path in paths)
        reports = [layout.check(unit, self.contents(unit)) for unit in grouping.units]
        json.dumps([dict(report.facts) for report in reports])
        assembly = layout.assemble(iter(reports), self.root, grouping.tables)
        return Built(layout, grouping, reports, assembly)

    def contents(self, unit: Unit) -> dict[str, bytes]:
        return {file.path: (self.root / file.path).read_bytes() for file in unit.files}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "raw")


def test_layout_fills_the_protocol():
    """The stages can use it as any other layout."""
    assert isinstance(BigEarthNet(BigEarthNetParams()), Layout)


def test_worker_loads_nothing_heavy():
    """A process that checks and decodes patches imports no TensorFlow, Prefect, pandas or pyarrow."""
    code = (
        "import sys, shardtrail.layouts.bigearthnet; "
        "print(sorted({'tensorflow', 'keras', 'prefect', 'pandas', 'pyarrow', 'mlflow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# What is found


@pytest.mark.parametrize("prefix", ["", "a/", "some where/ünïcode/BigEarthNet-v1.0/"])
def test_sample_is_a_patch_folder_at_any_depth(tree, prefix):
    """Twelve bands and a label file are one sample, whatever folders lie above."""
    for name in (S2, S2_OTHER):
        tree.s2(name, folder=f"{prefix}{name}")

    built = tree.build()

    assert built.accepted == [S2, S2_OTHER]
    assert [unit.key for unit in built.grouping.units] == [f"{prefix}{S2}", f"{prefix}{S2_OTHER}"]
    assert [len(unit.files) for unit in built.grouping.units] == [13, 13]
    assert built.layout.sensors == "s2"


@pytest.mark.parametrize("time", ["101031", "94033", "94161", "093019"])
@pytest.mark.parametrize("place", ["87_48", "4_55", "41_4", "0_0"])
def test_times_and_places_of_names_are_text(tree, time, place):
    """Hours without a zero, second 61 and unpadded indices make no difference; the date is read."""
    name = f"S2B_MSIL2A_20180204T{time}_{place}"
    tree.s2(name)

    (sample,) = tree.build().assembly.samples

    assert sample.id == name
    assert (sample.attributes["acquired"], sample.attributes["month"]) == ("2018-02-04", "2018-02")


def test_litter_is_set_aside_and_counted(tree):
    """Hidden files, file managers' droppings, reference maps and stray files harm no patch."""
    tree.s2()
    litter = [
        f"BigEarthNet-v1.0/{S2}/.DS_Store",
        f"BigEarthNet-v1.0/{S2}/Thumbs.db",
        f"BigEarthNet-v1.0/{S2}/desktop.ini",
        f"BigEarthNet-v1.0/{S2}/.ipynb_checkpoints/{S2}_B01.tif",
        f"BigEarthNet-v1.0/{S2}/{S2}_B02.tif.aux.xml",
        f"__MACOSX/{S2}/._{S2}_B01.tif",
        f".hidden/{S2}/{S2}_B01.tif",
        f"Reference_Maps/T33UUP/{V2}/{V2}_reference_map.tif",
        "README.md",
        "BigEarthNet-S2-v1.0.tar.gz",
    ]
    for path in litter:
        tree.write(path, b"x")

    built = tree.build()

    assert built.accepted == [S2]
    assert built.grouping.ignored == len(litter)
    assert not built.assembly.rejected


@pytest.mark.parametrize(
    "folder",
    [f"copy of {S2}", f"{S2} (1)", "", "S2A_MSIL2A_20170613T101031", "deep/inside/flat"],
)
def test_folder_of_another_name_is_refused_by_name(tree, folder):
    """Files of a patch in a folder that is not named after it are one rejected sample, never guessed at."""
    tree.s2(folder=folder or ".")

    built = tree.build()

    assert [(each.finding.reason, each.excluded) for each in built.assembly.rejected] == [("bad_name", False)]
    assert S2 in built.assembly.rejected[0].finding.detail
    assert not built.accepted


@pytest.mark.parametrize("name", ["S2A_MSIL2A_20170613T101031_87", "S2A_MSIL2A_20171399T101031_87_48", "patch-17"])
def test_name_of_another_form_is_refused(tree, name):
    """A name without both indices, with a day that no calendar has, or of another kind is not taken for a patch."""
    tree.s2(name)

    assert set(tree.build().reasons.values()) == {"bad_name"}


def test_misnamed_copy_does_not_harm_the_original(tree):
    """A copy in a folder of another name is rejected alone."""
    tree.s2()
    tree.s2(folder=f"BigEarthNet-v1.0/{S2} (copy)")

    built = tree.build()

    assert built.accepted == [S2]
    assert built.reasons == {f"BigEarthNet-v1.0/{S2} (copy)/{S2}": "bad_name"}


def test_two_patches_in_one_folder_are_two_rejects(tree):
    """Patches unpacked into one flat folder are told apart and each is named."""
    tree.s2(S2, folder="flat")
    tree.s2(S2_OTHER, folder="flat")

    assert tree.build().reasons == {f"flat/{S2}": "bad_name", f"flat/{S2_OTHER}": "bad_name"}


@pytest.mark.parametrize(
    "file", [f"{S2}_B10.tif", f"{S2_OTHER}_B02.tif", f"{S2}_VV.tif", "B02.tif", f"{S2}_B02 (1).tif"]
)
def test_file_without_a_place_in_the_patch_is_refused(tree, file):
    """Level-1C's B10, another patch's band, a copy: the patch is rejected and the file named."""
    tree.s2()
    tree.write(f"BigEarthNet-v1.0/{S2}/{file}", tiff(reflectance()))

    built = tree.build()

    assert built.reasons == {S2: "unknown_file"}
    assert file in built.detail(S2)


def test_same_patch_twice_is_refused_with_both_places(tree):
    """No copy is preferred to the other: both are named."""
    tree.s2(folder=f"a/{S2}")
    tree.s2(folder=f"b/{S2}")

    built = tree.build()

    assert built.reasons == {f"a/{S2}": "duplicate_patch", f"b/{S2}": "duplicate_patch"}
    assert f"a/{S2} and in b/{S2}" in built.detail(f"a/{S2}")


# What is read

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


@pytest.mark.parametrize(
    "options",
    [
        {"byteorder": ">"},
        {"bigtiff": True},
        {"bigtiff": True, "byteorder": ">"},
        {"tile": (64, 64)},
        {"tile": (1024, 1024), "compression": "deflate"},
        {"rowsperstrip": 4096},
        {"rowsperstrip": 7},
        {"compression": "lzw", "predictor": 2},
        {"compression": "deflate", "predictor": 2},
        {"compression": "zstd"},
        {"compression": "zstd", "predictor": 2, "tile": (32, 32)},
        {"compression": "lzma"},
        {"compression": "packbits"},
        {"extratags": [(42113, "s", 0, "0", True)]},
    ],
    ids=str,
)
def test_legal_tiff_variants_are_read_exactly(tree, options):
    """Whatever byte order, structure and lossless compression: the pixels are those that GDAL reads."""
    tree.s2(files={"B02.tif": tiff(reflectance(seed=9), **options)})

    built = tree.build()

    (sample,) = built.assembly.samples
    arrays = built.layout.decode(sample.files, [(tree.root / file.path).read_bytes() for file in sample.files])
    with rasterio.open(tree.root / f"BigEarthNet-v1.0/{S2}/{S2}_B02.tif") as dataset:
        expected = dataset.read(1)
    np.testing.assert_array_equal(arrays["B02"], expected)
    np.testing.assert_array_equal(arrays["B02"], reflectance(seed=9))
    assert arrays["B02"].dtype == np.uint16


@pytest.mark.parametrize(
    "options", [{"interleave": "band"}, {"interleave": "pixel"}, {"compress": "zstd", "predictor": 3}]
)
def test_tiffs_of_gdal_are_read_exactly(options):
    """GDAL's own files: planar with one band, and float32 with the floating-point predictor."""
    array = decibel()
    with rasterio.MemoryFile() as memory:
        with memory.open(driver="GTiff", height=120, width=120, count=1, dtype="float32", **options) as dataset:
            dataset.write(array, 1)
        content = memory.read()

    np.testing.assert_array_equal(read_tiff(content, (120, 120)), array)


def test_bands_keep_their_native_sizes(tree):
    """10, 20 and 60 m bands come as 120, 60 and 20 pixels a side, all declared."""
    tree.s2()

    built = tree.build()

    (sample,) = built.assembly.samples
    arrays = built.layout.decode(sample.files, [(tree.root / file.path).read_bytes() for file in sample.files])
    declared = {feature.name: (feature.dtype, feature.shape) for feature in built.layout.schema().features}
    assert {band: (array.dtype.name, array.shape) for band, array in arrays.items()} == declared
    assert list(declared) == ["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12"]
    assert declared["B01"] == ("uint16", (20, 20)) and declared["B8A"] == ("uint16", (60, 60))


def test_sums_are_those_of_the_pixels(tree):
    """Integer bands keep exact integer sums; Sentinel-1's are float64 sums in pixel order."""
    tree.s2(files={"B03.tif": tiff(np.full((120, 120), 65535, np.uint16))})
    tree.s1()

    reports = {report.kind: report for report in tree.build().reports}

    sums = reports["s2"].sums["B03"]
    assert (sums.count, sums.total, sums.squares) == (14400, 14400 * 65535, 14400 * 65535**2)
    assert isinstance(sums.total, int) and isinstance(sums.squares, int)
    total = squares = 0.0
    for value in decibel(1).ravel().tolist():
        total, squares = total + value, squares + value * value
    sums = reports["s1"].sums["VH"]
    assert (sums.total, sums.squares) == (total, squares)
    assert (sums.low, sums.high) == (decibel(1).min(), decibel(1).max())


@settings(deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=50), st.sampled_from(["i4", "i8"]))
def test_wide_integers_are_summed_exactly(values, dtype):
    """No sum of squares wraps around."""
    sums = band_sums(np.array(values, dtype))

    assert (sums.total, sums.squares) == (sum(values), sum(value**2 for value in values))


# What is refused


def with_tags(content: bytes, *tags: tuple[int, int]) -> bytes:
    """A little-endian TIFF with further (tag, value) entries in its directory."""
    (start,) = struct.unpack_from("<I", content, 4)
    (count,) = struct.unpack_from("<H", content, start)
    old = [content[place : place + 12] for place in range(start + 2, start + 2 + 12 * count, 12)]
    new = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags]
    entries = sorted([*old, *new], key=lambda entry: struct.unpack_from("<H", entry))
    place = len(content) + len(content) % 2
    directory = struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)
    return content[:4] + struct.pack("<I", place) + content[8:].ljust(place - 8, b"\0") + directory


BAD_BANDS = {
    "unreadable_tiff tiles": (
        with_tags(tiff(reflectance()), (322, 0x7FF0), (323, 0x7FF0)),
        r"tiles of 32752 x 32752 pixels for an image of 120 x 120",
    ),
    "unreadable_tiff padding": (tiff(reflectance(), tile=(2048, 2048), compression="zstd"), r"tiles of 2048 x 2048"),
    "unreadable_tiff narrow": (with_tags(tiff(reflectance()), (322, 8192), (323, 16)), r"tiles of 16 x 8192"),
    "unreadable_tiff one side": (with_tags(tiff(reflectance()), (322, 64)), r"one side of the tiles only \(0 x 64\)"),
    "unreadable_tiff twice": (with_tags(tiff(reflectance()), (257, 120)), r"tag 257 twice"),
    "extra_pages slices": (with_tags(tiff(reflectance()), (32997, 30_000)), r"found 30000 slices"),
    "extra_pages tile slices": (with_tags(tiff(reflectance()), (32998, 30_000)), r"found 30000 slices"),
    "missing_band": (None, r"B04 missing: expected 12 bands, found 11"),
    "empty_file": (b"", r"no bytes"),
    "unreadable_tiff text": (b"<html>not found</html>", r"not a TIFF: starts with b'<htm'"),
    "unreadable_tiff head": (tiff(reflectance())[:100], r"cut off or damaged \(100 bytes"),
    "unreadable_tiff tail": (tiff(reflectance())[:-1], r"cannot be decoded: .*strip"),
    "unreadable_tiff zstd": (tiff(reflectance(), compression="zstd")[:-9], r"cannot be decoded"),
    "unexpected_size": (tiff(reflectance()[:119]), r"expected 120 x 120 pixels, found 119 x 120"),
    "unexpected_dtype uint8": (
        tiff(np.arange(14400, dtype=np.uint16).reshape(120, 120).astype(np.uint8)),
        r"expected uint16, found uint8 \(minimum 0, maximum 255\)",
    ),
    "unexpected_dtype float64": (
        tiff(np.linspace(0, 1, 14400).reshape(120, 120)),
        r"expected uint16, found float64 \(minimum 0\.0, maximum 1\.0\)",
    ),
    "unexpected_dtype int16": (tiff(reflectance().astype(np.int16)), r"found int16"),
    "all_zero": (tiff(np.zeros((120, 120), np.uint16)), r"every pixel of B04 is 0"),
    "extra_pages two": (tiff(np.stack([reflectance()] * 2), photometric="minisblack"), r"found more than one page"),
    "extra_pages rgb": (tiff(np.stack([reflectance()] * 3, -1), photometric="rgb"), r"found 3 values a pixel"),
    "extra_pages planar": (
        tiff(np.stack([reflectance()] * 3), photometric="rgb", planarconfig="separate"),
        r"found 3 values a pixel",
    ),
    "unsupported_compression jpeg2000": (tiff(reflectance(), compression="jpeg2000"), r"JPEG 2000 \(TIFF code 34712\)"),
    "unsupported_compression jpegxl": (tiff(reflectance(), compression="jpegxl"), r"JPEG XL"),
    "unsupported_compression lerc": (tiff(reflectance(), compression="lerc"), r"LERC"),
    "unsupported_compression predictor": (
        tiff(reflectance(), compression="packbits", predictor=2),
        r"predictor 2 with PackBits",
    ),
}


@pytest.mark.parametrize("case", BAD_BANDS)
def test_bad_band_rejects_its_patch_alone(tree, case):
    """The patch is rejected with the reason, the band and what was found; its neighbour is accepted."""
    content, detail = BAD_BANDS[case]
    tree.s2(files={"B04.tif": content})
    tree.s2(S2_OTHER)

    built = tree.build()

    assert built.accepted == [S2_OTHER]
    assert built.reasons == {S2: case.split()[0]}
    assert re.search(detail, built.detail(S2))
    assert "B04" in built.detail(S2)
    expected = f"BigEarthNet-v1.0/{S2}" + ("" if content is None else f"/{S2}_B04.tif")
    assert built.rejected(S2).finding.path == expected


def test_patch_without_any_data_is_one_finding(tree):
    """A patch that is zero in every band is told apart from one zero band."""
    tree.s2(files={f"{band}.tif": tiff(np.zeros((side, side), np.uint16)) for band, side in S2_BANDS.items()})

    built = tree.build()

    assert built.reasons == {S2: "all_zero"}
    assert built.detail(S2) == "every pixel of all 12 bands is 0"


def test_several_faults_are_all_told(tree):
    """One row a sample: the first reason, every detail."""
    tree.s2(files={"B02.tif": None, "B03.tif": b"", "B12.tif": tiff(np.zeros((60, 60), np.uint16))})

    built = tree.build()

    assert built.reasons == {S2: "missing_band"}
    assert built.detail(S2).split("; ") == [
        "B02 missing: expected 12 bands, found 11",
        "B03: the file has no bytes",
        "every pixel of B12 is 0",
    ]


def with_nan() -> np.ndarray:
    array = decibel()
    array[3, 4:9] = np.nan
    array[5, 6] = -np.inf
    return array


BAD_S1 = {
    "non_finite": (tiff(with_nan()), r"VH: 5 NaN and 1 infinite of 14400 pixels"),
    "unexpected_dtype": (
        tiff(np.linspace(0, 3000, 14400).astype(np.uint16).reshape(120, 120)),
        r"expected float32, found uint16 \(minimum 0, maximum 3000\)",
    ),
    "not_decibel linear": (
        tiff(np.linspace(0, 0.6, 14400, dtype=np.float32).reshape(120, 120)),
        r"found minimum 0, maximum 0\.6",
    ),
    "not_decibel range": (tiff(decibel() * 100), r"all from -100 to 60"),
    "all_zero": (tiff(np.zeros((120, 120), np.float32)), r"every pixel of VH is 0"),
    "missing_band": (None, r"VH missing: expected 2 bands, found 1"),
}


@pytest.mark.parametrize("case", BAD_S1)
def test_bad_sentinel1_rejects_the_pair_and_names_it(tree, case):
    """A pair with a bad Sentinel-1 patch is one rejected sample, whose path is in the Sentinel-1 folder."""
    content, detail = BAD_S1[case]
    tree.s2()
    tree.s1(files={"VH.tif": content})

    built = tree.build()

    assert built.reasons == {S2: case.split()[0]}
    assert re.search(detail, built.detail(S2))
    assert built.rejected(S2).finding.path.startswith(f"BigEarthNet-S1-v1.0/{S1}")


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_damage_makes_a_check_raise(data):
    """Whatever bytes a band and a label file hold, the check answers with a report that JSON can hold."""
    intact = [tiff(reflectance(20)), tiff(reflectance(20), compression="lzw", bigtiff=True)]
    content = bytearray(data.draw(st.sampled_from(intact)))
    for _ in range(data.draw(st.integers(0, 8))):
        content[data.draw(st.integers(0, min(len(content) - 1, 400)))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    metadata = data.draw(
        st.binary(max_size=40)
        | st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(),
            lambda inner: (
                st.dictionaries(
                    st.sampled_from(
                        ["labels", "coordinates", "ulx", "projection", "geometry", "corresponding_s2_patch"]
                    ),
                    inner,
                )
                | st.lists(inner)
            ),
        ).map(lambda value: json.dumps(value).encode())
    )
    layout = BigEarthNet(BigEarthNetParams())
    files = {f"{S2}/{S2}_B01.tif": bytes(content), f"{S2}/{S2}_labels_metadata.json": metadata}
    (unit,) = layout.group((path, len(each)) for path, each in files.items()).units

    report = layout.check(unit, files)

    assert report.faults[0].reason == "missing_band"
    assert json.loads(json.dumps(dict(report.facts)))["patch"] == S2


# Labels


def test_labels_are_mapped_by_name(tree):
    """43 names become the right ones of the 19, in the official order; dropped classes go."""
    tree.s2(S2, ["Transitional woodland/shrub", "Natural grassland", "Broad-leaved forest"])
    tree.s2(S2_OTHER, ["Airports", "Pastures"])

    built = tree.build()

    assert [sample.labels for sample in built.assembly.samples] == [
        (
            "Broad-leaved forest",
            "Natural grassland and sparsely vegetated areas",
            "Transitional woodland, shrub",
        ),
        ("Pastures",),
    ]


def test_vocabulary_is_declared_not_counted(tree):
    """One patch with one label still has the whole nomenclature in its schema, in the official order."""
    tree.s2(labels=["Sea and ocean"])

    for classes, width, prefix in ((19, 19, "BigEarthNet-19"), (43, 43, "original")):
        built = tree.build(classes=classes)
        schema = built.layout.schema()
        assert (len(schema.vocabulary), schema.label_prefix) == (width, prefix)
        assert schema.vocabulary[-1] == built.assembly.samples[0].labels[0]


def test_nomenclatures_are_whole():
    """43 and 19 different names; every mapped name is one of the 19, every one of the 19 is reached, 11 are dropped."""
    assert (len(set(CLASSES_43)), len(set(CLASSES_19))) == (43, 19)
    assert set(TO_19.values()) == {*CLASSES_19, ""}
    assert sum(name == "" for name in TO_19.values()) == 11
    reached = list(dict.fromkeys(name for name in TO_19.values() if name))
    order = [CLASSES_19.index(name) for name in reached]
    assert order[:4] == [0, 1, 2, 3] and order[-1] == 18


@pytest.mark.parametrize(
    ("label", "nearest"),
    [
        ("Coniferous forests", "'Coniferous forest'"),
        ("Urban fabric", "urban fabric'"),
        ("Tree cover", "nearest known: '"),
    ],
)
@pytest.mark.parametrize("classes", [19, 43])
def test_unknown_label_is_refused_with_the_nearest_names(tree, label, nearest, classes):
    """Never silently fewer labels."""
    tree.s2(labels=["Pastures", label])

    built = tree.build(classes=classes)

    assert built.reasons == {S2: "unknown_label"}
    assert repr(label) in built.detail(S2) and nearest in built.detail(S2)
    assert built.rejected(S2).finding.path.endswith("_labels_metadata.json")


@pytest.mark.parametrize("labels", [["Airports", "Mineral extraction sites"], []])
def test_no_label_left_is_a_choice(tree, labels):
    """A patch without any class is quarantined, or kept with no label where the user says so."""
    tree.s2(labels=labels)

    assert tree.build().reasons == {S2: "no_labels"}
    (sample,) = tree.build(empty_labels="keep").assembly.samples
    assert sample.labels == ()
    if labels:
        assert tree.build(classes=43).assembly.samples[0].labels == ("Airports", "Mineral extraction sites")


GOOD_JSON = json.dumps(
    {"labels": ["Pastures"], "coordinates": CORNERS, "projection": PROJECTION, "by": "Zoë"}, ensure_ascii=False
)


def test_byte_order_mark_is_accepted(tree):
    """UTF-8 with a mark is UTF-8."""
    tree.s2(files={"labels_metadata.json": GOOD_JSON.encode("utf-8-sig")})

    assert tree.build().assembly.samples[0].labels == ("Pastures",)


@pytest.mark.parametrize(
    ("content", "reason", "detail"),
    [
        (GOOD_JSON.encode("utf-16"), "text_encoding", "UTF-16"),
        (GOOD_JSON.encode("utf-16-le"), "text_encoding", "zero bytes"),
        (GOOD_JSON.encode("latin-1"), "text_encoding", "0xEB at offset .*Latin-1 it would be 'ë'"),
        (b"", "empty_file", "no bytes"),
        (b'{"labels": ["Pastures"]', "bad_json", "not JSON"),
        (b'["Pastures"]', "bad_json", "expected a JSON object, found list"),
        (b"[" * 100_000, "bad_json", "not JSON"),
        (b"{}", "bad_json", '"labels" to be a list of names, found None'),
        (b'{"labels": "Pastures"}', "bad_json", '"labels" to be a list of names'),
        (b'{"labels": [null]}', "bad_json", r"found \[None\]"),
        (b'{"labels": ["\\ud800"]}', "bad_json", "found"),
        (None, "missing_labels", f"{S2}_labels_metadata.json"),
    ],
    ids=str,
)
def test_unusable_label_file_is_named(tree, content, reason, detail):
    """The reason says what the file is, and the path which."""
    tree.s2(files={"labels_metadata.json": content})

    built = tree.build()

    assert built.reasons == {S2: reason}
    assert re.search(detail, built.detail(S2))
    assert built.rejected(S2).finding.path.startswith(f"BigEarthNet-v1.0/{S2}")


@pytest.mark.parametrize(
    ("metadata", "detail", "region"),
    [
        ({"coordinates": CORNERS | {"ulx": 405600, "lrx": 404400}}, "span -1200 m by 1200 m", "32633_4_53"),
        ({"coordinates": CORNERS | {"lry": 5291200}}, "span 1200 m by 51200 m", "32633_4_53"),
        ({"coordinates": {"ulx": 1}}, "expected corners in metres of UTM", ""),
        ({"coordinates": CORNERS | {"uly": 1e9}}, "expected corners in metres of UTM", ""),
        ({"projection": "local"}, "EPSG code of a UTM zone", ""),
        (
            {"geometry": {"type": "Polygon", "coordinates": [[[23.05, 63.2], [23.07, 63.2], [63.19, 23.07]]]}},
            r"jumps from \(23.05, 63.2\) to \(63.19, 23.07\)",
            "32633_4_53",
        ),
    ],
)
def test_odd_coordinates_are_a_warning(tree, metadata, detail, region):
    """The sample is kept, since no pixel is wrong, and the label file is named."""
    tree.s2(**metadata)

    built = tree.build()

    (sample,), (report,) = built.assembly.samples, built.reports
    assert [(warning.reason, warning.path) for warning in report.warnings] == [
        ("odd_coordinates", f"BigEarthNet-v1.0/{S2}/{S2}_labels_metadata.json")
    ]
    assert re.search(detail, report.warnings[0].detail)
    assert sample.attributes["region"] == region


def test_sane_patch_has_no_warning(tree):
    """Neither Sentinel-2's corners nor Sentinel-1's, which say lly, are odd."""
    tree.s2()
    tree.s1()

    built = tree.build()

    assert [report.warnings for report in built.reports] == [(), ()]
    assert built.assembly.samples[0].attributes == {
        "acquired": "2017-06-13",
        "country": "",
        "latitude": "48.222307",
        "longitude": "13.720948",
        "month": "2017-06",
        "region": "32633_4_53",
    }


# Pairs


def test_pair_follows_the_label_file_not_the_name(tree):
    """The Sentinel-1 label file names the partner; equal indices mean nothing."""
    tree.s2(S2)
    tree.s2(S2_OTHER)
    tree.s1(S1, partner=S2_OTHER)
    tree.s1(S1_OTHER, partner=S2)

    built = tree.build()

    assert built.layout.sensors == "s1s2"
    assert {sample.id: sample.texts for sample in built.assembly.samples} == {
        S2: {"patch_name_s1": S1_OTHER, "patch_name_s2": S2},
        S2_OTHER: {"patch_name_s1": S1, "patch_name_s2": S2_OTHER},
    }
    sample = built.assembly.samples[0]
    assert [file.role for file in sample.files] == [*S2_BANDS, "VV", "VH", "metadata", "metadata_s1"]
    assert [feature.name for feature in built.layout.schema().features][-2:] == ["VV", "VH"]
    assert sample.units == (f"BigEarthNet-v1.0/{S2}", f"BigEarthNet-S1-v1.0/{S1_OTHER}")


def test_whoever_stands_alone_is_named_with_the_partner(tree):
    """Pairs are one to one, each of the others is one reject, and the books balance."""
    names = [f"S2A_MSIL2A_20170613T101031_{place}" for place in ("1_1", "2_2", "3_3")]
    radar = [f"S1A_IW_GRDH_1SDV_20170613T165043_33UUP_{place}" for place in ("1_1", "2_2", "2_3", "7_7", "8_8")]
    for name in names:
        tree.s2(name)
    tree.s1(radar[0], names[0])
    tree.s1(radar[1], names[1])
    tree.s1(radar[2], names[1])
    tree.s1(radar[3], "S2A_MSIL2A_20170613T101031_54_84")
    tree.s1(radar[4], "")

    built = tree.build()

    assert built.accepted == [names[0]]
    assert built.reasons == {
        names[1]: "ambiguous_partner",
        radar[1]: "ambiguous_partner",
        radar[2]: "ambiguous_partner",
        names[2]: "missing_partner",
        radar[3]: "missing_partner",
        radar[4]: "missing_partner",
    }
    for name in (names[1], radar[1], radar[2]):
        assert built.detail(name) == f"{radar[1]} and {radar[2]} each name {names[1]} as their partner"
    assert "S2A_MSIL2A_20170613T101031_54_84, which is not in the source" in built.detail(radar[3])
    assert "no corresponding_s2_patch" in built.detail(radar[4])


def test_misnamed_copy_of_sentinel1_does_not_harm_the_pair(tree):
    """It claims no partner and is rejected alone, for its name."""
    tree.s2()
    tree.s1()
    tree.s1(folder=f"BigEarthNet-S1-v1.0/{S1} (copy)")

    built = tree.build()

    assert built.accepted == [S2]
    assert built.reasons == {f"BigEarthNet-S1-v1.0/{S1} (copy)/{S1}": "bad_name"}


def test_sentinel2_alone_takes_no_notice_of_sentinel1(tree):
    """With sensors s2, every Sentinel-2 patch is a sample and Sentinel-1 is neither used nor counted."""
    tree.s2(S2)
    tree.s2(S2_OTHER)
    tree.s1(files={"VV.tif": b""})

    built = tree.build(sensors="s2")

    assert built.accepted == [S2, S2_OTHER]
    assert not built.assembly.rejected
    assert built.layout.schema().texts == ("patch_name",)
    # Its files are not even read, but counted among those left aside; where they may be needed they are.
    assert ({unit.kind for unit in built.grouping.units}, built.grouping.ignored) == ({"s2"}, 3)
    for sensors in ("auto", "s1s2"):
        grouping = tree.build(sensors=sensors).grouping
        assert ({unit.kind for unit in grouping.units}, grouping.ignored) == ({"s1", "s2"}, 0)


def test_auto_takes_sentinel2_alone_where_no_partner_is_there(tree):
    """Without a single pair the archive is one of Sentinel-2; asked for pairs, all are named."""
    tree.s2(S2)
    tree.s1(S1, partner=S2_OTHER)

    assert tree.build().accepted == [S2]
    assert tree.build(sensors="s1s2").reasons == {S1: "missing_partner", S2: "missing_partner"}


def test_sentinel1_without_label_file_has_no_partner(tree):
    """In v1 only the label file tells the partner; its absence is named."""
    tree.s2()
    tree.s1(partner=None)

    assert tree.build(sensors="s1s2").reasons == {S1: "missing_labels", S2: "missing_partner"}


def test_schema_is_refused_before_sensors_are_known():
    """Under auto the bands are not known before the tree was seen."""
    with pytest.raises(ValueError, match="after assemble"):
        BigEarthNet(BigEarthNetParams()).schema()


def test_layout_pickles(tree):
    """Workers get a copy that decodes alike."""
    tree.s2()
    built = tree.build()
    (sample,) = built.assembly.samples
    contents = [(tree.root / file.path).read_bytes() for file in sample.files]

    copy = pickle.loads(pickle.dumps(built.layout))

    assert copy.schema() == built.layout.schema()
    for band, array in copy.decode(sample.files, contents).items():
        np.testing.assert_array_equal(array, built.layout.decode(sample.files, contents)[band])


# Lists


def test_official_lists_decide_the_split(tree, tmp_path):
    """CRLF lists named after their split, found beside params.yaml or in the source; the rest is excluded."""
    third = "S2A_MSIL2A_20170613T101031_11_41"
    for name in (S2, S2_OTHER, third):
        tree.s2(name)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.csv").write_bytes(f"{S2}\r\n".encode())
    tree.write("lists/val.csv", f"{S2_OTHER}\r\n\r\n".encode())

    built = tree.build(tmp_path / "work", splits=["train.csv", "lists/val.csv"])

    assert {sample.id: sample.split for sample in built.assembly.samples} == {S2: "train", S2_OTHER: "validation"}
    assert built.reasons == {third: "not_in_split_lists"}
    assert built.rejected(third).excluded
    assert built.grouping.tables == ("lists/val.csv",)


def test_no_list_leaves_the_split_open(tree):
    """Without lists the split is for the default rule to draw."""
    tree.s2()

    assert tree.build().assembly.samples[0].split == ""


def test_exclude_lists_win_over_faults_and_take_the_partner_along(tree):
    """A listed patch is excluded, not quarantined, alone or in a pair or by its Sentinel-1 patch only."""
    gone = "S2A_MSIL2A_20170613T101031_54_84"
    tree.s2(S2, files={"B02.tif": b""})
    tree.s1(S1, partner=gone)
    tree.s2(S2_OTHER)
    tree.s1(S1_OTHER, partner=S2_OTHER)
    tree.write("snow.csv", f"{S2}\n{gone}\n".encode())

    built = tree.build(exclude=["snow.csv"])

    assert built.accepted == [S2_OTHER]
    assert built.reasons == {S1: "excluded_by_list", S2: "excluded_by_list"}
    assert all(rejected.excluded for rejected in built.assembly.rejected)


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({}, {"splits": ["train.csv"]}, "train.csv is not there; looked at"),
        ({}, {"exclude": ["snow.csv"]}, "snow.csv is not there"),
        ({"all.csv": S2}, {"splits": ["all.csv"]}, "does not tell its split"),
        ({"train.csv": f"name\n{S2}"}, {"splits": ["train.csv"]}, "line 1: 'name' is not the name"),
        ({"train.csv": S2, "test.csv": S2}, {"splits": ["train.csv", "test.csv"]}, "a patch belongs to one split"),
    ],
)
def test_unusable_list_is_refused_by_name(tree, files, options, message):
    """A list that cannot be used stops the run before anything is taken for excluded."""
    tree.s2()
    for name, text in files.items():
        tree.write(name, text.encode())

    with pytest.raises(ConfigError, match=message):
        tree.build(**options)


def test_lists_do_not_hide_a_bad_name(tree):
    """A patch whose name is broken is in no list and is quarantined all the same."""
    tree.s2(S2)
    tree.s2("S2A_MSIL2A_20170613T101031_87")
    tree.write("train.csv", S2.encode())

    assert tree.build(splits=["train.csv"]).reasons == {"BigEarthNet-v1.0/S2A_MSIL2A_20170613T101031_87": "bad_name"}


# Version 2


def v2_row(**values: Any) -> dict[str, Any]:
    return {"patch_id": V2, "labels": ["Mixed forest", "Arable land"], "s1_name": S1, "s2v1_name": S2, **values}


def test_v2_takes_everything_from_its_tables(tree):
    """Labels, split, country and partner come from metadata.parquet, the region from the tile."""
    tree.s2(V2, folder=V2_FOLDER)
    tree.s1(S1, None, folder=f"BigEarthNet-S1/{S1.rsplit('_', 3)[0]}/{S1}")
    tree.table(
        "metadata.parquet", [v2_row(split="validation"), v2_row(patch_id=V2.replace("_75_43", "_75_44"), s1_name="")]
    )

    built = tree.build()

    (sample,) = built.assembly.samples
    assert built.layout.sensors == "s1s2"
    assert (sample.id, sample.split, sample.labels) == (V2, "validation", ("Arable land", "Mixed forest"))
    assert sample.attributes == {
        "acquired": "2017-06-13",
        "country": "Austria",
        "latitude": "48.273950",
        "longitude": "13.525583",
        "month": "2017-06",
        "region": "33UUP",
    }
    assert sample.texts == {"patch_name_s1": S1, "patch_name_s2": V2}
    assert not built.assembly.rejected


def test_v2_patches_under_snow_and_cloud_have_a_table_of_their_own(tree):
    """Both tables are read; the second serves as an exclude list too."""
    snow = "metadata_for_patches_with_snow_cloud_or_shadow.parquet"
    other = V2.replace("_75_43", "_75_44")
    tree.s2(V2, folder=V2_FOLDER)
    tree.s2(other, folder=f"x/{other}")
    tree.table("metadata.parquet", [v2_row()])
    tree.table(snow, [v2_row(patch_id=other, split="test", s1_name="", s2v1_name="")])

    assert {sample.id: sample.split for sample in tree.build().assembly.samples} == {V2: "train", other: "test"}
    assert tree.build(exclude=[snow]).reasons == {other: "excluded_by_list"}


def test_v1_lists_hold_for_v2_patches_and_the_other_way_round(tree):
    """The tables know both names of a patch."""
    tree.s2(V2, folder=V2_FOLDER)
    tree.table("metadata.parquet", [v2_row()])
    tree.write("test.csv", S2.encode())
    assert tree.build(splits=["test.csv"]).assembly.samples[0].split == "test"

    first = Tree(tree.root.parent / "v1")
    first.s2(S2)
    assert first.build(tree.root, splits=["metadata.parquet"]).assembly.samples[0].split == "train"


def test_v2_sentinel1_alone_is_named(tree):
    """A Sentinel-1 patch of which the tables know the partner, and one of which they do not."""
    tree.s2(V2, folder=V2_FOLDER)
    for name in (S1, S1_OTHER):
        tree.s1(name, None, folder=f"BigEarthNet-S1/scene/{name}")
    absent = V2.replace("_75_43", "_75_44")
    tree.table("metadata.parquet", [v2_row(s1_name=""), v2_row(patch_id=absent, s2v1_name="")])

    built = tree.build(sensors="s1s2")

    assert set(built.reasons.values()) == {"missing_partner"}
    assert f"belongs to {absent}, which is not in the source" in built.detail(S1)
    assert "no row of metadata.parquet" in built.detail(S1_OTHER)


def test_v2_patch_without_a_row_is_refused(tree):
    """A patch that the tables do not know has no labels."""
    tree.s2(V2, folder=V2_FOLDER)
    tree.table("metadata.parquet", [v2_row(patch_id=V2.replace("_75_43", "_75_44"))])

    assert tree.build().reasons == {V2: "missing_row"}


def test_v2_unknown_label_is_refused(tree):
    """The tables' labels are held against the 19 names too."""
    tree.s2(V2, folder=V2_FOLDER)
    tree.table("tables/metadata.parquet", [v2_row(labels=["Discontinuous urban fabric"])])

    built = tree.build()

    assert built.reasons == {V2: "unknown_label"}
    assert built.rejected(V2).finding.path == "tables/metadata.parquet"


def test_v2_without_what_it_needs_is_a_configuration_error(tree):
    """No table, or the 43 classes: said at once, not patch by patch."""
    tree.s2(V2, folder=V2_FOLDER)
    with pytest.raises(ConfigError, match=r"none in the source; put it there"):
        tree.build()

    tree.table("metadata.parquet", [v2_row()])
    with pytest.raises(ConfigError, match="classes: 43 needs v1's label files"):
        tree.build(classes=43)


@pytest.mark.parametrize("content", [b"no parquet", None], ids=["bytes", "columns"])
def test_v2_table_that_is_none_is_named(tree, content):
    """A damaged or foreign metadata.parquet is an error of the source with the file's name."""
    tree.s2(V2, folder=V2_FOLDER)
    if content:
        tree.write("metadata.parquet", content)
    else:
        pq.write_table(pa.table({"patch_id": [V2]}), tree.root / "metadata.parquet")

    with pytest.raises(SourceError, match=r"metadata\.parquet is not one of BigEarthNet v2's tables"):
        tree.build()


# Documentation


def test_every_reason_is_documented():
    """docs/quarantine.md has a section for every reason that the library gives, and for no other."""
    root = Path(__file__).parent.parent
    pattern = re.compile(r'(?:Finding|BadContent)\(\s*"([a-z_0-9]+)"')
    sources = [path.read_text(encoding="utf-8") for path in (root / "shardtrail").rglob("*.py")]
    reasons = {reason for source in sources for reason in pattern.findall(source)}
    page = (root / "docs/quarantine.md").read_text(encoding="utf-8")

    assert len(reasons) > 15
    assert set(re.findall(r"^### `([a-z_0-9]+)`", page, re.MULTILINE)) == reasons
