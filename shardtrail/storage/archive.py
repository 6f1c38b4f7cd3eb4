"""Unpack a tar (plain, gzip, bzip2, xz, zstd) or zip archive as a stream, so that nothing can leave the target folder.

What counts is the content, not the name: the kind is told by the first bytes. A zip's own list of contents is held in
memory (about half a KiB a member); for many millions of files a tar is the better archive.
"""

from __future__ import annotations

import bz2
import calendar
import errno
import gzip
import lzma
import math
import os
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, BinaryIO, cast

import zstandard

from shardtrail.errors import PipelineError, SourceError
from shardtrail.progress import Progress
from shardtrail.storage.local import printable, remove_tree

_BLOCK = 1 << 20
_RESERVE = 64 << 20  # bytes that unpacking leaves free on the disk
_CODEC_ERRORS = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
# What the standard library's parsers let through, for bytes that no archiver writes.
_PARSER_ERRORS = (ValueError, ArithmeticError, LookupError, RuntimeError, struct.error)
_DEEPEST, _LONGEST_NAME = 100, 1024  # folders and bytes of a member's path: what every program can still walk and open
_LONGEST_HEADER = 1 << 20  # bytes of a tar's header for a long name or for attributes: these are read as a whole


def unpack(archive: Path, target: Path, progress: Progress) -> None:
    """Unpack ``archive`` into the new folder ``target``: all of it, or nothing.

    Files get mode 644 and folders 755 (less the umask), whatever the archive says, and the archive's times of files.
    Symbolic links are kept if they are relative and lead to something inside; hard links if they lead to a file
    that came before. No member is written through a link. A second member of the same name is an error.

    Args:
        archive: the file.
        target: must not exist, or be an empty folder.
        progress: one bar over the bytes of the archive (tar) or of its files (zip).

    Raises:
        SourceError: damaged, cut short, encrypted, of unknown kind, without any file, with a member that is unsafe or
            cannot be written, or larger than the free disk; the text names archive and member. ``target`` is gone then.
    """
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise SourceError(f"{target} is not empty; {archive} is unpacked into a new folder only")
    try:
        tree = _Tree(archive, target)
        if _first_bytes(archive)[:4] in (b"PK\3\4", b"PK\5\6"):
            _unpack_zip(archive, tree, progress)
        else:
            _unpack_tar(archive, tree, progress)
        tree.finish()
        progress.finish(f"{tree.files} files in {target}")
    except BaseException:
        with suppress(OSError):
            remove_tree(target)
        raise


