"""Raw files as they were validated, or an error that names what is other.

Imports nothing heavy: this runs in workers.
"""

from __future__ import annotations

import hashlib
import os
import stat

from shardtrail.errors import SourceChanged, SourceError
from shardtrail.samples import SourceFile

# Not blocking: a named pipe in place of a file must not hang a worker.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def read_source(raw: str, file: SourceFile, full: bool = False) -> bytes:
    """The bytes of a raw file, which are those that were validated.

    The stat is taken after reading: if it is the one seen with the digest, nothing was written
    in between. Any other stat makes the bytes be hashed.

    Args:
        raw: root of the raw tree.
        full: hash the bytes in any case.

    Raises:
        SourceChanged: absent, or other bytes than validated; expected and found are named.
        SourceError: it cannot be read.
    """
    size = file.size
    try:
        descriptor = os.open(f"{raw}/{file.path}", _FLAGS)
        try:
            content = os.read(descriptor, size + 1)
            while 0 < len(content) < size and (more := os.read(descriptor, size + 1 - len(content))):
                content += more
            found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise SourceChanged(f"{file.path} is missing") from None
    except OSError as error:
        raise SourceError(f"{file.path} cannot be read ({error.strerror})") from error
    if len(content) != size:
        raise SourceChanged(f"{file.path} has {found.st_size} bytes, expected {size}")
    if full or not _is_as_seen(file, found):
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if md5 != file.md5:
            raise SourceChanged(f"{file.path} has md5 {md5}, expected {file.md5}")
    return content


def confirm_source(raw: str, file: SourceFile, full: bool = False) -> None:
    """Make sure of a raw file whose bytes nobody needs: its stat suffices if it is the one seen with the digest.

    Raises:
        As ``read_source``.
    """
    if not full:
        try:
            found = os.stat(f"{raw}/{file.path}")  # noqa: PTH116 -- a Path for every file costs more than the call
        except OSError:
            pass  # reading says what is wrong
        else:
            if stat.S_ISREG(found.st_mode) and _is_as_seen(file, found):
                return
    read_source(raw, file, full)


def _is_as_seen(file: SourceFile, found: os.stat_result) -> bool:
    return file.stat == (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
