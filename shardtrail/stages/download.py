"""``download``: the raw tree is there, and ``data/inventory.parquet`` lists it."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa

from shardtrail.errors import ConfigError, SourceChanged, SourceError, StageFailed
from shardtrail.files import file_md5
from shardtrail.job import Job
from shardtrail.manifest import read_table, rows_digest, write_table
from shardtrail.samples import SourceFile
from shardtrail.stages.recorded import Recorded, recorded_table
from shardtrail.stages.scan_state import STATS, inventory_table, listed, load_scan, read_state, save_scan
from shardtrail.stages.validate import last_scan
from shardtrail.stat_cache import StatCache, batched
from shardtrail.storage.local import Scan
from shardtrail.storage.source import raw_tree
from shardtrail.validation.check import Failure, Hashed, hash_batch

_NAMED = 20
_FILES_A_BATCH = 512


@dataclass(frozen=True, slots=True)
class Inventory:
    """The raw tree as ``data/inventory.parquet`` lists it.

    Attributes:
        files: number of files.
        bytes: sum of their sizes.
        digest: of the table's rows.
        added: files that the last scan did not have.
        changed: files whose size, times or inode are not the last scan's.
        removed: files that the last scan had.
    """

    files: int
    bytes: int
    digest: str
    added: int
    changed: int
    removed: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Paths in which two listings of a tree differ, each in the listings' order."""

    added: Sequence[str]
    removed: Sequence[str]
    changed: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def download(job: Job) -> Inventory:
    """Fetch what is not there yet, list the raw tree, say what is new in it.

    Raises:
        SourceError: the source is absent, empty or cannot be read.
        SourceChanged: under ``job.reproduce``, the raw tree is not the recorded one.
    """
    tree = raw_tree(job)
    job.progress.start("download", len(tree.paths), "files")
    if not len(tree.paths):
        raise SourceError(f"{job.raw} holds no files; check `source` in params.yaml")
    state = read_state(job.folder)
    if state is not None and (state.digest, state.inventory_md5) != (tree.digest, file_md5(job.folder.inventory)):
        state = None
    if state is not None and not job.reproduce:
        digest, written, difference = state.inventory, False, Difference((), (), ())
    else:
        difference = _since_last_time(job, tree)
        digest, written = _write_inventory(job, tree)
        if state is None:
            save_scan(job.folder, tree, digest)
    for path, what in islice(tree.broken.items(), _NAMED):
        job.progress.say(f"left aside: {path} ({what})")
    counts = f"{len(difference.added)} added, {len(difference.changed)} changed, {len(difference.removed)} removed"
    place = job.folder.relative(job.folder.inventory)
    job.progress.advance(len(tree.paths))
    job.progress.finish(
        f"{len(tree.paths)} files, {tree.bytes} bytes; {counts} -> {place}{'' if written else ' (unchanged)'}"
    )
    return Inventory(
        files=len(tree.paths),
        bytes=tree.bytes,
        digest=digest,
        added=len(difference.added),
        changed=len(difference.changed),
        removed=len(difference.removed),
    )


def _write_inventory(job: Job, tree: Scan) -> tuple[str, bool]:
    """The inventory's digest, and whether it was written; under ``job.reproduce`` it may only be the recorded one."""
    table = inventory_table(tree)
    digest = rows_digest(table)
    if job.reproduce:
        _refuse_news(job, tree, table, digest)
        _refuse_other_bytes(job, tree)
    return digest, write_table(job.folder.inventory, table)


def compare(old: Scan, new: Scan, stats: Sequence[str]) -> Difference:
    """Compare two scans by paths and some stats. Runs of files that both have are compared at once, others by path."""
    known = {(folder, names): start for start, folder, names in old.paths.runs}
    was, now, fresh = array("q"), array("q"), dict[str, int]()
    for start, folder, names in new.paths.runs:
        files = names.count("\0") + 1
        before = known.pop((folder, names), None)
        if before is None:
            fresh |= zip(map(folder.__add__, names.split("\0")), range(start, start + files), strict=True)
        else:
            was.extend(range(before, before + files))
            now.extend(range(start, start + files))
    gone = dict[str, int]()
    for (folder, names), start in known.items():
        gone |= zip(map(folder.__add__, names.split("\0")), itertools.count(start))
    both = [path for path in fresh if path in gone]
    was.extend(map(gone.__getitem__, both))
    now.extend(map(fresh.__getitem__, both))
    places_now = np.frombuffer(now, np.int64)
    changed = places_now[_differ(old, np.frombuffer(was, np.int64), new, places_now, stats)]
    return Difference(
        added=sorted(fresh.keys() - gone.keys()),
        removed=sorted(gone.keys() - fresh.keys()),
        changed=[new.paths[place] for place in np.sort(changed).tolist()],
    )


