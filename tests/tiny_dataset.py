"""A sharded dataset of a few small samples, written with the real record writer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from shardtrail.dataset import Dataset, Shard
from shardtrail.records.example import encode_sample
from shardtrail.records.framing import frame
from shardtrail.records.index import format_index
from shardtrail.samples import Feature, Schema

SCHEMA = Schema(
    features=(Feature("B02", "uint16", (12, 12)), Feature("B05", "uint16", (6, 6)), Feature("VV", "float32", (12, 12))),
    texts=("patch_name",),
    vocabulary=("Arable land", "Pastures", "Marine waters", "Never seen"),
    label_prefix="BigEarthNet-19",
)


def arrays(sample: int) -> tuple[dict[str, np.ndarray], list[int]]:
    """Arrays and labels of sample ``sample``: labels 0 to 2 lift B02, B05 and VV."""
    rng = np.random.default_rng(sample)
    labels = [label for label in range(3) if (sample >> label) & 1]
    lifted = [1 + (label in labels) for label in range(3)]
    return {
        "B02": (rng.integers(500, 1500, (12, 12)) * lifted[0]).astype(np.uint16),
        "B05": (rng.integers(500, 1500, (6, 6)) * lifted[1]).astype(np.uint16),
        "VV": (rng.normal(-12, 1, (12, 12)) + 6 * lifted[2]).astype(np.float32),
    }, labels


def write_dataset(
    root: Path, shards: Mapping[str, Sequence[int]], encoding: str = "raw", schema: Schema = SCHEMA
) -> Dataset:
    """Write shards of the given numbers of records a split, and ``data/dataset.json``; samples count from 0."""
    folder = root / "data" / "shards"
    folder.mkdir(parents=True, exist_ok=True)
    entries, sample = [], 0
    classes = {split: dict.fromkeys(schema.vocabulary, 0) for split in shards}
    for split, counts in shards.items():
        for number, count in enumerate(counts):
            content, lengths = b"", []
            for _ in range(count):
                values, labels = arrays(sample)
                for label in labels:
                    classes[split][schema.vocabulary[label]] += 1
                name = f"s{sample:03}"
                record = b"".join(frame(encode_sample(schema, encoding, name, labels, [name], values)))
                content += record
                lengths.append(len(record))
                sample += 1
            md5 = hashlib.md5(content).hexdigest()
            shard = Shard(
                f"{split}-{number:05}", f"{split}-{md5[:12]}.tfrecord", md5 * 2, split, count, len(content), md5
            )
            (folder / shard.file).write_bytes(content)
            (folder / shard.index).write_bytes(format_index(lengths))
            entries.append(shard)
    bands = {name: {"count": 1, "mean": 1000.0, "std": 300.0, "min": 0, "max": 4000} for name in ("B02", "B05")}
    bands["VV"] = {"count": 1, "mean": -5.0, "std": 3.0, "min": -20.0, "max": 8.0}
    books = {"seen": sample, "accepted": sample, "quarantined": 0, "excluded": 0}
    dataset = Dataset(schema, encoding, 1, tuple(entries), bands, classes, books)
    (root / "data" / "dataset.json").write_bytes(dataset.to_json())
    return dataset
