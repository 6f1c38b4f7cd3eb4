"""The last scan of the raw tree, kept in ``.shardtrail/scan.parquet``: evidence, remade when lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtrail.errors import ConfigError
from shardtrail.files import file_md5
from shardtrail.folder import Folder
from shardtrail.manifest import INVENTORY, ROW_GROUP, read_table, write_table
from shardtrail.storage.local import Paths, Scan

_KEY = b"shardtrail.scan.runs"  # named for the form of the rows, so that no other is taken for it
STATS = ("size", "mtime_ns", "ctime_ns", "inode")


@dataclass(frozen=True, slots=True)
class ScanState:
    """What the file says without being read as a whole.

    Attributes:
        digest: of the scan, stats included.
        inventory: digest of the inventory that was made of it.
        inventory_md5: of that inventory's file.
        broken: path that leads to no file -> what it is.
    """

    digest: str
    inventory: str
    inventory_md5: str
    broken: Mapping[str, str]


def scan_file(folder: Folder) -> Path:
    """Where the last scan is kept."""
    return folder.state / "scan.parquet"


def save_scan(folder: Folder, scan: Scan, inventory: str) -> None:
    """Keep a scan, and what identifies the inventory made of it, which is written already."""
    state = {
        "digest": scan.digest,
        "inventory": inventory,
        "inventory_md5": file_md5(folder.inventory),
        "broken": dict(scan.broken),
    }
    table = _scan_table(scan).replace_schema_metadata({_KEY: json.dumps(state).encode()})
    write_table(scan_file(folder), table)


def read_state(folder: Folder) -> ScanState | None:
    """The kept scan's digests; None where there is no usable one."""
    try:
        values = json.loads((pq.read_schema(scan_file(folder)).metadata or {})[_KEY])
        return ScanState(values["digest"], values["inventory"], values["inventory_md5"], dict(values["broken"]))
    except (OSError, KeyError, ValueError, pa.ArrowException):
        return None


def load_scan(folder: Folder) -> Scan | None:
    """The kept scan; None where there is no usable one."""
    state = read_state(folder)
    if state is None:
        return None
    try:
        table = read_table(scan_file(folder))
    except ConfigError:
        return None
    paths, lengths = Paths(), table["size"].combine_chunks().value_lengths().to_pylist()
    for run in zip(table["folder"].to_pylist(), table["names"].to_pylist(), lengths, strict=True):
        paths.add_run(*run)
    size, mtime, ctime, inode = (table[name].combine_chunks().flatten().to_numpy() for name in STATS)
    return Scan(paths, size, mtime, ctime, inode, state.broken)


def listed(inventory: pa.Table) -> Scan:
    """An inventory as a scan, of which only paths and sizes are known; the other stats are 0."""
    paths = chain.from_iterable(batch["path"].to_pylist() for batch in inventory.to_batches(ROW_GROUP))
    unknown = np.zeros(inventory.num_rows, np.int64)
    return Scan(Paths.of(paths), inventory["size"].to_numpy(), unknown, unknown, unknown, {})


def _scan_table(scan: Scan) -> pa.Table:
    """A row for every run of files of one folder, since eight million paths are too many to hold each by itself."""
    starts, folders, names = zip(*scan.paths.runs, strict=True) if len(scan.paths) else ((), (), ())
    bounds = pa.array([*starts, len(scan.paths)], pa.int32())
    columns = {"folder": pa.array(folders, pa.string()), "names": pa.array(names, pa.string())}
    columns |= {
        name: pa.ListArray.from_arrays(bounds, pa.array(np.asarray(getattr(scan, name), np.int64))) for name in STATS
    }
    return pa.table(columns)


def inventory_table(scan: Scan) -> pa.Table:
    """``data/inventory.parquet`` of a scan; files of a folder have no version but their bytes."""
    files = len(scan.paths)
    paths, pieces = iter(scan.paths), range(0, files, 16 * ROW_GROUP)
    columns = [
        pa.chunked_array([pa.array(list(islice(paths, 16 * ROW_GROUP)), pa.string()) for _ in pieces], pa.string()),
        pa.array(scan.size),
        pa.array([""], pa.string()).take(pa.array(np.zeros(files, np.int8))),
    ]
    return pa.table(columns, schema=INVENTORY)
