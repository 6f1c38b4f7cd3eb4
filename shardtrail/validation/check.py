"""The worker of ``validate``: reads the files of some units, hashes them, has the layout check them.

Imports nothing heavy. What is wrong with the content becomes a fault in the report; what is wrong with
the machine, or a file that changes while it is read, fails its unit by name.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from shardtrail.layouts import Layout
from shardtrail.samples import SourceFile, Unit
from shardtrail.stat_cache import Checked, Stat, is_racy, report_to_json, sums_to_json


@dataclass(frozen=True, slots=True)
class Batch:
    """Some units of one raw tree; their files carry the stats of the scan."""

    raw: Path
    layout: Layout
    units: tuple[Unit, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """A unit that could not be checked, and why."""

    unit: str
    error: str


def check_batch(batch: Batch) -> list[Checked | Failure]:
    """Check every unit of a batch; never raises for a single one."""
    results: list[Checked | Failure] = []
    for unit in batch.units:
        try:
            results.append(check_unit(batch.raw, batch.layout, unit))
        except OSError as error:
            results.append(Failure(unit.key, f"{error.strerror or error}: {error.filename or unit.key}"))
        except Exception as error:
            results.append(Failure(unit.key, f"{type(error).__name__}: {error}"))
    return results


def check_unit(raw: Path, layout: Layout, unit: Unit) -> Checked:
    """Read and check one unit.

    Raises:
        OSError: a file is absent, unreadable, or not the one that was scanned.
    """
    began = time.time_ns()
    contents = {file.path: read_scanned(raw, file) for file in unit.files}
    ended = time.time_ns()
    files = tuple(replace(file, md5=hashlib.md5(contents[file.path]).hexdigest()) for file in unit.files)
    report = layout.check(replace(unit, files=files), contents)
    return Checked(
        unit=unit.key,
        report=report_to_json(replace(report, files=files)),
        sums=sums_to_json(report.sums),
        files=tuple((file.path, file.stat, file.md5) for file in files if file.stat is not None),
        read_ns=(began, ended),
    )


def read_scanned(raw: Path, file: SourceFile) -> bytes:
    """The bytes of a raw file, with one open.

    Raises:
        OSError: it cannot be read, or its stat is not the scan's before and after reading.
    """
    try:
        # Without O_NONBLOCK a named pipe in place of a file would hang the worker.
        descriptor = os.open(os.path.join(raw, file.path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            before = stat_of(descriptor)
            # One byte more than expected: a file that has grown shows it without another call.
            content = os.read(descriptor, before[0] + 1)
            while 0 < len(content) < before[0] and (piece := os.read(descriptor, before[0] - len(content))):
                content += piece
            after = stat_of(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, file.path) from error
    if before != after or len(content) != after[0]:
        raise OSError(0, "the file changed while it was read; run again", file.path)
    if file.stat is not None and file.stat != after:
        raise OSError(0, "the file changed since the raw tree was scanned; run again", file.path)
    return content


def stat_of(descriptor: int) -> Stat:
    """``(size, mtime_ns, ctime_ns, inode)`` of an open file."""
    stat = os.fstat(descriptor)
    inode = (stat.st_ino + 2**63) % 2**64 - 2**63  # as the scan keeps it: 64 bits, signed
    return (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, inode)


@dataclass(frozen=True, slots=True)
class Hashed:
    """The md5 of one raw file, the stat it had, and whether that stat vouches for it later (``is_racy``)."""

    path: str
    stat: Stat
    md5: str
    racy: bool


def hash_batch(batch: tuple[Path, tuple[SourceFile, ...]]) -> list[Hashed | Failure]:
    """md5 of every file of a batch, ``(raw root, files)``; never raises for a single one."""
    raw, files = batch
    results: list[Hashed | Failure] = []
    for file in files:
        began = time.time_ns()
        try:
            content = read_scanned(raw, file)
        except OSError as error:
            results.append(Failure(file.path, error.strerror or str(error)))
            continue
        assert file.stat is not None
        racy = is_racy(file.stat, began, time.time_ns())
        results.append(Hashed(file.path, file.stat, hashlib.md5(content).hexdigest(), racy))
    return results
