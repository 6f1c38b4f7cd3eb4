"""Other people's readers on shards from the production path: each gives the pixels of the raw files, bit for bit."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
from builds import build_all, in_process, new_folder

from shardtrail.dataset import load_dataset
from shardtrail.job import Job
from shardtrail.manifest import read_manifest
from shardtrail.records.example import ENCODINGS
from shardtrail.sample_data import make_sample_data

SIZES = {"B01": 20, "B02": 120, "B03": 120, "B04": 120, "B05": 60, "B06": 60, "B07": 60, "B08": 120, "B8A": 60}
SIZES |= {"B09": 20, "B11": 60, "B12": 60}
RADAR = ("VH", "VV")

SAMPLES = 12


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    """The same pairs of patches, built in every encoding."""
    root = tmp_path_factory.mktemp("interop")
    make_sample_data(root / "patches", samples=SAMPLES, broken=0, workers=1)
    found = {encoding: new_folder(root / encoding, root / "patches", encoding) for encoding in ENCODINGS}
    for job in found.values():
        build_all(job)
    return found


@pytest.fixture(scope="module")
def truth(jobs: dict[str, Job]) -> dict[str, dict[str, Any]]:
    """What the raw files hold, by sample: bands as libtiff decodes them, label names, and the names of the patches."""
    job = jobs["raw"]
    vocabulary = load_dataset(job.folder.dataset).schema.vocabulary
    found = {}
    for row in read_manifest(job.folder.manifest).to_pylist():
        bands = {
            file["role"]: imagecodecs.tiff_decode((job.raw / file["path"]).read_bytes())
            for file in row["files"]
            if file["path"].endswith(".tif")
        }
        found[row["sample_id"]] = {
            **bands,
            "split": row["split"],
            "labels": row["labels"],
            "label_names": [vocabulary[index] for index in row["labels"]],
        }
    assert len(found) == SAMPLES
    assert all(set(SIZES) | set(RADAR) <= sample.keys() for sample in found.values())
    return found


def shards(job: Job, split: str = "") -> list[Path]:
    """The files of a dataset in plan order."""
    dataset = load_dataset(job.folder.dataset)
    return [job.folder.shards / shard.file for shard in dataset.shards if split in ("", shard.split)]


def same(found: Any, expected: Any) -> bool:
    """Equal to the bit, in dtype and in shape."""
    return (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def joined(planes: Any, dtype: str) -> Any:
    """Planes of bytes [itemsize, …], the lowest first, as the numbers that they are."""
    return (
        np.ascontiguousarray(np.moveaxis(planes, 0, -1)).view(np.dtype(dtype).newbyteorder("<"))[..., 0].astype(dtype)
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_tensorflow_datasets_reads_every_feature(
    jobs: dict[str, Job], truth: dict[str, dict[str, Any]], encoding: str
) -> None:
    """builder_from_directory on the view has our splits; each sample comes once, all of its features as they are. Of
    compressed bands it gives planes of bytes, which make up the very bands."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(jobs[encoding].folder.view))
    dataset = load_dataset(jobs[encoding].folder.dataset)
    assert {name: split.num_examples for name, split in builder.info.splits.items()} == {
        name: figures["records"] for name, figures in dataset.splits.items()
    }
    seen = []
    for split in dataset.splits:
        for one in tfds.as_numpy(builder.as_dataset(split=split)):
            name = one["sample_id"].decode()
            sample = truth[name]
            seen.append(name)
            assert sample["split"] == split
            assert one["labels"].tolist() == sample["labels"]
            assert [label.decode() for label in one["label_names"]] == sample["label_names"]
            for band in (*SIZES, *RADAR):
                found = joined(one[band], sample[band].dtype.name) if encoding == "zlib" else one[band]
                assert same(found, sample[band]), (name, band)
            if encoding == "int64":
                hot = np.flatnonzero(one["BigEarthNet-19_labels_multi_hot"])
                assert hot.tolist() == sample["labels"]
    assert sorted(seen) == sorted(truth)