class _Tree:
    """The target folder, with what may be put into it."""

    def __init__(self, archive: Path, root: Path) -> None:
        self._archive = archive
        self._root = root
        self._folders = {""}  # made by us, so none of them is a link
        self._links: list[tuple[str, str]] = []
        self._unchecked = self._room = 0
        self.files = 0

    def add_folder(self, name: str) -> None:
        self._make_folder(self._safe(name), name)

    def add_file(self, name: str, content: IO[bytes], size: int, mtime: float) -> None:
        """Write one file; ``size`` is what the archive says, ``mtime`` seconds since 1970."""
        path = self._place(name)
        self._reserve(size, name)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise self._unwritable(name, error) from error
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            written = 0
            while block := content.read(_BLOCK):
                self._write(file, block, name)
                written += len(block)
            if written != size:
                raise self.fault(name, f"has {written} bytes, {size} were announced: the archive is cut short")
            seconds = min(max(mtime, 0), 2**33) if math.isfinite(mtime) else 0
            nanoseconds = int(seconds * 1_000_000_000)
            os.utime(descriptor, ns=(nanoseconds, nanoseconds))
        self.files += 1

    def add_hard_link(self, name: str, to: str) -> None:
        path, source = self._place(name), self._root / self._safe(to)
        try:
            if not stat.S_ISREG(source.lstat().st_mode):
                raise self.fault(name, f"is a hard link to {to!r}, which is no file")
            os.link(source, path, follow_symlinks=False)
        except OSError as error:
            if isinstance(error, PipelineError):
                raise
            raise self._unwritable(name, error) from error
        self.files += 1

    def add_symbolic_link(self, name: str, to: str) -> None:
        """Note a link. Links are made last, so that nothing can be written through one."""
        self._place(name)
        if to.startswith("/") or "\0" in to:
            raise self.fault(name, f"is a link to {to!r}, outside the archive")
        self._links.append((name, to))

    def finish(self) -> None:
        """Make the links; refuse an archive without files."""
        inside = self._root.resolve()
        places = [(name, to, self._place(name)) for name, to in self._links]
        for name, to, path in places:
            try:
                Path(path).symlink_to(to)
            except OSError as error:
                raise self._unwritable(name, error) from error
        for name, to, path in places:
            if not Path(os.path.realpath(path)).is_relative_to(inside):
                raise self.fault(name, f"is a link to {to!r}, outside the archive")
        if not self.files:
            raise SourceError(f"{self._archive} holds no file")

    def fault(self, name: str, what: str) -> SourceError:
        shown = printable(name)
        shown = shown if len(shown) <= _LONGEST_NAME else f"{shown[:100]}...{shown[-100:]}"
        return SourceError(f"{self._archive}: member {shown!r} {what}. Nothing of the archive was kept")

    def _safe(self, name: str) -> str:
        """The member's path relative to the target, or an error."""
        try:
            name.encode()
        except UnicodeEncodeError:
            raise self.fault(name, "has a name that is not UTF-8, so no table can hold it") from None
        if name.startswith("/") or re.match(r"[A-Za-z]:", name):
            raise self.fault(name, "has an absolute path: it would be written outside the target folder")
        if "\\" in name or "\0" in name:
            raise self.fault(name, "has a backslash or a zero byte in its name")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise self.fault(name, "has '..' in its path: it would be written outside the target folder")
        safe = "/".join(parts)
        if len(parts) > _DEEPEST or len(safe.encode()) > _LONGEST_NAME:
            raise self.fault(
                name,
                f"has a path of {len(parts)} parts and {len(safe.encode())} bytes; "
                f"at most {_DEEPEST} and {_LONGEST_NAME} are unpacked",
            )
        return safe

    def _place(self, name: str) -> str:
        """Where the member goes; its folder is made."""
        safe = self._safe(name)
        if not safe:
            raise self.fault(name, "has no name")
        self._make_folder(safe.rpartition("/")[0], name)
        return os.path.join(self._root, safe)

    def _make_folder(self, folder: str, name: str) -> None:
        if folder in self._folders:
            return
        place = ""
        for part in folder.split("/"):
            place = f"{place}/{part}" if place else part
            if place not in self._folders:
                try:
                    (self._root / place).mkdir(0o755)
                except OSError as error:
                    raise self._unwritable(name, error) from error
                self._folders.add(place)

    def _reserve(self, size: int, name: str) -> None:
        """Refuse what would fill the disk; looked up again every few MiB, for others write to it, too."""
        self._unchecked += size
        if self._unchecked >= self._room:
            free = shutil.disk_usage(self._root).free - _RESERVE
            if size > free:
                raise self.fault(
                    name, f"needs {size} bytes, but only {max(free, 0)} can be used on the disk; free some"
                )
            self._unchecked, self._room = size, min(free, _RESERVE)

    def require(self, size: int) -> None:
        """Refuse an archive whose files, ``size`` bytes in all, do not fit on the disk."""
        free = shutil.disk_usage(self._root).free - _RESERVE
        if size > free:
            raise SourceError(
                f"{self._archive} needs {size} bytes unpacked, but only {max(free, 0)} can be used in "
                f"{self._root.parent}; free some and run again"
            )

    def _write(self, file: IO[bytes], block: bytes, name: str) -> None:
        view = memoryview(block)
        try:
            while view:
                view = view[file.write(view) :]
        except OSError as error:
            raise self._unwritable(name, error) from error

    def _unwritable(self, name: str, error: OSError) -> SourceError:
        if isinstance(error, FileExistsError | NotADirectoryError):
            return self.fault(name, "is there twice, or as a file and as a folder")
        if error.errno == errno.ENOSPC:
            return self.fault(name, "cannot be written: the disk is full (or out of inodes); free some and run again")
        return self.fault(name, f"cannot be written: {error.strerror}")


