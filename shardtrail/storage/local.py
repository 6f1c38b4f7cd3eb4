"""A tree on disk as columns: every file with its stats, in one walk, in the byte order of its path.

    tree = scan(job.raw)
    for path, size in zip(tree.paths, tree.size.tolist()):
        ...

Names are kept as runs of one folder, so that 8 million files take some 700 MiB and not several GiB.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, groupby
from pathlib import Path
from typing import overload

import numpy as np

from shardtrail.errors import PipelineError, SourceChanged, SourceError
from shardtrail.progress import Progress

_RUN = 1024  # names kept in one string: what a random access has to split
_BLOCK = 1 << 20
_VALUES = 1 << 14
_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


class Paths(Sequence[str]):
    """Relative POSIX paths in byte order; made on demand from the names of each folder."""

    def __init__(self) -> None:
        self._prefixes: list[str] = []
        self._names: list[str] = []
        self._starts = array("q")
        self._length = 0

    @classmethod
    def of(cls, paths: Iterable[str]) -> Paths:
        """These paths, which are in byte order."""
        result = cls()
        for prefix, members in groupby(paths, key=lambda path: path[: path.rfind("/") + 1]):
            result.add(prefix, [path[len(prefix) :] for path in members])
        return result

    def add(self, prefix: str, names: Sequence[str]) -> None:
        """Append the files ``names`` of the folder ``prefix`` (which ends with a slash, or is empty)."""
        for start in range(0, len(names), _RUN):
            run = names[start : start + _RUN]
            self.add_run(prefix, "\0".join(run), len(run))

    def add_run(self, prefix: str, names: str, files: int) -> None:
        """Append one of another's ``runs``, with the number of its files."""
        self._prefixes.append(prefix)
        self._names.append(names)
        self._starts.append(self._length)
        self._length += files

    @property
    def runs(self) -> Iterator[tuple[int, str, str]]:
        """Files that follow each other in one folder: index of the first, the folder, their names joined by NUL."""
        return zip(self._starts, self._prefixes, self._names, strict=True)

    def places(self, paths: Iterable[str]) -> np.ndarray:
        """Index of each path, int64; -1 where it is not among these. Fast where they come about in this order."""
        first = [prefix + names.partition("\0")[0] for prefix, names in zip(self._prefixes, self._names, strict=True)]
        found, near = array("q"), dict[str, int]()

        @lru_cache(maxsize=64)  # of image and mask side by side, each in a folder of its own, both runs stay at hand
        def in_run(run: int) -> dict[str, int]:
            prefix = self._prefixes[run]
            return {prefix + name: place for place, name in enumerate(self._names[run].split("\0"), self._starts[run])}

        for path in paths:
            place = near.get(path, -1)
            if place < 0 and first:
                near = in_run(max(bisect_right(first, path) - 1, 0))
                place = near.get(path, -1)
            found.append(place)
        return np.frombuffer(found, np.int64) if found else np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        for prefix, names in zip(self._prefixes, self._names, strict=True):
            for name in names.split("\0"):
                yield prefix + name

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._length))]
        place = index + self._length if index < 0 else index
        if not 0 <= place < self._length:
            raise IndexError(f"path {index} of {self._length}")
        run = bisect_right(self._starts, place) - 1
        return self._prefixes[run] + self._names[run].split("\0")[place - self._starts[run]]


