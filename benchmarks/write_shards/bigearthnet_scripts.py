"""The way of BigEarthNet's own scripts: rasterio, an int64 or float list a band, one TFRecordWriter a split.

Written anew after their documented behaviour, with Sentinel-1 beside Sentinel-2 as the MM variant has it.
One process, as theirs.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import rasterio
import tensorflow as tf

from benchmarks.peers.contestant import versions
from benchmarks.write_shards.patches import S1_BANDS, S2_BANDS


def write(raw: Path, patches: int, out: Path) -> int:
    """Write one TFRecord file of the first ``patches`` pairs; return their number."""
    out.mkdir(parents=True, exist_ok=True)
    count = 0
    with tf.io.TFRecordWriter(str(out / "train.tfrecord")) as writer:
        for s1 in sorted((raw / "BigEarthNet-S1-v1.0").iterdir())[:patches]:
            described = json.loads((s1 / f"{s1.name}_labels_metadata.json").read_text())
            s2 = raw / "BigEarthNet-v1.0" / described["corresponding_s2_patch"]
            features = {"patch_name_s1": _text([s1.name]), "patch_name_s2": _text([s2.name])}
            features["original_labels"] = _text(described["labels"])
            for band in S2_BANDS:
                features[band] = tf.train.Feature(int64_list=tf.train.Int64List(value=_read(s2, band)))
            for band in S1_BANDS:
                features[band] = tf.train.Feature(float_list=tf.train.FloatList(value=_read(s1, band)))
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
            count += 1
    return count


def _read(patch: Path, band: str) -> object:
    with rasterio.open(patch / f"{patch.name}_{band}.tif") as file:
        return file.read(1).ravel()


def _text(values: list[str]) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode() for value in values]))


if __name__ == "__main__":
    began = time.perf_counter()
    records = write(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    print(json.dumps({"records": records, "seconds": time.perf_counter() - began, "versions": versions()}))