class _Stream:
    """The tar inside its compression, read forward only; what goes wrong in it becomes a ``SourceError``."""

    def __init__(self, archive: Path, progress: Progress, stack: ExitStack) -> None:
        self._archive = archive
        self._progress = progress
        self._file = stack.enter_context(archive.open("rb"))
        self._size = archive.stat().st_size
        self._told = 0
        self._content = stack.enter_context(_decompressed(self._file, _first_bytes(archive)))
        self.member = ""
        progress.start(f"unpack {archive.name}", self._size, "bytes")

    def read(self, size: int) -> bytes:
        try:
            block = self._content.read(size)
        except _CODEC_ERRORS as error:
            raise self.damaged(str(error)) from error
        place = self._file.tell()
        self._progress.advance(place - self._told)
        self._told = place
        return block

    def damaged(self, what: str) -> SourceError:
        if not self.member:
            begin = _first_bytes(self._archive)[:40]
            return SourceError(
                f"{self._archive} is no archive of a known kind (tar, plain or in gzip, bzip2, xz or zstd; zip), or "
                f"damaged at its start: {what}; it begins {begin!r}"
            )
        return SourceError(
            f"{self._archive} is damaged or cut short: {what}, at byte {self._file.tell()} of {self._size}, "
            f"at or after member {printable(self.member)!r}. Fetch it again; nothing of it was kept"
        )


def _first_bytes(archive: Path) -> bytes:
    try:
        with archive.open("rb") as file:
            return file.read(512)
    except OSError as error:
        raise SourceError(f"{archive} cannot be read: {error.strerror}") from error


def _decompressed(file: BinaryIO, begin: bytes) -> BinaryIO:
    """``file`` decompressed as its first bytes ask for, or itself."""
    if begin[:2] == b"\x1f\x8b":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if begin[:3] == b"BZh":
        return cast(BinaryIO, bz2.BZ2File(file))
    if begin[:6] == b"\xfd7zXZ\0":
        return cast(BinaryIO, lzma.LZMAFile(file))
    # A frame, or (written by parallel compressors) a frame to be skipped.
    if begin[:4] == b"\x28\xb5\x2f\xfd" or begin[1:4] == b"\x2a\x4d\x18":
        unlimited = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # zstd --long=31
        return cast(BinaryIO, unlimited.stream_reader(file, read_size=_BLOCK, read_across_frames=True))
    return file


_HEADER_TYPES = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class _BadHeader(Exception):
    """A tar header is damaged, or absent where the end mark should be."""


class _Member(tarfile.TarInfo):
    """A member whose damaged header is an error: ``tarfile`` alone takes it for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        if len(buf) < tarfile.BLOCKSIZE:
            raise _BadHeader("it ends without the mark of a tar's end")
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if not any(buf):
                raise  # the end mark
            raise _BadHeader(f"no valid tar header ({error})") from error
        if member.type in _HEADER_TYPES and member.size > _LONGEST_HEADER:
            raise _BadHeader(f"a header of {member.size} bytes")
        return member


def _unpack_tar(archive: Path, tree: _Tree, progress: Progress) -> None:
    with ExitStack() as stack:
        stream = _Stream(archive, progress, stack)
        try:
            tar = stack.enter_context(
                tarfile.open(
                    fileobj=cast(IO[bytes], stream),
                    mode="r|",
                    bufsize=1 << 16,  # tarfile copies what is left of it at every read
                    tarinfo=_Member,
                    encoding="utf-8",
                    errors="surrogateescape",
                )
            )
            while (member := tar.next()) is not None:
                # tarfile keeps them all, which for millions is several GiB.
                tar.members.clear()  # type: ignore[attr-defined]
                stream.member = member.name
                _add_tar_member(tree, tar, member)
            _check_end(stream, tar)
        except (tarfile.TarError, _BadHeader, *_PARSER_ERRORS) as error:
            raise stream.damaged(str(error)) from error


def _add_tar_member(tree: _Tree, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    if member.isdir():
        tree.add_folder(member.name)
    elif member.issym():
        tree.add_symbolic_link(member.name, member.linkname)
    elif member.islnk():
        tree.add_hard_link(member.name, member.linkname)
    elif member.isfile() and (content := tar.extractfile(member)) is not None:
        tree.add_file(member.name, content, member.size, member.mtime)
    else:
        raise tree.fault(member.name, f"is neither file, folder nor link (type {member.type!r})")


def _check_end(stream: _Stream, tar: tarfile.TarFile) -> None:
    """Read to the end: compressed streams carry their checksum there, and only zeros may follow a tar's end."""
    while block := cast(IO[bytes], tar.fileobj).read(_BLOCK):
        if block.count(0) != len(block):
            raise stream.damaged("more follows the end of the tar (were archives joined? unpack them one by one)")


