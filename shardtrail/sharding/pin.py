"""Keep the shards of a dataset for a reader, whatever a rebuild, ``gc`` or ``dvc checkout`` does meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from shardtrail.dataset import Dataset
from shardtrail.folder import Folder


@contextlib.contextmanager
def pinned(folder: Folder, dataset: Dataset) -> Iterator[Path]:
    """A folder with the dataset's shards as hard links, which cost no space; it is removed on the way out.

    Where the file system knows no hard links, ``data/shards`` itself.
    """
    place = folder.state / "pinned" / f"{dataset.digest[:12]}-{os.getpid()}"
    _forget_dead(place.parent)
    place.mkdir(parents=True, exist_ok=True)
    try:
        try:
            for shard in dataset.shards:
                for name in (shard.file, shard.index):
                    with contextlib.suppress(FileExistsError, FileNotFoundError):
                        os.link(folder.shards / name, place / name)
        except OSError:
            yield folder.shards
        else:
            yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _forget_dead(place: Path) -> None:
    """Links of readers that were killed. A pid that lives on another host keeps its links: that costs nothing."""
    for path in place.glob("*-*") if place.exists() else ():
        with contextlib.suppress(ValueError):
            try:
                os.kill(int(path.name.rpartition("-")[2]), 0)
            except ProcessLookupError:
                shutil.rmtree(path, ignore_errors=True)
            except PermissionError:
                continue