def test_tensorflow_datasets_slices_splits(jobs: dict[str, Job]) -> None:
    """Slices by share and by record divide a split: together they are all of it, in plan order, and nothing twice."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(jobs["raw"].folder.view))

    def names(split: str) -> list[bytes]:
        read = builder.as_dataset(split=split, decoders=tfds.decode.PartialDecoding({"sample_id": True}))
        return [one["sample_id"] for one in tfds.as_numpy(read)]

    whole = names("train")
    assert names("train[:50%]") + names("train[50%:]") == whole
    assert names("train[:2]") + names("train[2:5]") + names("train[5:]") == whole
    assert len(set(whole)) == len(whole) >= 6


def test_plain_tensorflow_reads_raw_bands(jobs: dict[str, Job], truth: dict[str, dict[str, Any]]) -> None:
    """TFRecordDataset, parse_example and decode_raw, nothing of ours."""
    import tensorflow as tf

    features = {name: tf.io.FixedLenFeature([], tf.string) for name in ("sample_id", *SIZES, *RADAR)}
    count = 0
    for record in tf.data.TFRecordDataset([str(path) for path in shards(jobs["raw"])]):
        parsed = tf.io.parse_single_example(record, features)
        sample = truth[parsed["sample_id"].numpy().decode()]
        for band in (*SIZES, *RADAR):
            dtype, side = (tf.float32, 120) if band in RADAR else (tf.uint16, SIZES[band])
            assert same(tf.reshape(tf.io.decode_raw(parsed[band], dtype), [side, side]).numpy(), sample[band])
        count += 1
    assert count == SAMPLES


def test_bigearthnets_own_way_of_reading(jobs: dict[str, Job], truth: dict[str, dict[str, Any]]) -> None:
    """Encoding int64 suits a reader made for BigEarthNet's own records: bands as int64 lists of a fixed length,
    Sentinel-1 as floats, names and labels of any number, a multi-hot vector in the order of the 19 classes."""
    import tensorflow as tf

    spec: dict[str, Any] = {band: tf.io.FixedLenFeature([side * side], tf.int64) for band, side in SIZES.items()}
    spec |= {band: tf.io.FixedLenFeature([120 * 120], tf.float32) for band in RADAR}
    spec["BigEarthNet-19_labels"] = tf.io.VarLenFeature(tf.string)
    spec["BigEarthNet-19_labels_multi_hot"] = tf.io.FixedLenFeature([19], tf.int64)
    spec |= {name: tf.io.VarLenFeature(tf.string) for name in ("patch_name_s1", "patch_name_s2")}
    seen = []
    for record in tf.data.TFRecordDataset([str(path) for path in shards(jobs["int64"])]):
        parsed = tf.io.parse_single_example(record, spec)
        (name,) = parsed["patch_name_s2"].values.numpy().tolist()
        sample = truth[name.decode()]
        seen.append(name.decode())
        for band, side in SIZES.items():
            numbers = parsed[band].numpy()
            assert numbers.dtype == np.int64
            assert np.array_equal(numbers.reshape(side, side), sample[band])
        for band in RADAR:
            assert same(parsed[band].numpy().reshape(120, 120), sample[band])
        labels = [label.decode() for label in parsed["BigEarthNet-19_labels"].values.numpy()]
        assert labels == sample["label_names"]
        assert np.flatnonzero(parsed["BigEarthNet-19_labels_multi_hot"].numpy()).tolist() == sample["labels"]
        assert len(parsed["patch_name_s1"].values) == 1
    assert sorted(seen) == sorted(truth)


TFRECORD_PACKAGE = """
import hashlib, json, sys
from tfrecord import tfrecord_loader

for path in sys.argv[1:]:
    index = path.removesuffix("tfrecord") + "index"
    name = lambda one: bytes(one["sample_id"]).decode()
    print(json.dumps({
        "whole": [name(one) for one in tfrecord_loader(path, None)],
        "parts": [[name(one) for one in tfrecord_loader(path, index, shard=(part, 3))] for part in range(3)],
        "labels": {name(one): one["labels"].tolist() for one in tfrecord_loader(path, index)},
        "B04": {name(one): hashlib.md5(bytes(one["B04"])).hexdigest() for one in tfrecord_loader(path, index)},
        "VV": {name(one): hashlib.md5(bytes(one["VV"])).hexdigest() for one in tfrecord_loader(path, index)},
    }))
"""
"""In a process of its own: the package brings TensorFlow's messages along, which clash with TensorFlow's."""


@pytest.mark.parametrize("encoding", ["raw", "int64"])
def test_the_tfrecord_package_reads_records_through_our_index(
    jobs: dict[str, Job], truth: dict[str, dict[str, Any]], encoding: str
) -> None:
    """tfrecord_loader finds every record and its values, and three readers that divide a shard by its index get each
    record once, in order."""
    # Of an index of one line the package makes no table.
    paths = [path for path in shards(jobs[encoding]) if len(path.with_suffix(".index").read_text().splitlines()) > 1]
    answer = in_process(TFRECORD_PACKAGE, *paths)
    assert answer.returncode == 0, answer.stderr
    read = [json.loads(line) for line in answer.stdout.splitlines()]
    assert len(read) == len(paths) > 1
    for one in read:
        assert [name for part in one["parts"] for name in part] == one["whole"]
        assert one["labels"] == {name: truth[name]["labels"] for name in one["whole"]}
        for band in ("B04", "VV"):
            numbers = np.int64 if (encoding, band) == ("int64", "B04") else truth[one["whole"][0]][band].dtype
            stored = {
                name: hashlib.md5(truth[name][band].astype(numbers).tobytes()).hexdigest() for name in one["whole"]
            }
            assert one[band] == stored


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_index_is_what_dali_expects(jobs: dict[str, Job], encoding: str) -> None:
    """One line `offset length` a record, of header, payload and footer together, as walking the file gives them."""
    for path in shards(jobs[encoding]):
        content, lines, offset = path.read_bytes(), [], 0
        while offset < len(content):
            length = 8 + 4 + struct.unpack_from("<Q", content, offset)[0] + 4
            lines.append(f"{offset} {length}\n")
            offset += length
        index = path.with_suffix(".index").read_text()
        assert index == "".join(lines)
        assert re.fullmatch(r"(\d+ \d+\n)+", index)
