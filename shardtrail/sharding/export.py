"""Copies of the shards for use elsewhere, under the names that other tools expect.

    exported = export(job, Path("/media/disk/bigearthnet"), splits=["train"], compressed=True)

A folder of its own, with nothing in it that points back here::

    dataset.json  train-00000-of-00118.tfrecord[.gz] …  features.json  dataset_info.json  MD5SUMS

``dataset.json`` comes first and says of which dataset the folder is, ``MD5SUMS`` last: where it lies, all is there and
``md5sum -c MD5SUMS`` checks it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import gzip
import hashlib
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import BinaryIO

from shardtrail.dataset import Dataset, Shard, load_dataset
from shardtrail.errors import ConfigError, ShardError, StageFailed
from shardtrail.files import sync_folder, write_atomic
from shardtrail.job import Job
from shardtrail.sharding.pin import pinned
from shardtrail.sharding.stale import remove_dead
from shardtrail.sharding.view import view_files, view_names

SUMS = "MD5SUMS"

_CHUNK = 1 << 20
_FICLONE = 0x40049409
"""Linux: share the blocks of another file, where the file system can (Btrfs, XFS)."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export came to: ``files`` shards of ``bytes`` in all, of which ``written`` were not there before."""

    files: int
    bytes: int
    written: int


