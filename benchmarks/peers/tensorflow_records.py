"""Plain TensorFlow: a ``tf.train.Example`` with raw bytes a band, one TFRecordWriter a process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import tensorflow as tf

from benchmarks.peers.sample import Read, Row


def write(rows: Iterable[Row], read: Read, out: Path) -> int:
    """One file of framed Examples."""
    count = 0
    with tf.io.TFRecordWriter(str(out / "part.tfrecord")) as writer:
        for row in rows:
            sample = read(row)
            values: dict[str, Sequence[bytes]] = {
                "sample_id": [sample.id.encode()],
                "labels": [label.encode() for label in sample.labels],
            }
            values |= {name: [array.tobytes()] for name, array in sample.arrays.items()}
            values |= {name: [image] for name, image in sample.images.items()}
            features = {name: tf.train.Feature(bytes_list=tf.train.BytesList(value=v)) for name, v in values.items()}
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
            count += 1
    return count