@dataclass(frozen=True, eq=False)
class Scan:
    """Every file of a tree, sorted by path.

    Attributes:
        paths: [file] relative POSIX paths, unique.
        size: [file] int64, bytes.
        mtime_ns: [file] int64, nanoseconds since 1970 (so ``ctime_ns``).
        ctime_ns: [file] int64.
        inode: [file] int64 (the 64 bits of it).
        broken: relative path of what is no file and leads to none -> what it is: links to nothing or to a folder
            above them, named pipes, sockets, devices; in byte order.
    """

    paths: Paths
    size: np.ndarray
    mtime_ns: np.ndarray
    ctime_ns: np.ndarray
    inode: np.ndarray
    broken: Mapping[str, str]

    @property
    def bytes(self) -> int:
        """Sum of all sizes."""
        return int(self.size.sum())

    def listing(self) -> Iterator[tuple[str, int]]:
        """``(path, size)`` of every file, as ``Layout.group`` takes them."""
        return zip(self.paths, _numbers(self.size), strict=True)

    def stats(self) -> Iterator[tuple[int, int, int, int]]:
        """``(size, mtime_ns, ctime_ns, inode)`` of every file."""
        return zip(*map(_numbers, self.columns), strict=True)

    @property
    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """``size``, ``mtime_ns``, ``ctime_ns`` and ``inode``."""
        return self.size, self.mtime_ns, self.ctime_ns, self.inode

    @cached_property
    def digest(self) -> str:
        """sha256 over all paths and stats: equal only if no file was added, removed, replaced or touched."""
        return self._sha256(*self.columns)

    @cached_property
    def content_digest(self) -> str:
        """sha256 over paths and sizes alone: equal for a faithful copy of the tree."""
        return self._sha256(self.size)

    def _sha256(self, *columns: np.ndarray) -> str:
        result = hashlib.sha256()
        for _, prefix, names in self.paths.runs:
            paths = prefix + names.replace("\0", f"\0{prefix}")
            result.update(f"{paths}\0".encode())
        for column in columns:
            result.update(np.ascontiguousarray(column, dtype="<i8").data)
        result.update("\0".join(f"{path}\0{what}" for path, what in self.broken.items()).encode())
        return result.hexdigest()


def _numbers(column: np.ndarray) -> Iterator[int]:
    """A column's values as Python's, of which few exist at a time."""
    return chain.from_iterable(column[start : start + _VALUES].tolist() for start in range(0, len(column), _VALUES))


def scan(root: Path) -> Scan:
    """Walk a tree once. Links are followed, to files and to folders; a linked folder's files come under its name.

    A folder that holds the tree itself is left aside, however it is reached: in it every file would come again.

    Raises:
        SourceError: a folder is absent or cannot be listed, a file's stats cannot be read, or a name is not UTF-8.
        SourceChanged: something vanished while the tree was read.
    """
    if not root.is_dir():
        raise SourceError(f"{root} is no folder; give an existing one as `source` in params.yaml")
    paths, columns, broken = Paths(), tuple(array("q") for _ in range(4)), dict[str, str]()
    for prefix, files in _walk(root, broken):
        names, *stats = zip(*files, strict=True)
        paths.add(prefix, names)
        for column, values in zip(columns, stats, strict=True):
            column.extend(values)
    size, mtime, ctime, inode = (np.frombuffer(column, dtype=np.int64) for column in columns)
    return Scan(paths, size, mtime, ctime, inode, dict(sorted(broken.items())))


_Entry = tuple[str, int, int, int, int]  # name, size, mtime_ns, ctime_ns, inode; a folder's name ends with a slash
_Identity = tuple[int, int]  # device and inode


def _walk(root: Path, broken: dict[str, str]) -> Iterator[tuple[str, list[_Entry]]]:
    """Files as ``(prefix, entries of one folder)``, in the byte order of their whole paths.

    That order falls out of the walk when a folder sorts as its name and a slash among its siblings.
    """
    holders = _with_parents([os.fspath(root)])
    levels = [("", _entries(root, "", holders, broken))]
    while levels:
        prefix, entries = levels[-1]
        files = []
        while entries and not entries[-1][0].endswith("/"):
            files.append(entries.pop())
        if files:
            yield prefix, files
        if entries:
            below = prefix + entries.pop()[0]
            levels.append((below, _entries(root, below, holders, broken)))
        else:
            levels.pop()


def _entries(root: Path, prefix: str, holders: set[_Identity], broken: dict[str, str]) -> list[_Entry]:
    """What lies in one folder, in falling order (so that the next one is popped from the end).

    Args:
        root: of the tree.
        prefix: the folder, relative, with a slash at its end.
        holders: the root and the folders that hold it.
        broken: gets what is left aside.
    """
    folder = os.path.join(root, prefix)
    with _listing(folder) as found:
        return _kept(found, root, prefix, holders, broken)


