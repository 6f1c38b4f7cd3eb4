"""Writing files so that a name only ever appears with its whole content."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any


def write_atomic(path: Path, content: bytes) -> bool:
    """Write ``content`` under a temporary name, flush, fsync, rename; a file already equal is left alone.

    Returns:
        Whether the file was written.
    """
    try:
        if path.stat().st_size == len(content) and path.read_bytes() == content:
            return False
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # shows that its writer lives: see sharding.stale
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_json(value: Any) -> bytes:
    """JSON as we write it to files: indented, keys in the given order, one newline at the end."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def canonical_json(value: Any) -> bytes:
    """JSON as we hash it: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
