"""Where the raw tree comes from: a folder used where it lies, or an archive, fetched if need be and unpacked.

    tree = raw_tree(job)
    for path in tree.paths:
        ...

An unpacked tree is taken for whole only by its record in ``.shardtrail/source.json``, which is written last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shardtrail.errors import ConfigError, LeaseHeld, SourceChanged, SourceError
from shardtrail.files import sync_folder, to_json, write_atomic
from shardtrail.folder import Folder

if TYPE_CHECKING:
    from shardtrail.job import Job
    from shardtrail.storage.http import Origin
    from shardtrail.storage.local import Scan

ARCHIVE_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz", ".zip")

Kind = Literal["folder", "archive", "http", "s3"]


def kind(source: str) -> Kind:
    """What ``source`` names, by its text alone.

    Raises:
        ConfigError: an address of a kind that is not known, such as ``ftp://``.
    """
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", source)
    if scheme is None:
        return "archive" if source.lower().endswith(ARCHIVE_ENDINGS) else "folder"
    match scheme[1].lower():
        case "http" | "https":
            return "http"
        case "s3":
            return "s3"
    raise ConfigError(f"source: {scheme[1]}:// is not supported; give a folder, an archive or an http(s):// address")


def is_archive(source: str) -> bool:
    """Whether ``source`` is an archive, local or behind an http(s) address, by its text alone."""
    return kind(source) in ("archive", "http")


def raw_tree(job: Job) -> Scan:
    """See to it that the raw tree lies at ``job.raw`` (``materialise``), and scan it.

    An unpacked tree that someone has added to or taken from is unpacked anew: only the archive may change it.

    Raises:
        SourceError: as ``materialise`` and ``scan``.
    """
    from shardtrail.storage.local import scan

    materialise(job)
    tree = scan(job.raw)
    if not is_archive(job.config.source):
        return tree
    record = _load(job)
    if record and record.tree and record.tree != tree.content_digest:
        job.progress.say(f"{job.folder.relative(job.raw)} is not as it was unpacked; unpacking it anew")
        _record(job.folder).unlink()
        materialise(job)
        tree, record = scan(job.raw), _load(job)
    if record and not record.tree:
        _save(job, dataclasses.replace(record, tree=tree.content_digest))
    return tree


def materialise(job: Job) -> None:
    """See to it that the raw tree lies at ``job.raw``, whole. Without news nothing is opened and nothing fetched.

    A changed archive is unpacked beside the tree it then replaces, so files that left it go. Under
    ``job.reproduce`` it is refused, and no server is asked for news.

    Raises:
        ConfigError: a source of a kind that is not supported.
        SourceError: absent, empty, unreadable, refused by its server, damaged, or unsafe to unpack.
        SourceChanged: the archive is another than the one the tree came from, under ``job.reproduce``.
        StoreUnavailable: the server does not answer.
        LeaseHeld: another process unpacks in this working folder.
    """
    match kind(job.config.source):
        case "s3":
            raise ConfigError(
                "source: s3:// is not supported yet; copy the objects to a folder (aws s3 sync, rclone copy) and give "
                "that folder, or give the https:// address of an archive"
            )
        case "folder":
            _check_folder(job)
        case "archive":
            with _alone(job.folder):
                _from_file(job)
        case "http":
            with _alone(job.folder):
                _from_http(job)


def _check_folder(job: Job) -> None:
    raw = job.raw
    if not raw.exists():
        raise SourceError(f"source: {raw} does not exist; correct `source` in params.yaml")
    if not raw.is_dir():
        raise SourceError(
            f"source: {raw} is neither a folder nor an archive (known endings: {' '.join(ARCHIVE_ENDINGS)})"
        )
    if job.folder.data.is_relative_to(raw):
        raise ConfigError(
            f"source: {raw} holds this working folder's own outputs ({job.folder.data}); put the raw data in a folder "
            "of their own, beside or below the working folder"
        )
    try:
        empty = next(raw.iterdir(), None) is None
    except OSError as error:
        raise SourceError(f"source: {raw} cannot be listed: {error.strerror}") from error
    if empty:
        raise SourceError(f"source: {raw} is empty; is its disk mounted, is the path right?")


@dataclass(frozen=True)
class _Unpacked:
    """Which archive the tree at ``job.raw`` came from.

    Attributes:
        source: sha256 of the source's text: an address may hold a secret.
        digest: of the archive, ``algorithm:hex``.
        size: bytes of the archive.
        mtime_ns: of the archive when it was last looked into (so ``ctime_ns`` and ``inode``).
        origin: what its server said of it.
        tree: paths and sizes of the tree (``Scan.content_digest``); empty until it was scanned.
    """

    source: str
    digest: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    origin: Origin | None = None
    tree: str = ""

    def is_of(self, archive: os.stat_result) -> bool:
        return (self.size, self.mtime_ns, self.ctime_ns, self.inode) == _stats_of(archive)


def _stats_of(archive: os.stat_result) -> tuple[int, int, int, int]:
    """What tells that a file was neither written to nor replaced."""
    return archive.st_size, archive.st_mtime_ns, archive.st_ctime_ns, archive.st_ino


def _from_file(job: Job) -> None:
    archive = (job.folder.root / Path(job.config.source).expanduser()).resolve()
    if archive.is_dir():
        raise SourceError(
            f"source: {archive} is a folder although its name ends as an archive's; write it with a slash at the end: "
            f"source: {job.config.source}/"
        )
    if not archive.exists():
        if job.reproduce and _load(job):
            return
        kept = f", or go on with what was unpacked: source: {job.folder.relative(job.raw)}" if job.raw.exists() else ""
        raise SourceError(f"source: {archive} does not exist; put it back, correct `source` in params.yaml{kept}")
    _take(job, archive)


def _from_http(job: Job) -> None:
    from shardtrail.storage import http

    source, checksum = job.config.source, job.config.download.checksum.lower()
    if record := _load(job):
        if job.reproduce or (checksum and checksum == record.digest):
            return
        if not checksum and record.origin and not http.changed(source, record.origin):
            return
    target = job.folder.downloads / http.file_name(source)
    http.fetch(source, target, checksum=checksum, progress=job.progress)
    _take(job, target, digest=checksum, origin=http.origin(target))


def _take(job: Job, archive: Path, digest: str = "", origin: Origin | None = None) -> None:
    """Make the raw tree that of ``archive``. ``digest``: its digest, where that was just computed.

    An archive of the recorded stats is not read, unless under ``job.full``.
    """
    from shardtrail.storage.local import file_digest

    checksum = job.config.download.checksum.lower()
    stats, record = archive.stat(), _load(job)
    trusted = record is not None and record.is_of(stats) and not job.full
    if record and trusted and checksum in ("", record.digest):
        return
    recorded = _algorithm(record.digest) if record else "sha256"
    digest = digest or file_digest(archive, _algorithm(checksum) or recorded, job.progress)
    if checksum and digest != checksum:
        raise SourceError(
            f"{archive}: its checksum is {digest}, but params.yaml (download.checksum) expects {checksum}; "
            "fetch the archive again, or correct the checksum"
        )
    if record and not trusted:
        same = digest if _algorithm(digest) == recorded else file_digest(archive, recorded, job.progress)
        trusted = same == record.digest
    size, mtime_ns, ctime_ns, inode = _stats_of(stats)
    if record and trusted:
        now = dataclasses.replace(record, digest=digest, mtime_ns=mtime_ns, ctime_ns=ctime_ns, inode=inode)
        _save(job, dataclasses.replace(now, origin=origin))
        return
    if record and job.reproduce:
        raise SourceChanged(
            f"{archive} is no longer the archive that {job.folder.relative(job.raw)} came from "
            f"({record.digest} then, {digest} now); take the change in: shardtrail run"
        )
    _replace_tree(job, archive, stats)
    _save(job, _Unpacked(_key(job), digest, size, mtime_ns, ctime_ns, inode, origin))


def _algorithm(digest: str) -> str:
    """The first half of ``algorithm:hex``; empty if there is no digest."""
    return digest.partition(":")[0]


def _replace_tree(job: Job, archive: Path, stats: os.stat_result) -> None:
    """Unpack beside the present tree, then put the new one in its place. Killed anywhere, it starts over."""
    from shardtrail.storage.archive import unpack
    from shardtrail.storage.local import remove_tree

    tree = job.raw
    fresh, old = (tree.with_name(f".{tree.name}.{suffix}.tmp") for suffix in ("new", "old"))
    for leftover in (fresh, old):
        with contextlib.suppress(OSError):
            remove_tree(leftover)
    unpack(archive, fresh, job.progress)
    if _stats_of(archive.stat()) != _stats_of(stats):
        remove_tree(fresh)
        raise SourceChanged(f"{archive} was written to while it was unpacked; run again when it is complete")
    os.sync()  # the record must not outlive, in a power cut, the files that it vouches for
    _record(job.folder).unlink(missing_ok=True)
    if tree.exists():
        tree.rename(old)
    fresh.rename(tree)
    sync_folder(tree.parent)
    with contextlib.suppress(OSError):
        remove_tree(old)


def _record(folder: Folder) -> Path:
    return folder.state / "source.json"


def _key(job: Job) -> str:
    return hashlib.sha256(job.config.source.encode()).hexdigest()


def _save(job: Job, record: _Unpacked) -> None:
    write_atomic(_record(job.folder), to_json(dataclasses.asdict(record)))


def _load(job: Job) -> _Unpacked | None:
    """The record of the tree at ``job.raw``; None where there is none of this source, or no tree."""
    from shardtrail.storage.http import Origin

    try:
        values: dict[str, Any] = json.loads(_record(job.folder).read_bytes())
        origin = values.pop("origin")
        record = _Unpacked(**values, origin=Origin(**origin) if origin else None)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return record if record.source == _key(job) and job.raw.is_dir() else None


@contextlib.contextmanager
def _alone(folder: Folder) -> Iterator[None]:
    """Keep a second process from unpacking into the same working folder; a dead one's lock goes with it."""
    folder.state.mkdir(parents=True, exist_ok=True)
    with (folder.state / "source.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LeaseHeld(
                f"another process fetches or unpacks the source of {folder.root}; wait for it, or end it"
            ) from None
        yield
