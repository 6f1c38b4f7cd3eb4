"""The files of a unit or sample in little memory: a sequence of ``SourceFile`` that makes each when it is asked for.

    unit = Unit(folder, "patch", pack_files(files))

Eight million files are some 300 MB this way and several GB as objects. Names cost little because a unit's files of one
folder mostly begin alike, and end like those of other units: a beginning for each folder, and endings shared by all.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from shardtrail.samples import SourceFile

_MOST_SHAPES = 1 << 12

_Shape = tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]
"""[file] roles, which of the beginnings paths have, and how they end."""

_shapes: dict[_Shape, _Shape] = {}


class PackedFiles(Sequence[SourceFile]):
    """Immutable; equal to any sequence of equal files. Made by ``pack_files``. It keeps no stats."""

    __slots__ = ("_beginnings", "_md5", "_shape", "_sizes")

    def __init__(self, beginnings: tuple[str, ...], shape: _Shape, sizes: bytes, md5: bytes) -> None:
        """``sizes`` are int64 of this machine; ``md5`` is empty or 16 bytes a file."""
        self._beginnings, self._shape, self._sizes, self._md5 = beginnings, shape, sizes, md5

    @property
    def roles(self) -> tuple[str, ...]:
        """[file] roles."""
        return self._shape[0]

    @property
    def paths(self) -> list[str]:
        """[file] relative POSIX paths."""
        beginnings, (_, which, endings) = self._beginnings, self._shape
        return [beginnings[number] + ending for number, ending in zip(which, endings, strict=True)]

    @property
    def sizes(self) -> list[int]:
        """[file] bytes."""
        return memoryview(self._sizes).cast("q").tolist()

    @property
    def md5s(self) -> list[str]:
        """[file] hex digests, or empty texts."""
        digits = self._md5.hex()
        return [digits[start : start + 32] for start in range(0, len(digits), 32)] or [""] * len(self)

    def with_md5s(self, md5s: Sequence[str]) -> PackedFiles:
        """The same files with these digests.

        Raises:
            ValueError: they are not as many as the files, or one is no md5.
        """
        md5 = bytes.fromhex("".join(md5s))
        if len(md5s) != len(self) or len(md5) != 16 * len(self):
            raise ValueError(f"{len(md5s)} digests of {len(md5)} bytes for {len(self)} files")
        return PackedFiles(self._beginnings, self._shape, self._sizes, md5)

    def __len__(self) -> int:
        return len(self._shape[0])

    def __iter__(self) -> Iterator[SourceFile]:
        return map(SourceFile, self.roles, self.paths, self.sizes, self.md5s)

    @overload
    def __getitem__(self, index: int) -> SourceFile: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SourceFile, ...]: ...
    def __getitem__(self, index: int | slice) -> SourceFile | tuple[SourceFile, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"PackedFiles({list(self)})"


def pack_files(files: Iterable[SourceFile]) -> PackedFiles:
    """These files, packed. Stats are left out, and so are digests unless every file has one."""
    if isinstance(files, PackedFiles):
        return files
    roles, paths, sizes, md5s = columns(list(files))
    beginnings, which = _beginnings(paths)
    endings = tuple(path[len(beginnings[number]) :] for path, number in zip(paths, which, strict=True))
    shape = (tuple(roles), which, endings)
    if len(_shapes) < _MOST_SHAPES:
        _shapes.setdefault(shape, shape)
    md5 = bytes.fromhex("".join(md5s)) if all(md5s) else b""
    return PackedFiles(beginnings, _shapes.get(shape, shape), array("q", sizes).tobytes(), md5)


def _beginnings(paths: Sequence[str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """What the paths of each folder begin with, and which of these each path has."""
    beginning = _common_prefix(min(paths, default=""), max(paths, default=""))
    if not any(path.find("/", len(beginning)) >= 0 for path in paths):
        return (beginning,), (0,) * len(paths)
    folders = [path.rpartition("/")[0] for path in paths]
    members: dict[str, list[str]] = {folder: [] for folder in folders}
    for folder, path in zip(folders, paths, strict=True):
        members[folder].append(path)
    numbers = {folder: number for number, folder in enumerate(members)}
    beginnings = tuple(_common_prefix(min(some), max(some)) for some in members.values())
    return beginnings, tuple(numbers[folder] for folder in folders)


def _common_prefix(first: str, last: str) -> str:
    """What the first and the last of some sorted texts, and so all of them, begin with."""
    low, high = 0, min(len(first), len(last))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == last[:middle] else (low, middle - 1)
    return first[:low]


def columns(files: Sequence[SourceFile]) -> tuple[Sequence[str], Sequence[str], Sequence[int], Sequence[str]]:
    """Roles, paths, sizes and md5s of files; of packed ones without making an object of each."""
    if isinstance(files, PackedFiles):
        return files.roles, files.paths, files.sizes, files.md5s
    return (
        [file.role for file in files],
        [file.path for file in files],
        [file.size for file in files],
        [file.md5 for file in files],
    )
