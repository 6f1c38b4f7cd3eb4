"""One way of going through shards, on one core: ``python -m benchmarks.deep_check.readers NAME FOLDER``.

FOLDER is a built working folder. Prints JSON: records (0 where they are not told apart) and seconds of processor time,
without those of starting Python and importing.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

CHUNK = 1 << 20

READERS: dict[str, Callable[[Path], Callable[[], int]]] = {}
"""Name -> takes the folder, imports and opens what it needs, and returns the work to be timed."""


def reader(prepare: Callable[[Path], Callable[[], int]]) -> Callable[[Path], Callable[[], int]]:
    """Enter a reader under its name."""
    READERS[prepare.__name__] = prepare
    return prepare


def shards(root: Path) -> list[Path]:
    """The shards of a working folder."""
    return sorted((root / "data" / "shards").glob("*.tfrecord"))


@reader
def ours(root: Path) -> Callable[[], int]:
    """``verify --deep``, tables and receipts read as well."""
    from shardtrail.job import open_job
    from shardtrail.sharding.verify import verify

    def work() -> int:
        found = verify(open_job(root), deep=True)
        if found.faults:
            raise SystemExit(f"faults: {found.faults}")
        return found.records

    # Tables are read by packages that are imported when they are first needed.
    verify(open_job(root))
    return work


@reader
def md5sum(root: Path) -> Callable[[], int]:
    """GNU coreutils."""

    def work() -> int:
        subprocess.run(["md5sum", *shards(root)], check=True, stdout=subprocess.DEVNULL)
        return 0

    return work


@reader
def tensorflow_count(root: Path) -> Callable[[], int]:
    """``TFRecordDataset``, records counted: it checks both CRCs."""
    import tensorflow as tf

    def work() -> int:
        records = tf.data.TFRecordDataset([str(path) for path in shards(root)], buffer_size=CHUNK)
        return int(records.reduce(0, lambda count, _: count + 1))

    return work


@reader
def tensorflow_parse(root: Path) -> Callable[[], int]:
    """The same, and every feature parsed in batches of 64, which finds those that are missing or of another kind."""
    import tensorflow as tf

    from shardtrail.dataset import load_dataset

    schema = load_dataset(root / "data" / "dataset.json").schema
    one = ["sample_id", *schema.texts, *(feature.name for feature in schema.features)]
    spec = {name: tf.io.FixedLenFeature([], tf.string) for name in one}
    spec |= {"labels": tf.io.VarLenFeature(tf.int64), "label_names": tf.io.VarLenFeature(tf.string)}

    def work() -> int:
        records = tf.data.TFRecordDataset([str(path) for path in shards(root)], buffer_size=CHUNK)
        parsed = records.batch(64).map(lambda batch: tf.size(tf.io.parse_example(batch, spec)["sample_id"]))
        return int(parsed.reduce(0, lambda count, size: count + size))

    return work


@reader
def tfrecord_package(root: Path) -> Callable[[], int]:
    """The package of that name: it parses every record, and skips the CRCs."""
    from tfrecord.reader import tfrecord_loader

    return lambda: sum(1 for path in shards(root) for _ in tfrecord_loader(str(path), None))


@reader
def read(root: Path) -> Callable[[], int]:
    """Every byte into one buffer."""

    def work() -> int:
        for _ in chunks(root):
            pass
        return 0

    return work


@reader
def md5(root: Path) -> Callable[[], int]:
    """Read, and hashed by Python's hashlib."""

    def work() -> int:
        for file in chunks(root):
            digest = hashlib.md5(usedforsecurity=False)
            for chunk in file:
                digest.update(chunk)
        return 0

    return work


@reader
def crc(root: Path) -> Callable[[], int]:
    """The CRC-32C of every payload, mapped into memory."""
    import google_crc32c

    def work() -> int:
        count = 0
        for payload in payloads(root):
            google_crc32c.value(payload)
            count += 1
        return count

    return work


@reader
def features(root: Path) -> Callable[[], int]:
    """Every payload's features against the declared schema, mapped into memory."""
    from shardtrail.dataset import load_dataset
    from shardtrail.records.features import Declared, RecordCheck

    dataset = load_dataset(root / "data" / "dataset.json")
    check = RecordCheck(Declared(dataset.schema, dataset.encoding))

    def work() -> int:
        return sum(1 for payload in payloads(root) if not check(payload.data)[1])

    return work


def chunks(root: Path) -> Iterator[Iterator[memoryview]]:
    """Each shard as pieces, which last until the next."""
    buffer = memoryview(bytearray(CHUNK))

    def pieces(descriptor: int) -> Iterator[memoryview]:
        while got := os.readv(descriptor, [buffer]):
            yield buffer[:got]

    for path in shards(root):
        with path.open("rb", buffering=0) as file:
            found = pieces(file.fileno())
            yield found
            for _ in found:
                pass


def payloads(root: Path) -> Iterator[npt.NDArray[np.uint8]]:
    """Each record's payload, found by the indexes, not copied."""
    from shardtrail.records.framing import FOOTER_BYTES, HEADER_BYTES
    from shardtrail.records.index import read_index

    for path in shards(root):
        with path.open("rb") as file:
            content = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
        for offset, length in read_index(path.with_suffix(".index")):
            yield content[offset + HEADER_BYTES : offset + length - FOOTER_BYTES]


def _processor_seconds() -> float:
    """Of this process and of children that ended, all threads."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main() -> None:
    """Measure one reader."""
    name, root = sys.argv[1], Path(sys.argv[2])
    # Before threads are started: TensorFlow makes as many as it may use cores.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    work = READERS[name](root)
    began, used = time.perf_counter(), _processor_seconds()
    records = work()
    used, wall = _processor_seconds() - used, time.perf_counter() - began
    print(json.dumps({"records": records, "seconds": used, "wall": wall}))


if __name__ == "__main__":
    main()
