"""What was learnt from raw files whose size, times and inode have not changed since: evidence, never output.

    with StatCache(folder.stat_cache, say=progress.say) as cache:
        todo = cache.outdated(signatures)
        cache.save(results)

Losing the file costs reading the raw files again and nothing else. It holds JSON only.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from shardtrail.errors import PipelineError
from shardtrail.packed import columns, pack_files
from shardtrail.samples import BandSums, Finding, Report, Unit

GRAIN_NS = 2_000_000_000
"""The coarsest clock that file systems in use stamp files with (FAT: 2 s)."""

_FORMAT = 2
_COMMIT_SECONDS = 2.0
_BATCH = 500  # below SQLite's smallest limit on bound variables

_TABLES = """
CREATE TABLE IF NOT EXISTS files (
    path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL,
    inode INTEGER NOT NULL, md5 TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS units (
    key TEXT PRIMARY KEY, signature TEXT NOT NULL, report TEXT NOT NULL, sums TEXT NOT NULL,
    checksum TEXT NOT NULL
);
"""

Stat = tuple[int, int, int, int]
"""``(size, mtime_ns, ctime_ns, inode)``."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Checked:
    """One unit's check as it comes from a worker and goes into the cache.

    Attributes:
        unit: the unit's key.
        report: JSON of its ``Report`` without sums.
        sums: JSON of its sums by band.
        files: ``(path, stat, md5)`` of every file read.
        read_ns: when reading began and ended (clock of the worker's host).
    """

    unit: str
    report: str
    sums: str
    files: tuple[tuple[str, Stat, str], ...]
    read_ns: tuple[int, int]


def is_racy(stat: Stat, began_ns: int, ended_ns: int) -> bool:
    """Whether a file could have changed after it was read and yet show the same stat (git's rule).

    A time stamp within the clock's grain of the reading does not tell a later change of the file apart.
    """
    return any(began_ns - GRAIN_NS <= stamp <= ended_ns + GRAIN_NS for stamp in stat[1:3])


def signature(unit: Unit, rules: str, stats: bytes) -> str:
    """What a unit's check depends on, as far as file stats show it: hex digest.

    Args:
        rules: names the layout, the version of its checks and their options; see ``check_rules``.
        stats: [file, 4] int64, little-endian: the ``Stat`` of each of its files.
    """
    roles, paths, _, _ = columns(unit.files)
    text = "\0".join((rules, unit.kind, *roles, *paths, ""))
    return hashlib.blake2b(text.encode() + stats, digest_size=16).hexdigest()


def check_rules(layout: Any) -> str:
    """The layout's name, check version and, where it has any, the options that decide its checks."""
    options = getattr(layout, "check_options", {})
    return json.dumps([layout.name, layout.check_version, options], sort_keys=True)


class StatCache:
    """The cache's file, open. A damaged or foreign one is thrown away, with a line said.

    Raises:
        PipelineError: it cannot be read or written, as on a full disk; a ``with`` block raises it at its end.
    """

    def __init__(self, path: Path, say: Callable[[str], None] = lambda line: None) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._database = self._open()
        except sqlite3.OperationalError as error:
            raise _unusable(path, error) from error
        except sqlite3.DatabaseError as error:
            say(f"{path.name} is damaged or foreign ({error}): it is made anew and all raw files are read again")
            discard(path)
            self._database = self._open()
        self._committed = time.monotonic()

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=60, isolation_level=None)
        try:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if version != _FORMAT and (version or tables):
                raise sqlite3.DatabaseError(f"format {version}, expected {_FORMAT}")
            database.execute("PRAGMA journal_mode = WAL")
            # A power cut may lose the last commits; they are only evidence.
            database.execute("PRAGMA synchronous = NORMAL")
            database.executescript(_TABLES)
            database.execute(f"PRAGMA user_version = {_FORMAT}")
        except sqlite3.DatabaseError:
            database.close()
            raise
        return database

    def __enter__(self) -> StatCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except sqlite3.OperationalError as failed:
            error = error or failed
        if isinstance(error, sqlite3.OperationalError):
            raise _unusable(self._path, error) from error

    def close(self) -> None:
        """Commit what was saved and close."""
        try:
            self.commit()
        finally:
            self._database.close()

    def commit(self) -> None:
        """Make everything saved so far last."""
        if self._database.in_transaction:
            self._database.execute("COMMIT")
        self._committed = time.monotonic()

    def outdated(self, signatures: Mapping[str, str]) -> list[str]:
        """Keys of the units that the cache does not know with this signature, in the given order."""
        known: set[str] = set()
        for keys in batched(signatures, _BATCH):
            rows = self._select("SELECT key, signature FROM units WHERE key IN ({})", keys)
            known.update(key for key, stored in rows if stored == signatures[key])
        return [key for key in signatures if key not in known]

    def save(self, results: Iterable[Checked], signatures: Mapping[str, str]) -> None:
        """Keep what workers found; committed every few seconds, so that a kill loses little.

        A unit with a racy file is kept for this run but has no signature, so that the next run reads it again.
        """
        self._begin()
        for checked in results:
            racy = {path for path, stat, _ in checked.files if is_racy(stat, *checked.read_ns)}
            row = (checked.unit, "" if racy else signatures[checked.unit], checked.report, checked.sums)
            self._database.execute("INSERT OR REPLACE INTO units VALUES (?, ?, ?, ?, ?)", (*row, _checksum(row)))
            self._database.executemany(
                "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)",
                [(path, *stat, md5) for path, stat, md5 in checked.files if path not in racy],
            )
            self._database.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in racy])
        if time.monotonic() - self._committed > _COMMIT_SECONDS:
            self.commit()

    def reports(self, units: Iterable[Unit]) -> Iterator[Report]:
        """The reports of these units, in their order, without sums; their files are packed.

        Raises:
            sqlite3.DatabaseError: a row is not as it was written.
        """
        for batch in batched(units, _BATCH):
            rows = {row[0]: row for row in self._units([unit.key for unit in batch])}
            for unit in batch:
                yield report_from_json(unit, json.loads(rows[unit.key][2]))

    def sums(self, keys: Iterable[str]) -> Iterator[dict[str, BandSums]]:
        """The sums by band of these units, whose reports were read just now, in any order."""
        for batch in batched(keys, _BATCH):
            for (sums,) in self._select("SELECT sums FROM units WHERE key IN ({})", batch):
                yield {band: BandSums(*values) for band, values in json.loads(sums).items()}

    def digests(self, paths: Iterable[str]) -> dict[str, tuple[Stat, str]]:
        """``path -> (stat, md5)`` of the files that are known."""
        known: dict[str, tuple[Stat, str]] = {}
        for batch in batched(paths, _BATCH):
            for path, *stat, md5 in self._select("SELECT * FROM files WHERE path IN ({})", batch):
                known[path] = ((stat[0], stat[1], stat[2], stat[3]), md5)
        return known

    def refresh(self, files: Iterable[tuple[str, Stat, str]]) -> None:
        """Keep ``(path, stat, md5)`` of files whose bytes were just compared; none may be racy (``is_racy``)."""
        self._begin()
        self._database.executemany(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", [(path, *stat, md5) for path, stat, md5 in files]
        )

    def _units(self, keys: Sequence[str]) -> list[tuple[Any, ...]]:
        rows = self._select("SELECT * FROM units WHERE key IN ({})", keys)
        for *row, checksum in rows:
            if checksum != _checksum(row):
                raise sqlite3.DatabaseError(f"the row of {row[0]} is not as it was written")
        return rows

    def _begin(self) -> None:
        if not self._database.in_transaction:
            self._database.execute("BEGIN")

    def _select(self, statement: str, values: Sequence[str]) -> list[tuple[Any, ...]]:
        return self._database.execute(statement.format(",".join("?" * len(values))), list(values)).fetchall()


