"""Writing files so that a name only ever appears with its whole content."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


def write_atomic(path: Path, content: bytes) -> bool:
    """Write ``content`` under a temporary name, flush, fsync, rename; a file already equal is left alone.

    Returns:
        Whether the file was written.
    """
    try:
        if path.stat().st_size == len(content) and path.read_bytes() == content:
            return False
    except FileNotFoundError:
        pass
    with replacing(path) as file:
        file.write(content)
    return True


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of ``path``, whole and on disk, when the block ends.

    Until then it has a temporary name in the same folder; if the block raises, it goes and ``path`` stays as it was.

    Raises:
        OSError: it cannot be written; ``filename`` is ``path``, which the system does not tell of a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # shows that its writer lives: see sharding.stale
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_md5(path: Path) -> str:
    """Hex md5 of a file; empty for a folder or where there is nothing."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest()
    except (FileNotFoundError, IsADirectoryError):
        return ""


def to_json(value: Any) -> bytes:
    """JSON as we write it to files: indented, keys in the given order, one newline at the end."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def canonical_json(value: Any) -> bytes:
    """JSON as we hash it: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
