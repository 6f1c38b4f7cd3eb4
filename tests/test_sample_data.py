"""The made-up archive: the same bytes everywhere, in the true layout, with the faults it names."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import rasterio

from shardtrail.config import BigEarthNetParams
from shardtrail.errors import ConfigError
from shardtrail.layouts import Assembly
from shardtrail.layouts.bigearthnet import BigEarthNet
from shardtrail.layouts.bigearthnet_patch import S2_BANDS
from shardtrail.sample_data import make_sample_data

GOLDEN = "2bc8dae887a12391b8431ef215226a68a612e65049d399922f69618684000284"


def tree_digest(root: Path) -> str:
    """sha256 over the path and bytes of every file."""
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\t{len(content)}\n".encode() + content)
    return digest.hexdigest()


def assemble(root: Path) -> Assembly:
    """The archive as the stages see it."""
    layout = BigEarthNet(BigEarthNetParams())
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    units = layout.group((path.relative_to(root).as_posix(), path.stat().st_size) for path in paths).units
    reports = (
        layout.check(unit, {file.path: (root / file.path).read_bytes() for file in unit.files}) for unit in units
    )
    return layout.assemble(reports, root, ())


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sample") / "raw"
    make_sample_data(root, samples=120, broken=0)
    return root


def test_six_patches_are_these_bytes(tmp_path):
    """Golden: no machine, library version or day may change a byte of the sample data."""
    made = make_sample_data(tmp_path, samples=6)

    assert tree_digest(tmp_path) == GOLDEN
    assert (made.samples, made.written, made.broken) == (6, 6, ())


def test_workers_and_interruption_change_nothing(tmp_path):
    """One process or two, at once or completed after parts were lost: the same tree."""
    make_sample_data(tmp_path / "one", samples=60, workers=1)
    make_sample_data(tmp_path / "two", samples=60, workers=2)
    digest = tree_digest(tmp_path / "one")
    assert tree_digest(tmp_path / "two") == digest

    folders = sorted((tmp_path / "two").glob("*/*"))
    for folder in folders[::7]:
        shutil.rmtree(folder)
    lost = folders[0]
    begun = lost.with_name(f".{lost.name}.tmp")
    begun.mkdir()
    (begun / "half").write_bytes(b"x")
    made = make_sample_data(tmp_path / "two", samples=60)

    assert 0 < made.written <= len(folders[::7])
    assert tree_digest(tmp_path / "two") == digest


def test_more_samples_leave_the_first_as_they_are(tmp_path):
    """A bigger archive holds the smaller one: new data can be had by asking for more."""
    make_sample_data(tmp_path, samples=4)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    made = make_sample_data(tmp_path, samples=8)

    assert made.written == 4
    assert all(path.read_bytes() == content for path, content in before.items())


def test_another_seed_is_another_archive(tmp_path):
    """Seeds differ in labels and pixels, and are not mixed in one folder."""
    make_sample_data(tmp_path / "a", samples=6)
    make_sample_data(tmp_path / "b", samples=6, seed=1)

    assert tree_digest(tmp_path / "a") != tree_digest(tmp_path / "b")
    with pytest.raises(ConfigError, match="another seed"):
        make_sample_data(tmp_path / "a", samples=6, seed=1)


@pytest.mark.parametrize(("samples", "broken"), [(0, None), (5, 6), (5, -1)])
def test_impossible_numbers_are_refused(tmp_path, samples, broken):
    """Nothing is written."""
    with pytest.raises(ConfigError, match="got"):
        make_sample_data(tmp_path / "raw", samples=samples, broken=broken)

    assert not (tmp_path / "raw").exists()


def test_every_patch_is_a_pair_in_the_true_layout(archive):
    """All patches are accepted without a warning, over many tiles, months and classes of a long tail."""
    assembly = assemble(archive)

    assert (len(assembly.samples), len(assembly.rejected)) == (120, 0)
    assert len({sample.attributes["region"] for sample in assembly.samples}) >= 10
    assert len({sample.attributes["month"] for sample in assembly.samples}) >= 6
    labels = [label for sample in assembly.samples for label in sample.labels]
    counts = sorted((labels.count(label) for label in set(labels)), reverse=True)
    assert len(counts) >= 15
    assert counts[0] >= 10 * counts[-1]
    assert {len(sample.labels) for sample in assembly.samples} >= {1, 2, 3}


def test_names_have_the_real_ones_oddities(archive):
    """Five-digit times, second 61 and unpadded indices occur."""
    names = [path.name for path in (archive / "BigEarthNet-v1.0").iterdir()]

    assert any("T94161_" in name for name in names)
    assert any(len(name.split("_")[2]) == len("20180510T94033") for name in names)
    assert any(len(name.split("_")[-1]) == 1 for name in names)


def test_files_say_where_they_lie(archive):
    """GDAL reads each band with the zone and corner of its label file; no pixel is 0; JSON ends without a newline."""
    folder = sorted((archive / "BigEarthNet-v1.0").iterdir())[0]
    text = (folder / f"{folder.name}_labels_metadata.json").read_bytes()
    metadata = json.loads(text)
    assert text.endswith(b"}")
    assert list(metadata) == ["labels", "coordinates", "projection", "tile_source", "acquisition_date"]

    for band, side in S2_BANDS.items():
        with rasterio.open(folder / f"{folder.name}_{band}.tif") as dataset:
            assert (dataset.shape, dataset.dtypes) == ((side, side), ("uint16",))
            assert f'"EPSG","{dataset.crs.to_epsg()}"' in metadata["projection"][-20:]
            corners = metadata["coordinates"]
            assert tuple(dataset.bounds) == tuple(corners[key] for key in ("ulx", "lry", "lrx", "uly"))
            assert dataset.read(1).min() >= 1


def test_sentinel1_says_its_partner(archive):
    """Its label file has the real one's keys; decibels are finite float32 below the highest ever seen."""
    folder = sorted((archive / "BigEarthNet-S1-v1.0").iterdir())[0]
    metadata = json.loads((folder / f"{folder.name}_labels_metadata.json").read_bytes())

    assert list(metadata) == [
        "labels",
        "coordinates",
        "projection",
        "corresponding_s2_patch",
        "scene_source",
        "acquisition_time",
    ]
    assert list(metadata["coordinates"]) == ["ulx", "uly", "lrx", "lly"]
    assert (archive / "BigEarthNet-v1.0" / metadata["corresponding_s2_patch"]).is_dir()
    with rasterio.open(folder / f"{folder.name}_VV.tif") as dataset:
        values = dataset.read(1)
    assert values.dtype == np.float32
    assert -45 < values.min() < values.max() < 10


