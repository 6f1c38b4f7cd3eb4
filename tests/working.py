"""Working folders, and what they and their raw trees hold."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from shardtrail.execution import Mapper, serial_mapper
from shardtrail.job import Job, open_job


def write_numbers(root: Path, samples: dict[str, dict[str, Any]]) -> Path:
    """A tree of the layout ``numbers_layout:Numbers``: one JSON file a sample, by its path."""
    for path, content in samples.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))
    return root


def working_folder(root: Path, source: Path, **params: Any) -> Path:
    """A folder with a ``params.yaml`` (JSON is YAML)."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "params.yaml").write_text(json.dumps({"source": str(source), **params}))
    return root


def numbers_folder(root: Path, source: Path, **params: Any) -> Path:
    """A working folder whose source is a tree of numbers."""
    return working_folder(root, source, layout="numbers_layout:Numbers", **params)


def job_in(root: Path, mapper: Mapper = serial_mapper, **changes: Any) -> Job:
    """The job of a working folder."""
    return dataclasses.replace(open_job(root, mapper=mapper), **changes)


def let_settle(root: Path) -> None:
    """Wait until no file of a tree is so young that its time stamps could hide a later change."""
    newest = max(path.stat().st_ctime_ns for path in root.rglob("*"))
    time.sleep(max(0.0, newest / 1e9 + 2.1 - time.time()))


def tree_state(root: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and modification time of every file of a tree."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def outputs(root: Path) -> dict[str, bytes]:
    """Bytes of everything in ``data/``."""
    return {path.name: path.read_bytes() for path in sorted((root / "data").iterdir())}