def _unusable(path: Path, error: sqlite3.OperationalError) -> PipelineError:
    """Locked, no space, no permission: nothing is wrong with the content."""
    return PipelineError(f"{path} cannot be used: {error}. Where the disk is full, make room; then run again")


def _checksum(row: Sequence[Any]) -> str:
    """Of a row of ``units``, since SQLite guards none: parts that still parse may be damaged all the same."""
    return hashlib.blake2b(repr(tuple(row)).encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def discard(path: Path) -> None:
    """Delete a cache's files."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def report_to_json(report: Report) -> str:
    """A report as compact JSON, without its sums (``sums_to_json``) and what its unit already says."""
    value: dict[str, Any] = {"md5": [file.md5 for file in report.files]}
    if report.faults:
        value["faults"] = [[f.reason, f.path, f.detail] for f in report.faults]
    if report.warnings:
        value["warnings"] = [[f.reason, f.path, f.detail] for f in report.warnings]
    if report.facts:
        value["facts"] = dict(report.facts)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def report_from_json(unit: Unit, value: Mapping[str, Any]) -> Report:
    """The report that ``report_to_json`` wrote about this unit."""
    return Report(
        unit=unit.key,
        kind=unit.kind,
        files=pack_files(unit.files).with_md5s(value["md5"]),
        faults=tuple(Finding(*finding) for finding in value.get("faults", ())),
        warnings=tuple(Finding(*finding) for finding in value.get("warnings", ())),
        facts=value.get("facts", {}),
    )


def sums_to_json(sums: Mapping[str, BandSums]) -> str:
    """Sums by band as JSON; Python writes and reads floats without loss."""
    values = {band: [s.count, s.total, s.squares, s.low, s.high] for band, s in sums.items()}
    return json.dumps(values, separators=(",", ":"))


def batched(values: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of up to ``size`` consecutive values."""
    iterator = iter(values)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


__all__ = ["Checked", "Stat", "StatCache", "check_rules", "discard", "is_racy", "signature"]
