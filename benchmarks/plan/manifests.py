"""``python -m benchmarks.plan.manifests OUT ROWS|TABLE``: a manifest to plan, made by the production code.

ROWS made-up samples, or those of BigEarthNet v2's ``metadata.parquet``, whose ids, splits, labels, tiles, days and
places are real. Digests are made up in both: they stand for raw files that need not be there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtrail.config import BigEarthNetParams
from shardtrail.layouts.bigearthnet import BigEarthNet
from shardtrail.layouts.bigearthnet_patch import S2_NAME, day_of, place_of_tile
from shardtrail.manifest import manifest_columns, write_table
from shardtrail.samples import Schema

_SPLITS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
_PIECE = 1 << 17
_FURTHER = ("country", "latitude", "longitude")


def schema() -> Schema:
    """What a record of an S1 and S2 pair with 19 classes holds."""
    layout = BigEarthNet(BigEarthNetParams(sensors="s1s2"))
    return layout.schema()


def made_up(rows: int, seed: int = 0) -> pa.Table:
    """Samples with ids of 50 characters, as v2's have, over 125 tiles and 12 months."""
    rng = np.random.default_rng(seed)
    pieces = [_piece(first, min(_PIECE, rows - first), rng) for first in range(0, rows, _PIECE)]
    return pa.Table.from_batches(pieces, manifest_columns(schema(), _FURTHER))


def _piece(first: int, count: int, rng: np.random.Generator) -> pa.RecordBatch:
    numbers = np.arange(first, first + count)
    ids = [f"S2A_MSIL2A_MADEUP__T000000_N9999_R000_T00AAA_{number:08}" for number in numbers.tolist()]
    months = [f"2017-{month:02}" for month in rng.integers(1, 13, count).tolist()]
    splits = np.array(["train", "validation", "test"])[rng.choice(3, count, p=[0.5, 0.25, 0.25])]
    return _rows(
        ids=ids,
        splits=splits.tolist(),
        labels=[sorted({a, b, c}) for a, b, c in rng.integers(0, 19, (count, 3)).tolist()],
        digests=_digests(count, rng),
        attributes={
            "region": [f"T{tile:05}" for tile in rng.integers(0, 125, count).tolist()],
            "month": months,
            "acquired": [f"{month}-15" for month in months],
            "country": ["Nowhere"] * count,
            "latitude": [f"{value:.6f}" for value in rng.uniform(36, 70, count).tolist()],
            "longitude": [f"{value:.6f}" for value in rng.uniform(-9, 31, count).tolist()],
        },
    )


def of_bigearthnet(table: Path) -> pa.Table:
    """The patches of v2's ``metadata.parquet``."""
    source = pq.read_table(table, columns=["patch_id", "labels", "split", "country"]).sort_by("patch_id")
    places = {name: place for place, name in enumerate(schema().vocabulary)}
    rng = np.random.default_rng(0)
    pieces = []
    for batch in source.combine_chunks().to_batches(_PIECE):
        names = batch["patch_id"].to_pylist()
        matches = [match for match in map(S2_NAME.fullmatch, names) if match]
        found = [place_of_tile(match) for match in matches]
        days = [day_of(match) for match in matches]
        pieces.append(
            _rows(
                ids=names,
                splits=[_SPLITS[split] for split in batch["split"].to_pylist()],
                labels=[sorted(places[label] for label in labels) for labels in batch["labels"].to_pylist()],
                digests=_digests(len(names), rng),
                attributes={
                    "region": [match["tile"] for match in matches],
                    "month": [day[:7] for day in days],
                    "acquired": days,
                    "country": batch["country"].to_pylist(),
                    "latitude": [place["latitude"] for place in found],
                    "longitude": [place["longitude"] for place in found],
                },
            )
        )
    return pa.Table.from_batches(pieces, manifest_columns(schema(), _FURTHER))


def _digests(count: int, rng: np.random.Generator) -> list[str]:
    digits = rng.bytes(16 * count).hex()
    return [digits[start : start + 32] for start in range(0, 32 * count, 32)]


def _rows(
    ids: list[str], splits: list[str], labels: list[list[int]], digests: list[str], attributes: dict[str, list[str]]
) -> pa.RecordBatch:
    columns = manifest_columns(schema(), _FURTHER)
    bands = sum(feature.nbytes for feature in schema().features)
    values = {
        "sample_id": ids,
        "split": splits,
        "labels": labels,
        "digest": digests,
        "bytes": np.full(len(ids), bands),
        "texts": [[name, name] for name in ids],
        "files": [[] for _ in ids],
        **attributes,
    }
    return pa.record_batch([pa.array(values[field.name], field.type) for field in columns], schema=columns)


if __name__ == "__main__":
    out, source = Path(sys.argv[1]), sys.argv[2]
    write_table(out, made_up(int(source)) if source.isdigit() else of_bigearthnet(Path(source)))
