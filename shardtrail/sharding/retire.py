"""Shards that the plan no longer names leave ``data/shards/``, which must not depend on earlier builds.

They are kept in ``data/retired/``: a plan that names them again takes them back instead of building them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from shardtrail.files import sync_folder
from shardtrail.folder import Folder

_SUFFIXES = (".index", ".tfrecord")  # in this order: a shard never stands without its index

_NAME = re.compile(r"[a-z]+-[0-9a-f]{12}")


def is_ours(path: Path) -> bool:
    """Whether builds give such names; whatever else lies beside shards is not ours to move or remove."""
    return path.suffix in _SUFFIXES and _NAME.fullmatch(path.stem) is not None


def retire(folder: Folder, kept: Collection[str]) -> int:
    """Move shards that are not in ``kept`` (names) out of ``data/shards/``; how many files went.

    To be called under the lease, when every planned shard is there. Whoever trains on them meanwhile
    reads links of its own (``sharding.pin``).
    """
    if not folder.shards.exists():
        return 0
    moved = 0
    for path in sorted(folder.shards.glob("[!.]*")):
        if is_ours(path) and path.stem not in kept:
            folder.retired.mkdir(parents=True, exist_ok=True)
            path.replace(folder.retired / path.name)
            moved += 1
    if moved:
        sync_folder(folder.retired)
        sync_folder(folder.shards)
    return moved


def take_back(folder: Folder, planned: Collection[str]) -> int:
    """Move the retired shards that are in ``planned`` (names) back; how many shards came. Under the lease."""
    taken = 0
    for path in sorted(folder.retired.glob("*.tfrecord")):
        if path.stem in planned and not (folder.shards / path.name).exists():
            folder.shards.mkdir(parents=True, exist_ok=True)
            for suffix in _SUFFIXES:
                part = path.with_suffix(suffix)
                if part.exists():
                    part.replace(folder.shards / part.name)
            taken += 1
    return taken
