"""What ``dvc.lock`` says a stage made, and where that very table still lies."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardtrail.errors import ConfigError
from shardtrail.files import file_md5
from shardtrail.folder import Folder
from shardtrail.manifest import read_table, stored_digest, table_bytes


@dataclass(frozen=True, slots=True)
class Recorded:
    """A table as it was recorded.

    Attributes:
        md5: of its file, as ``dvc.lock`` has it; empty where only the file on disk speaks.
        path: a file that holds it (in place, or in DVC's cache); None where there is none.
    """

    md5: str
    path: Path | None

    def holds(self, table: pa.Table, digest: str) -> bool:
        """Whether ``table``, of this digest, is the recorded one."""
        if self.path is not None:
            return stored_digest(self.path) == digest
        return hashlib.md5(table_bytes(table), usedforsecurity=False).hexdigest() == self.md5

    def read(self) -> pa.Table | None:
        """The recorded table, where it still lies somewhere."""
        return None if self.path is None else read_table(self.path)


def recorded_table(folder: Folder, stage: str, path: Path) -> Recorded | None:
    """What is recorded of a stage's table; None where nothing is, or the stage's inputs are no longer the lock's."""
    entry = _lock_entry(folder, stage)
    out = _find(entry.get("outs", ()), folder.relative(path))
    if out is None or not _inputs_are_the_locks(folder, entry):
        return None
    md5 = out["md5"]
    places = [path, *(root / md5[:2] / md5[2:] for root in _cache_roots(folder))]
    found = next((place for place in places if file_md5(place) == md5), None)
    return Recorded(md5, found)


def _lock_entry(folder: Folder, stage: str) -> Mapping[str, Any]:
    entry: Mapping[str, Any] = (_yaml(folder.root / "dvc.lock").get("stages") or {}).get(stage, {})
    return entry


def _inputs_are_the_locks(folder: Folder, entry: Mapping[str, Any]) -> bool:
    """Whether the stage's dependencies and parameters are those that the lock was written with."""
    for dependency in entry.get("deps", ()):
        if file_md5(folder.root / dependency["path"]) != dependency.get("md5"):
            return False
    for name, recorded in (entry.get("params") or {}).items():
        values = _yaml(folder.root / name)
        if any(_value(values, key) != value for key, value in recorded.items()):
            return False
    return True


def _find(entries: Any, path: str) -> Mapping[str, Any] | None:
    return next((entry for entry in entries if entry["path"] == path and "md5" in entry), None)


def _value(values: Any, key: str) -> Any:
    """The value at a dotted key, None if there is none."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _cache_roots(folder: Folder) -> list[Path]:
    """DVC's local cache, in its default place in the repository that holds the working folder."""
    return [
        parent / ".dvc/cache/files/md5" for parent in (folder.root, *folder.root.parents) if (parent / ".dvc").is_dir()
    ]


def _yaml(path: Path) -> Mapping[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        values = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    return values if isinstance(values, dict) else {}
