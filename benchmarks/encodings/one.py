"""One encoding in a process of its own: ``python -m benchmarks.encodings.one ENCODING WORK RECORDS OUT``.

The samples of a validated working folder, decoded before the clock starts and taken in turn until there are so many
records, are written to one shard and read back. Prints seconds of processor time and bytes.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from shardtrail.job import Job, open_job
from shardtrail.layouts import get_layout
from shardtrail.manifest import manifest_schema, read_manifest
from shardtrail.records.example import RecordEncoder
from shardtrail.records.framing import frame
from shardtrail.samples import Schema, SourceFile

GZIP = "gzip"
"""Not an encoding of records: raw ones, compressed as ``shardtrail export --gzip`` does."""


def measured(name: str, job: Job, records: int, out: Path) -> dict[str, float]:
    """Seconds of writing and of reading, and bytes of the file."""
    schema = manifest_schema(read_manifest(job.folder.manifest))
    encoding = "raw" if name == GZIP else name
    samples = list(_samples(job))
    path = out / "shard.tfrecord"
    began = time.process_time()
    md5 = _write(path, RecordEncoder(schema, encoding), islice(cycle(samples), records))
    write = time.process_time() - began
    if name == GZIP:
        from shardtrail.sharding.export import Copy, copy_shard

        packed = Copy(path, path.with_suffix(".tfrecord.gz"), md5, compressed=True)
        began = time.process_time()
        copy_shard(packed)
        write += time.process_time() - began
        path = packed.target
    return {"write": write, "read": _read(path, schema, encoding, records), "bytes": path.stat().st_size}


def _samples(job: Job) -> Iterator[tuple[Any, ...]]:
    """What an encoder is given: id, labels, texts, arrays."""
    layout = get_layout(job.config)
    for row in read_manifest(job.folder.manifest).to_pylist():
        files = [SourceFile(**file) for file in row["files"]]
        arrays = layout.decode(files, [(job.raw / file.path).read_bytes() for file in files])
        yield row["sample_id"], row["labels"], row["texts"], arrays


def _write(path: Path, encoder: RecordEncoder, samples: Iterator[tuple[Any, ...]]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("wb") as file:
        for sample in samples:
            record = b"".join(frame(*encoder.encode_parts(*sample)))
            digest.update(record)
            file.write(record)
    return digest.hexdigest()


def _read(path: Path, schema: Schema, encoding: str, records: int) -> float:
    import tensorflow as tf

    from shardtrail.reading.pipeline import Parser

    compression = "GZIP" if path.suffix == ".gz" else ""
    parser = Parser(schema.features, len(schema.vocabulary), encoding)
    batches = tf.data.TFRecordDataset([str(path)], compression, 1 << 20).batch(32, drop_remainder=True).map(parser)
    for _ in batches.take(1):  # the graph is traced
        pass
    began = time.process_time()
    read = sum(len(batch.weight) for batch in batches)
    seconds = time.process_time() - began
    if read != records:
        raise SystemExit(f"{encoding}: {read} records of {records}")
    return seconds


if __name__ == "__main__":
    name, work, records, out = sys.argv[1:]
    print(json.dumps(measured(name, open_job(Path(work)), int(records), Path(out))))
