"""Images that records keep as they are: declared with a format, never decoded while shards are written."""

from __future__ import annotations

import os
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
from builds import build_all

from shardtrail.dataset import Dataset, load_dataset
from shardtrail.errors import ConfigError, StageFailed
from shardtrail.inspect import inspect_record
from shardtrail.job import Job, open_job
from shardtrail.records.example import decode_example
from shardtrail.records.index import read_index
from shardtrail.records.scan import read_record
from shardtrail.samples import Feature
from shardtrail.sharding.verify import repair, verify

SIZES = [(8, 12), (9, 7), (16, 16), (1, 1), (31, 5), (10, 10)]

PARAMS = """
source: {raw}
layout: photos_layout:Photos
custom: {{format: {format}, role: {role}}}
shard: {{target_samples: 2}}
"""


def jpeg(number: int) -> bytes:
    """A photograph, no two alike."""
    pixels = np.random.default_rng(number).integers(0, 255, (*SIZES[number % len(SIZES)], 3), np.uint8)
    return bytes(imagecodecs.jpeg8_encode(pixels))


def folder(root: Path, format: str = "jpeg", role: str = "image") -> Job:
    """A working folder on photographs in a folder a class, nothing built."""
    for number in range(12):
        path = root / "raw" / ("cat" if number % 3 else "dog") / f"photo-{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    (root / "work").mkdir()
    (root / "work" / "params.yaml").write_text(PARAMS.format(raw=root / "raw", format=format, role=role))
    return open_job(root / "work")


def payloads(job: Job, dataset: Dataset) -> dict[str, bytes]:
    """Sample id -> the image's bytes in its record."""
    found = {}
    for shard in dataset.shards:
        path = job.folder.shards / shard.file
        for offset, _ in read_index(job.folder.shards / shard.index):
            example = decode_example(read_record(path, offset))
            found[bytes(example["sample_id"][0]).decode()] = bytes(example["image"][0])
    return found


@pytest.mark.parametrize("format", ["jpeg", "encoded"])
def test_records_hold_the_files_bytes(format: str, tmp_path: Path) -> None:
    """Every record holds its file byte for byte, the deep check passes, and sizes are those of the files."""
    job = folder(tmp_path, format)
    _, dataset = build_all(job)
    assert payloads(job, dataset) == {f"photo-{number:02d}": jpeg(number) for number in range(12)}
    assert verify(job, deep=True).faults == ()
    assert load_dataset(job.folder.dataset).schema.features == (Feature("image", "uint8", (None, None, 3), format),)
    shown = inspect_record(job.folder, dataset.shards[0].address, 0)
    assert shown["image"] == {"format": "jpeg", "bytes": len(jpeg(int(shown["sample_id"][0][-2:])))}


@pytest.mark.parametrize("role", ["image", "another"])
def test_shards_are_planned_by_the_files_sizes(role: str, tmp_path: Path) -> None:
    """The manifest's size of a sample is its image file's; of all its files where none has the feature's name."""
    from shardtrail.manifest import read_manifest

    job = folder(tmp_path, role=role)
    build_all(job)
    manifest = read_manifest(job.folder.manifest).to_pydict()
    sizes = dict(zip(manifest["sample_id"], manifest["bytes"], strict=True))
    assert sizes == {f"photo-{number:02d}": len(jpeg(number)) for number in range(12)}


def test_readers_get_the_pixels(tmp_path: Path) -> None:
    """tensorflow-datasets, from the view, and our own parser give each image as TensorFlow decodes it."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    from shardtrail.reading.pipeline import make_parser

    job = folder(tmp_path)
    _, dataset = build_all(job)
    expected = {f"photo-{number:02d}": tf.io.decode_jpeg(jpeg(number)).numpy() for number in range(12)}
    read = tfds.as_numpy(tfds.builder_from_directory(str(job.folder.view)).as_dataset(split="train"))
    theirs = {one["sample_id"].decode(): one["image"] for one in read}
    files = [str(job.folder.shards / shard.file) for shard in dataset.shards]
    batches = tf.data.TFRecordDataset(files).batch(5).map(make_parser(dataset))
    ours = {
        name.decode(): image.to_tensor().numpy()
        for batch in batches
        for name, image in zip(batch.sample_id.numpy(), batch.bands["image"], strict=True)
    }
    for found in (theirs, ours):
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_another_format_under_the_name_fails_its_shard_by_name(tmp_path: Path) -> None:
    """A PNG among JPEGs names sample, format found and format expected; all other shards are built."""
    job = folder(tmp_path)
    (tmp_path / "raw" / "cat" / "photo-01.jpg").write_bytes(imagecodecs.png_encode(np.zeros((4, 4, 3), np.uint8)))
    with pytest.raises(StageFailed, match=r"photo-01: image is PNG .*expected JPEG") as failure:
        build_all(job)
    assert len(failure.value.failures) == 1
    shards = len(list(job.folder.shards.glob("*.tfrecord")))
    assert shards >= 3


def test_an_image_that_changed_is_found(tmp_path: Path) -> None:
    """One bit within an image fails the deep check with its shard, and repair brings the bytes back."""
    job = folder(tmp_path)
    _, dataset = build_all(job)
    path = job.folder.shards / dataset.shards[0].file
    before, kept = path.stat(), path.read_bytes()
    broken = bytearray(kept)
    broken[len(broken) // 2] ^= 1
    path.write_bytes(broken)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = verify(job, deep=True)
    assert {fault.shard for fault in found.faults} == {dataset.shards[0].address}
    repair(job, found)
    assert path.read_bytes() == kept
    assert verify(job, deep=True).faults == ()


@pytest.mark.parametrize(
    ("dtype", "shape", "format"),
    [
        ("uint8", (None, None, 3), "webp"),
        ("uint16", (None, None, 3), "jpeg"),
        ("uint8", (None, None), "png"),
        ("uint8", (None, None, 2), "png"),
        ("float32", (None, 4), ""),
    ],
)
def test_images_that_nobody_could_decode_are_refused(dtype: str, shape: tuple[int | None, ...], format: str) -> None:
    """A declaration that TensorFlow could not read back is a clear error, not a shard."""
    with pytest.raises(ConfigError, match="feature image"):
        Feature("image", dtype, shape, format)