def _differ(old: Scan, was: np.ndarray, new: Scan, now: np.ndarray, stats: Sequence[str]) -> np.ndarray:
    """[pair] whether the files at these places have other stats."""
    differ = np.zeros(len(now), bool)
    for name in stats:
        differ |= getattr(old, name)[was] != getattr(new, name)[now]
    return differ


def _since_last_time(job: Job, tree: Scan) -> Difference:
    state = read_state(job.folder)
    if state is not None and state.digest == tree.digest:
        return Difference((), (), ())
    before = load_scan(job.folder)
    if before is not None:
        return compare(before, tree, STATS)
    try:
        recorded = read_table(job.folder.inventory)
    except ConfigError:
        return Difference(tree.paths, (), ())
    return compare(listed(recorded), tree, ("size",))


def _refuse_news(job: Job, tree: Scan, table: pa.Table, digest: str) -> None:
    """Under ``dvc repro``, only the recorded tree will do."""
    recorded = recorded_table(job.folder, "download", job.folder.inventory)
    if recorded is None and job.folder.inventory.exists() and not (job.folder.root / "dvc.lock").exists():
        recorded = Recorded("", job.folder.inventory)
    if recorded is None or recorded.holds(table, digest):
        return
    before = recorded.read()
    if before is None:
        raise SourceChanged(
            "the raw tree differs from the inventory recorded in dvc.lock, which is not at hand to name the "
            "differences (dvc pull fetches it). Take the raw tree in as it is: shardtrail run"
        )
    raise SourceChanged(_describe(compare(listed(before), tree, ("size",)), "the recorded inventory"))


def _refuse_other_bytes(job: Job, tree: Scan) -> None:
    """Under ``dvc repro``, a file of the same size but another stat must have the bytes that were validated."""
    full = job.full
    if not full and last_scan(job.folder) == tree.digest:
        return
    validated = _validated_digests(job) if full else {}
    changed: list[str] = []
    failures: list[tuple[str, str]] = []
    with StatCache(job.folder.stat_cache, say=job.progress.say) as cache:
        for some in batched(zip(tree.paths, tree.stats(), strict=True), 64 * _FILES_A_BATCH):
            known = cache.digests(path for path, _ in some)
            md5 = {path: found for path, (_, found) in known.items()}
            md5 |= {path: validated[path] for path, _ in some if path in validated}
            doubtful = [
                SourceFile("", path, stat[0], stat=stat)
                for path, stat in some
                if path in md5 and (full or known[path][0] != stat)
            ]
            hashed = list(_hash(job, doubtful))
            failures += [(result.unit, result.error) for result in hashed if isinstance(result, Failure)]
            good = [result for result in hashed if isinstance(result, Hashed)]
            changed += [result.path for result in good if result.md5 != md5[result.path]]
            cache.refresh(
                (result.path, result.stat, result.md5)
                for result in good
                if result.md5 == md5[result.path] and not result.racy
            )
    if failures:
        raise StageFailed("download", failures)
    if changed:
        raise SourceChanged(_describe(Difference((), (), sorted(changed)), "the bytes that were validated"))


def _validated_digests(job: Job) -> dict[str, str]:
    """``path -> md5`` of the files in the manifest, if there is one."""
    if not job.folder.manifest.exists():
        return {}
    files = read_table(job.folder.manifest, ["files"])["files"].combine_chunks().flatten()
    return dict(zip(files.field("path").to_pylist(), files.field("md5").to_pylist(), strict=True))


def _hash(job: Job, files: Sequence[SourceFile]) -> Iterable[Hashed | Failure]:
    batches = [(f"files from {some[0].path}", (job.raw, tuple(some))) for some in batched(files, _FILES_A_BATCH)]
    for outcome in job.mapper("download", hash_batch, batches):
        if outcome.value is None:
            yield Failure(outcome.label, outcome.error)
        else:
            yield from outcome.value


def _describe(difference: Difference, other: str) -> str:
    named = [
        *(f"  added: {path}" for path in difference.added),
        *(f"  removed: {path}" for path in difference.removed),
        *(f"  changed: {path}" for path in difference.changed),
    ]
    more = [f"  and {len(named) - _NAMED} more"] if len(named) > _NAMED else []
    return "\n".join(
        [f"the raw tree differs from {other}:", *named[:_NAMED], *more, "Take it in as it is: shardtrail run"]
    )