def _unpack_zip(archive: Path, tree: _Tree, progress: Progress) -> None:
    member = None
    try:
        with zipfile.ZipFile(archive) as container:
            members = container.infolist()
            _check_count(archive, len(members))
            total = sum(member.file_size for member in members)
            tree.require(total)
            progress.start(f"unpack {archive.name}", total, "bytes")
            for member in members:
                _add_zip_member(tree, container, member)
                progress.advance(member.file_size)
    except PipelineError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, *_PARSER_ERRORS, *_CODEC_ERRORS) as error:
        if member is None:
            raise SourceError(
                f"{archive} is damaged or cut short: a zip's list of contents, at its end, cannot be read ({error}); "
                "fetch it again"
            ) from error
        raise tree.fault(member.filename, f"cannot be unpacked ({error}); fetch the archive again") from error


def _check_count(archive: Path, members: int) -> None:
    """Compare with the number at the file's end: a damaged length in the list lets ``zipfile`` skip what follows it."""
    with archive.open("rb") as file:
        file.seek(-min(archive.stat().st_size, 22 + 0xFFFF), os.SEEK_END)  # the end's record, and a comment
        end = file.read()
    (count,) = struct.unpack_from("<H", end, end.rindex(b"PK\5\6") + 10)
    # Beyond 65,535 the number is in another record, of 64 bits, or (macOS) wraps around.
    if count not in (members & 0xFFFF, 0xFFFF):
        raise zipfile.BadZipFile(f"it lists {members} files, {count} were announced")


def _add_zip_member(tree: _Tree, container: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    name = _zip_name(member)
    if member.flag_bits & 0x1:
        raise tree.fault(name, "is encrypted; decrypt the archive first")
    mode = stat.S_IFMT(member.external_attr >> 16) if member.create_system == 3 else 0
    if member.is_dir():
        tree.add_folder(name)
    elif mode == stat.S_IFLNK:
        with container.open(member) as content:
            tree.add_symbolic_link(name, content.read(4096).decode("utf-8", "surrogateescape"))
    elif mode in (0, stat.S_IFREG):
        with container.open(member) as content:
            tree.add_file(name, content, member.file_size, _zip_time(member))
    else:
        raise tree.fault(name, f"is neither file, folder nor link (mode {mode:o})")


def _zip_name(member: zipfile.ZipInfo) -> str:
    """A name without the UTF-8 flag is cp437 by the standard, but many programs write UTF-8 without it."""
    if member.flag_bits & 0x800:
        return member.filename
    try:
        return member.filename.encode("cp437").decode("utf-8")
    except UnicodeError:
        return member.filename


def _zip_time(member: zipfile.ZipInfo) -> float:
    """Seconds since 1970. A zip holds local time without a zone: taken as UTC, to be the same everywhere."""
    try:
        return float(calendar.timegm((*member.date_time, 0, 0, 0)))
    except ValueError:
        return 0.0