@dataclass(frozen=True, slots=True)
class Copy:
    """One shard to be copied to ``target``, and the md5 that it has by dataset.json."""

    source: Path
    target: Path
    md5: str
    compressed: bool


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy that is on disk, by the md5 of its own bytes; ``written`` is False if it was there."""

    md5: str
    bytes: int
    written: bool


def export(job: Job, target: Path, splits: Sequence[str] = (), compressed: bool = False) -> Exported:
    """Copy the shards of a dataset, each checked against its md5. What is there and right is not copied again.

    Args:
        job: its folder holds the dataset; its mapper runs one unit a shard.
        target: a folder that is new, empty, or of an earlier export of the same.
        splits: which to export; all by default.
        compressed: as GZIP, which ``tf.data.TFRecordDataset(…, compression_type="GZIP")`` reads from the beginning
            only. tensorflow-datasets does not, so there is no ``dataset_info.json`` then.

    Raises:
        ConfigError: no dataset or no such split; the target is somebody else's, or within the raw data or ``data``.
        StageFailed: shards are missing or damaged, or the disk is full; the others were copied.
    """
    dataset = load_dataset(job.folder.dataset)
    wanted = _of_splits(dataset, splits)
    names = {f"{name}.gz" if compressed else name: shard for name, shard in view_names(wanted).items()}
    files = {name: content for name, content in view_files(wanted).items() if not compressed or name == "features.json"}
    head = job.folder.dataset.read_bytes()
    _claim(job, target, head, {*names, *files, "dataset.json", SUMS})
    with pinned(job.folder, dataset) as shards:
        copied = _copy_all(
            job, target, {name: (shards / shard.file, shard) for name, shard in names.items()}, compressed
        )
    for name, content in files.items():
        write_atomic(target / name, content)
    sums = {name: copy.md5 for name, copy in copied.items()}
    sums |= {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in files.items()}
    sums["dataset.json"] = hashlib.md5(head, usedforsecurity=False).hexdigest()
    write_atomic(target / SUMS, "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode())
    return Exported(
        files=len(copied),
        bytes=sum(copy.bytes for copy in copied.values()),
        written=sum(copy.written for copy in copied.values()),
    )


def _of_splits(dataset: Dataset, splits: Sequence[str]) -> Dataset:
    missing = sorted(set(splits) - dataset.splits.keys())
    if missing:
        raise ConfigError(
            f"the dataset has no split {', '.join(missing)}; it has {', '.join(dataset.splits) or 'none'}"
        )
    return dataclasses.replace(dataset, shards=tuple(s for s in dataset.shards if not splits or s.split in splits))


def _claim(job: Job, target: Path, head: bytes, names: set[str]) -> None:
    """Make the target, or see that it is an earlier export of the same, and mark it by ``dataset.json``."""
    for place in (job.raw, job.folder.data):
        if target.resolve().is_relative_to(place.resolve()):
            raise ConfigError(f"{target} lies in {place}, where nothing else may be written; choose another folder")
    try:
        target.mkdir(parents=True, exist_ok=True)
        found = {path.name for path in target.iterdir() if not _begun(path.name, names)}
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"{target} is not a folder; choose another") from error
    marked = "dataset.json" in found and (target / "dataset.json").read_bytes() == head
    foreign = sorted(found - names) if marked else sorted(found)
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise ConfigError(
            f"{target} holds {', '.join(foreign[:3])}{more}, which this export would not write there; choose a new "
            "folder, or empty it"
        )
    remove_dead([target])
    write_atomic(target / "dataset.json", head)


def _begun(name: str, names: set[str]) -> bool:
    """Whether a file is what an interrupted export leaves."""
    return name.startswith(".") and name.endswith(".tmp") and name[1:].rsplit(".", 2)[0] in names


def _copy_all(job: Job, target: Path, names: Mapping[str, tuple[Path, Shard]], compressed: bool) -> dict[str, Copied]:
    copies = [
        (name, Copy(source, target.resolve() / name, shard.md5, compressed)) for name, (source, shard) in names.items()
    ]
    copied: dict[str, Copied] = {}
    failed = []
    job.progress.start("export", len(copies), "shards")
    for outcome in job.mapper("export", copy_shard, copies):
        if outcome.value is None:
            failed.append((outcome.label, outcome.error))
        else:
            copied[outcome.label] = outcome.value
        job.progress.advance(note=f"{sum(copy.bytes for copy in copied.values()) / 2**20:,.0f} MiB")
    if failed:
        raise StageFailed("export", failed, "mend the shards, then go on: shardtrail verify --deep --repair")
    job.progress.finish(f"{len(copied)} shards in {target}")
    return copied


def copy_shard(copy: Copy) -> Copied:
    """Copy one shard unless a right copy is there: temporary name, flush, fsync, rename. Runs in workers.

    Raises:
        ShardError: the shard is missing, or its bytes are not those of its md5.
        OSError: the target cannot be written.
    """
    if (there := _found(copy)) is not None:
        return there
    temporary = copy.target.with_name(f".{copy.target.name}.{os.getpid()}.tmp")
    try:
        with _shard(copy) as source, temporary.open("w+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # shows that its writer lives: see sharding.stale
            if copy.compressed:
                # Neither name nor time in the header: the same shard gives the same bytes.
                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as stream:
                    shutil.copyfileobj(source, stream, _CHUNK)
            else:
                _clone(source, file)
            file.flush()
            os.fsync(file.fileno())
            # What is compared are the bytes of the copy, not those that were meant for it.
            copied = _digests(file, copy)
            if copied is None:
                raise ShardError(f"{copy.source.name}: its bytes are not those of its md5 {copy.md5} in dataset.json")
            os.replace(temporary, copy.target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(copy.target.parent)
    return copied


def _found(copy: Copy) -> Copied | None:
    """The copy that is there, if it is right."""
    try:
        with copy.target.open("rb") as file:
            found = _digests(file, copy)
    except FileNotFoundError:
        return None
    return found and dataclasses.replace(found, written=False)


@contextlib.contextmanager
def _shard(copy: Copy) -> Iterator[BinaryIO]:
    try:
        file = copy.source.open("rb")
    except FileNotFoundError:
        raise ShardError(f"{copy.source.name} does not exist") from None
    with file:
        yield file


def _clone(source: BinaryIO, file: BinaryIO) -> None:
    try:
        fcntl.ioctl(file, _FICLONE, source.fileno())
    except OSError:  # another file system, or one that shares no blocks
        shutil.copyfileobj(source, file, _CHUNK)


def _digests(file: BufferedRandom | BufferedReader, copy: Copy) -> Copied | None:
    """Size and md5 of a copy; None if what it holds is not the shard."""
    file.seek(0)
    stored = hashlib.file_digest(file, _md5)
    size = file.tell()
    if copy.compressed:
        file.seek(0)
        try:
            with gzip.GzipFile(fileobj=file, mode="rb") as stream:
                content = hashlib.file_digest(stream, _md5)
        except (OSError, EOFError, zlib.error):
            return None
    else:
        content = stored
    return Copied(stored.hexdigest(), size, written=True) if content.hexdigest() == copy.md5 else None


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)