@pytest.mark.parametrize("sentinel1", [True, False])
def test_broken_patches_are_refused_for_the_named_reason(tmp_path, sentinel1):
    """What the return value calls broken is quarantined for that very reason, and nothing else is."""
    made = make_sample_data(tmp_path, samples=24, sentinel1=sentinel1, broken=6)

    assembly = assemble(tmp_path)

    assert {rejected.id: rejected.finding.reason for rejected in assembly.rejected} == dict(made.broken)
    assert len(set(dict(made.broken).values())) == (6 if sentinel1 else 4)
    assert len(assembly.samples) == 18


def test_classes_can_be_told_apart(archive):
    """Nearest neighbours on band means find most labels: a network has something to learn."""
    layout = BigEarthNet(BigEarthNetParams())
    samples = assemble(archive).samples
    features, labels = [], []
    for sample in samples:
        arrays = layout.decode(sample.files, [(archive / file.path).read_bytes() for file in sample.files])
        features.append([np.quantile(array, share) for array in arrays.values() for share in (0.1, 0.5, 0.9)])
        labels.append([name in sample.labels for name in layout.vocabulary])
    known = np.array(features) / np.std(features, axis=0)
    truth = np.array(labels)
    distance = np.square(known[:, None] - known[None]).sum(axis=2)
    np.fill_diagonal(distance, np.inf)

    guess = truth[distance.argmin(axis=1)]

    score = 2 * (guess & truth).sum() / (guess.sum() + truth.sum())
    chance = 2 * (np.roll(truth, 1, axis=0) & truth).sum() / (2 * truth.sum())
    assert score > 0.5 > 2 * chance
