"""Remove what no build, reader or training of this folder needs any more.

Raw data, ``data/shards/``, models, exports and DVC's cache are never touched. What goes can be made again from the
raw files; a version that was recorded lies in DVC's cache as well, until ``dvc gc``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardtrail.errors import ConfigError
from shardtrail.folder import Folder
from shardtrail.job import Job
from shardtrail.sharding.lease import lease
from shardtrail.sharding.pin import forget_dead
from shardtrail.sharding.retire import is_ours
from shardtrail.sharding.stale import remove_stale, stale_files

KEEP_DAYS = 7.0
"""What anyone had to do with later than that stays, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Collected:
    """One kind of left-overs.

    Attributes:
        kind: ``retired shards``, ``receipts``, ``checkpoints`` or ``temporary files``.
        files, bytes: what was removed or, in a dry run, would be.
        freed: those of ``bytes`` that had no other link: the others are in DVC's cache, or a training reads them.
        kept: files that only their age spares.
        kept_bytes: size of those.
    """

    kind: str
    files: int
    bytes: int
    freed: int
    kept: int
    kept_bytes: int


def collect(job: Job, keep_days: float = KEEP_DAYS, dry_run: bool = False) -> tuple[Collected, ...]:
    """Remove the left-overs that nobody had to do with for ``keep_days`` days. One that is interrupted goes on later.

    However old they are, these stay: shards that plan or dataset.json name, receipts of shards that are there, and
    the checkpoint of the training that dataset and parameters ask for.

    Raises:
        ConfigError: ``keep_days`` is negative; plan or dataset.json is unreadable, so that nobody knows what is needed.
        LeaseHeld: another process builds in this folder.
    """
    if not keep_days >= 0:
        raise ConfigError(f"the days to keep must be 0 or more, not {keep_days:g}")
    folder, before = job.folder, time.time() - keep_days * 86400
    with contextlib.nullcontext() if dry_run else lease(folder, job.progress.say):
        names, fingerprints = _needed(folder)
        retired = _by_age(_retired(folder, names), before)
        left = [*_files(folder.shards), *(path for path in _files(folder.retired) if path not in retired.old)]
        receipts = _by_age(_receipts(folder, fingerprints, left), before)
        checkpoints = _by_age(_checkpoints(job), before)
        if not dry_run:
            forget_dead(folder)
        collected = (
            _count("retired shards", retired),
            _count("receipts", receipts),
            _count("checkpoints", checkpoints),
            _count("temporary files", _Ages(dict.fromkeys(stale_files(folder)), [])),
        )
        if not dry_run:
            remove_stale(folder)
            for path in (*retired.old, *receipts.old, *checkpoints.old):
                path.unlink()
        return collected


def _needed(folder: Folder) -> tuple[set[str], set[str]]:
    """Names and fingerprints of the shards that plan and dataset.json name. An unreadable file is not an empty one."""
    from shardtrail.dataset import load_dataset
    from shardtrail.sharding.entries import read_shards

    planned = read_shards(folder.plan) if folder.plan.exists() else []
    recorded = load_dataset(folder.dataset).shards if folder.dataset.exists() else ()
    names = {shard.name for shard in planned} | {Path(shard.file).stem for shard in recorded}
    return names, {shard.fingerprint for shard in planned} | {shard.fingerprint for shard in recorded}


def _retired(folder: Folder, needed: set[str]) -> list[list[Path]]:
    """Retired shards that nobody names, each before its index: a shard never stands without one."""
    shards: dict[str, list[Path]] = {}
    for path in sorted(_files(folder.retired), key=lambda path: path.suffix != ".tfrecord"):
        if is_ours(path) and path.stem not in needed:
            shards.setdefault(path.stem, []).append(path)
    return list(shards.values())


def _receipts(folder: Folder, needed: set[str], shards: Iterable[Path]) -> Iterator[list[Path]]:
    """Receipts of shards that nobody names and that are not among the files that stay."""
    there = {path.stem.rpartition("-")[2] for path in shards}  # a shard is named by the first digits of its fingerprint
    for path in _files(folder.receipts):
        if path.suffix == ".json" and path.stem not in needed and path.stem[:12] not in there:
            yield [path]


def _checkpoints(job: Job) -> Iterator[list[Path]]:
    """Checkpoints of other trainings than the one that would be run now, and the notes that those are finished."""
    from shardtrail.dataset import load_dataset
    from shardtrail.training.identity import run_key

    folder = job.folder
    files = list(_files(folder.checkpoints))
    if not files or not folder.dataset.exists():
        return
    current = run_key(load_dataset(folder.dataset), job.config.train).work
    for path in files:
        if path.suffix in (".npz", ".json") and not path.stem.startswith(f"{current}-"):
            yield [path]


def _files(place: Path) -> list[Path]:
    """The plain files of a folder; none where there is no such folder."""
    return [path for path in place.glob("[!.]*") if path.is_file() and not path.is_symlink()]


@dataclass(frozen=True, slots=True)
class _Ages:
    """Files to remove, in this order, and files that only their age spares."""

    old: dict[Path, None]
    young: list[Path]


def _by_age(groups: Iterable[Sequence[Path]], before: float) -> _Ages:
    """Part groups of files by when one of each was last touched; links made and cut count as touches."""
    ages = _Ages({}, [])
    for paths in groups:
        touched = max(max(stat.st_mtime, stat.st_ctime) for stat in (path.stat() for path in paths))
        if touched <= before:
            ages.old.update(dict.fromkeys(paths))
        else:
            ages.young.extend(paths)
    return ages


def _count(kind: str, ages: _Ages) -> Collected:
    stats = [path.stat() for path in ages.old]
    freed = sum(stat.st_size for stat in stats if stat.st_nlink == 1)
    kept_bytes = sum(path.stat().st_size for path in ages.young)
    return Collected(kind, len(stats), sum(stat.st_size for stat in stats), freed, len(ages.young), kept_bytes)
