"""A tree on disk as columns: every file with its stats, in one walk, in the byte order of its path.

    tree = scan(job.raw)
    for path, size in zip(tree.paths, tree.size.tolist()):
        ...

Names are kept as runs of one folder, so that 8 million files take some 700 MiB and not several GiB.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import overload

import numpy as np

from shardtrail.errors import PipelineError, SourceChanged, SourceError
from shardtrail.progress import Progress

_RUN = 1024  # names kept in one string: what a random access has to split
_BLOCK = 1 << 20


class Paths(Sequence[str]):
    """Relative POSIX paths in byte order; made on demand from the names of each folder."""

    def __init__(self) -> None:
        self._prefixes: list[str] = []
        self._names: list[str] = []
        self._starts = array("q")
        self._length = 0

    def _add(self, prefix: str, names: Sequence[str]) -> None:
        for start in range(0, len(names), _RUN):
            run = names[start : start + _RUN]
            self._prefixes.append(prefix)
            self._names.append("\0".join(run))
            self._starts.append(self._length)
            self._length += len(run)

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
        broken: relative paths of what is no file and leads to none: links to nothing or back to a folder above
            them, sockets, devices.
    """

    paths: Sequence[str]
    size: np.ndarray
    mtime_ns: np.ndarray
    ctime_ns: np.ndarray
    inode: np.ndarray
    broken: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Sum of all sizes."""
        return int(self.size.sum())

    @cached_property
    def digest(self) -> str:
        """sha256 over all paths and stats: equal only if no file was added, removed, replaced or touched."""
        return self._sha256(self.size, self.mtime_ns, self.ctime_ns, self.inode)

    @cached_property
    def content_digest(self) -> str:
        """sha256 over paths and sizes alone: equal for a faithful copy of the tree."""
        return self._sha256(self.size)

    def _sha256(self, *columns: np.ndarray) -> str:
        result = hashlib.sha256()
        paths = iter(self.paths)
        while block := "".join(f"{path}\0" for path in islice(paths, 1 << 14)):
            result.update(block.encode())
        for column in columns:
            result.update(np.ascontiguousarray(column, dtype="<i8").data)
        result.update("\0".join(self.broken).encode())
        return result.hexdigest()


def scan(root: Path) -> Scan:
    """Walk a tree once. Links are followed, to files and to folders; a linked folder's files come under its name.

    Raises:
        SourceError: a folder is absent or cannot be listed, a file's stats cannot be read, or a name is not UTF-8.
        SourceChanged: something vanished while the tree was read.
    """
    if not root.is_dir():
        raise SourceError(f"{root} is no folder; give an existing one as `source` in params.yaml")
    paths, columns, broken = Paths(), tuple(array("q") for _ in range(4)), list[str]()
    for prefix, files in _walk(root, broken):
        names, *stats = zip(*files, strict=True)
        paths._add(prefix, names)
        for column, values in zip(columns, stats, strict=True):
            column.extend(values)
    size, mtime, ctime, inode = (np.frombuffer(column, dtype=np.int64) for column in columns)
    return Scan(paths, size, mtime, ctime, inode, tuple(sorted(broken)))


_Entry = tuple[str, int, int, int, int]  # name, size, mtime_ns, ctime_ns, inode; a folder's name ends with a slash


def _walk(root: Path, broken: list[str]) -> Iterator[tuple[str, list[_Entry]]]:
    """Files as ``(prefix, entries of one folder)``, in the byte order of their whole paths.

    That order falls out of the walk when a folder sorts as its name and a slash among its siblings.
    """
    levels = [("", _entries(root, "", broken))]
    while levels:
        prefix, entries = levels[-1]
        files = []
        while entries and not entries[-1][0].endswith("/"):
            files.append(entries.pop())
        if files:
            yield prefix, files
        if entries:
            below = prefix + entries.pop()[0]
            levels.append((below, _entries(root, below, broken)))
        else:
            levels.pop()


def _entries(root: Path, prefix: str, broken: list[str]) -> list[_Entry]:
    """What lies in one folder, in falling order (so that the next one is popped from the end)."""
    folder = os.path.join(root, prefix)
    try:
        with os.scandir(folder) as listing:
            found = list(listing)
    except OSError as error:
        raise _unreadable(folder, error) from error
    result: list[_Entry] = []
    for entry in found:
        name = entry.name
        if not name.isascii():
            _check_utf8(folder, name)
        if entry.is_dir(follow_symlinks=False):
            result.append((f"{name}/", 0, 0, 0, 0))
            continue
        try:
            stats = entry.stat()
        except OSError as error:
            if not entry.is_symlink() or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise _unreadable(entry.path, error) from error
            broken.append(prefix + name)
            continue
        if stat.S_ISREG(stats.st_mode):
            # An inode above 2**63 (some network file systems) wraps to a negative number: still an identity.
            inode = (stats.st_ino + 2**63) % 2**64 - 2**63
            result.append((name, stats.st_size, stats.st_mtime_ns, stats.st_ctime_ns, inode))
        elif stat.S_ISDIR(stats.st_mode) and not _is_above(root, prefix, stats):
            result.append((f"{name}/", 0, 0, 0, 0))
        else:
            broken.append(prefix + name)
    result.sort(reverse=True)
    return result


def _is_above(root: Path, prefix: str, target: os.stat_result) -> bool:
    """Whether a link in folder ``prefix`` leads to that folder or one above it: following it would never end."""
    place = os.path.join(root, "")
    above = [place] + [place := f"{place}{part}/" for part in prefix.split("/")[:-1]]
    return any(os.path.samestat(target, Path(folder).stat()) for folder in above)


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