@contextlib.contextmanager
def _listing(folder: str) -> Iterator[list[os.DirEntry[str]]]:
    """What lies in a folder, which stays open so that the kernel need not find it again for every file's stat."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(folder, error) from error
    try:
        try:
            with os.scandir(descriptor) as listing:
                found = list(listing)
        except OSError as error:
            raise _unreadable(folder, error) from error
        yield found
    finally:
        os.close(descriptor)


def _kept(
    found: Sequence[os.DirEntry[str]], root: Path, prefix: str, holders: set[_Identity], broken: dict[str, str]
) -> list[_Entry]:
    """See ``_entries``."""
    folder = os.path.join(root, prefix)
    inodes = {inode for _, inode in holders}
    above: set[_Identity] = set()
    result: list[_Entry] = []
    for entry in found:
        name = entry.name
        if not name.isascii():
            _check_utf8(folder, name)
        if entry.is_dir(follow_symlinks=False):
            # Reached through a link (and a second mount of the same disk), a real folder may hold the tree.
            if entry.inode() in inodes and _identity(entry.stat(follow_symlinks=False)) in holders:
                broken[prefix + name] = "a folder that holds the source itself"
            else:
                result.append((f"{name}/", 0, 0, 0, 0))
            continue
        try:
            stats = entry.stat()
        except OSError as error:
            if not entry.is_symlink() or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise _unreadable(folder + name, error) from error
            broken[prefix + name] = (
                "a link in a circle" if error.errno == errno.ELOOP else "a link that leads to no file"
            )
            continue
        if stat.S_ISREG(stats.st_mode):
            # An inode above 2**63 (some network file systems) wraps to a negative number: still an identity.
            inode = (stats.st_ino + 2**63) % 2**64 - 2**63
            result.append((name, stats.st_size, stats.st_mtime_ns, stats.st_ctime_ns, inode))
        elif stat.S_ISDIR(stats.st_mode):
            above = above or holders | _with_parents(_places(root, prefix))
            if _identity(stats) in above:
                broken[prefix + name] = "a link to a folder above it"
            else:
                result.append((f"{name}/", 0, 0, 0, 0))
        else:
            what = _SPECIAL.get(stat.S_IFMT(stats.st_mode), "no file")
            broken[prefix + name] = f"a link to {what}" if entry.is_symlink() else what
    result.sort(reverse=True)
    return result


def _identity(stats: os.stat_result) -> _Identity:
    return stats.st_dev, stats.st_ino


def _places(root: Path, prefix: str) -> list[str]:
    """The folders on the way from the root to the folder ``prefix``, as they were walked."""
    place = os.path.join(root, "")
    return [place] + [place := f"{place}{part}/" for part in prefix.split("/")[:-1]]


def _with_parents(folders: Sequence[str]) -> set[_Identity]:
    """The folders and, links resolved, all that hold them."""
    paths = {path for folder in folders for real in [Path(folder).resolve()] for path in (real, *real.parents)}
    return {_identity(path.stat()) for path in paths}


def _check_utf8(folder: str, name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise SourceError(
            f"{printable(os.path.join(folder, name))}: this name is not UTF-8, so no table can hold it; "
            "rename it (convmv -f latin1 -t utf8 renames whole trees)"
        ) from None


def printable(path: str) -> str:
    """A path as text: bytes that are not UTF-8 become ``\\xe9``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _unreadable(path: str, error: OSError) -> PipelineError:
    shown = printable(path).rstrip("/")
    if error.errno == errno.ENOENT:
        return SourceChanged(f"{shown} vanished while the tree was read; run again when nothing writes to it")
    return SourceError(f"{shown} cannot be read: {error.strerror}; nothing below it was taken for missing")


def remove_tree(root: Path) -> None:
    """Remove a folder and all in it. Unlike ``shutil.rmtree`` this does not recurse, so no depth is too much for it.

    Raises:
        OSError: something cannot be removed, or there is no such folder.
    """
    waiting = [os.fspath(root)]
    while waiting:
        below = []
        with os.scandir(waiting[-1]) as listing:
            for entry in listing:
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.path)
                else:
                    Path(entry.path).unlink()
        if below:
            waiting += below
        else:
            Path(waiting.pop()).rmdir()


def file_digest(path: Path, algorithm: str, progress: Progress) -> str:
    """A whole file's digest as ``algorithm:hex``; one progress bar over its bytes.

    Raises:
        SourceError: the file cannot be read.
    """
    result = hashlib.new(algorithm, usedforsecurity=False)
    try:
        with path.open("rb", buffering=0) as file:
            progress.start(f"checksum of {path.name}", path.stat().st_size, "bytes")
            while block := file.read(_BLOCK):
                result.update(block)
                progress.advance(len(block))
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    found = f"{algorithm}:{result.hexdigest()}"
    progress.finish(found)
    return found
