"""Keep the shards of a dataset for a reader, whatever a rebuild or ``dvc checkout`` does meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shardtrail.dataset import Dataset
from shardtrail.folder import Folder

_LOCK = ".lock"


@contextlib.contextmanager
def pinned(folder: Folder, dataset: Dataset) -> Iterator[Path]:
    """A folder with the dataset's shards as hard links, which cost no space; it is removed on the way out.

    Where the file system knows no hard links, ``data/shards`` itself. A shard that is missing is missing
    there too: whoever reads the files checks them.
    """
    parent = _parent(folder)
    parent.mkdir(parents=True, exist_ok=True)
    forget_dead(folder)
    place = Path(tempfile.mkdtemp(prefix=f"{dataset.digest[:12]}-", dir=parent))
    with (place / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield place if _link(folder, dataset, place) else folder.shards
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _link(folder: Folder, dataset: Dataset, place: Path) -> bool:
    """Link every shard and index, retired ones too: a rebuild may retire them at this moment. False: no hard links."""
    for shard in dataset.shards:
        for name in (shard.file, shard.index):
            for source in (folder.shards / name, folder.retired / name, folder.shards / name):
                try:
                    os.link(source, place / name)
                    break
                except FileNotFoundError:
                    continue
                except OSError:
                    return False
    return True


def forget_dead(folder: Folder) -> None:
    """Remove the links of readers that were killed: the kernel gave back their lock."""
    for place in _parent(folder).glob("*"):
        with contextlib.suppress(OSError), (place / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(place, ignore_errors=True)


def _parent(folder: Folder) -> Path:
    return folder.state / "pinned"
