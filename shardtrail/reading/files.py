"""The shards a dataset names, as files: checked before anything is read, entered at any record."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardtrail.dataset import Dataset, Shard
from shardtrail.errors import ShardError
from shardtrail.records.features import Declared
from shardtrail.records.index import read_index
from shardtrail.records.scan import verify_file

_LISTED = 10


@dataclass(frozen=True)
class ShardFiles:
    """Shards and the folder they lie in.

    Attributes:
        folder: ``data/shards``.
        shards: in plan order; ``order.plan_epoch`` numbers them by their place here.
        declared: what their records hold.
    """

    folder: Path
    shards: tuple[Shard, ...]
    declared: Declared

    def __post_init__(self) -> None:
        # Bounded: a large dataset's indexes do not all fit into memory; reading one again takes a millisecond.
        object.__setattr__(self, "_starts", functools.lru_cache(maxsize=256)(self._read_starts))

    @property
    def records(self) -> list[int]:
        """Records of each shard."""
        return [shard.records for shard in self.shards]

    def path(self, shard: int) -> str:
        """Path of a shard by its place."""
        return str(self.folder / self.shards[shard].file)

    def offset(self, shard: int, record: int) -> int:
        """Byte at which a record's frame begins.

        Raises:
            ShardError: the shard's index cannot be read or does not fit its shard.
        """
        starts: npt.NDArray[np.int64] = self._starts(shard)  # type: ignore[attr-defined]
        return int(starts[record])

    def _read_starts(self, number: int) -> npt.NDArray[np.int64]:
        shard = self.shards[number]
        path = self.folder / shard.index
        index = np.array(read_index(path), np.int64).reshape(-1, 2)
        if len(index) != shard.records or index[-1:].sum() != shard.bytes:
            raise ShardError(
                f"{path} ({shard.address}) names {len(index)} records of a shard that has {shard.records} "
                f"in {shard.bytes} bytes. {_mend([shard])}"
            )
        return index[:, 0]


def shard_files(dataset: Dataset, folder: Path, splits: Sequence[str]) -> dict[str, ShardFiles]:
    """The files of some splits, each there with its index and of the size that ``dataset.json`` names.

    Raises:
        ShardError: some are not; up to ten are named, with the command that rebuilds them.
    """
    wanted = [shard for split in splits for shard in dataset.of_split(split)]
    faults = [(shard, fault) for shard in wanted if (fault := _fault(shard, folder))]
    if faults:
        lines = [f"{len(faults)} of {len(wanted)} shards that data/dataset.json names cannot be used:"]
        lines += [f"  {shard.address} ({shard.file}): {fault}" for shard, fault in faults[:_LISTED]]
        if len(faults) > _LISTED:
            lines.append(f"  and {len(faults) - _LISTED} more")
        lines.append(_mend([shard for shard, _ in faults]))
        raise ShardError("\n".join(lines))
    declared = Declared(dataset.schema, dataset.encoding)
    return {split: ShardFiles(folder, dataset.of_split(split), declared) for split in splits}


@contextlib.contextmanager
def naming_damage(files: ShardFiles) -> Iterator[None]:
    """Turn an error of TensorFlow's reader, which names no file, into one that names shard, record and byte.

    Raises:
        ShardError: reading failed inside the block.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        for shard in files.shards:
            path = files.folder / shard.file
            found = verify_file(
                path,
                records=shard.records,
                md5=shard.md5,
                index=files.folder / shard.index,
                declared=files.declared,
            )
            if found.faults:
                fault = found.faults[0]
                where = "" if fault.record is None else f", record {fault.record} of {shard.records}"
                raise ShardError(
                    f"{path} ({shard.address}){where}, byte {fault.offset}: {fault.detail}. {_mend([shard])}"
                ) from error
        raise ShardError(f"{files.folder}: every shard is whole, yet reading failed: {error.message}") from error


def _fault(shard: Shard, folder: Path) -> str:
    try:
        size = (folder / shard.file).stat().st_size
    except OSError:
        return "missing"
    if size != shard.bytes:
        return f"{size} bytes, expected {shard.bytes}"
    return "" if (folder / shard.index).is_file() else f"its index {shard.index} is missing"


def _mend(shards: Sequence[Shard]) -> str:
    if len(shards) > _LISTED:
        return "Rebuild them: shardtrail verify --repair"
    return "Rebuild: shardtrail run " + " ".join(f"--only {shard.address}" for shard in shards)
