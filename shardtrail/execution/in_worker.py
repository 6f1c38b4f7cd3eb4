"""What runs in a Dask worker. Imports nothing heavy: workers load this module."""

from __future__ import annotations

import functools
import pickle
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shardtrail.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker must be and what it must have.

    Attributes:
        root: the working folder; modules of the user's own lie in it.
        versions: of what decides the bytes, with their names.
        folders: that must be there.
        mark, token: a file in the working folder and what it holds, where another machine may have another folder
            under that path.
    """

    root: str
    versions: tuple[tuple[str, str], ...]
    folders: tuple[str, ...] = ()
    mark: str = ""
    token: str = ""


def here(root: Path, folders: tuple[str, ...] = (), mark: str = "", token: str = "") -> Place:
    """The place as this process has it."""
    return Place(str(root), _versions(), folders, mark, token)


def run(place: Place, work: bytes) -> Any:
    """Call the pickled ``(function, args, kwargs)``.

    Raises:
        ConfigError: this worker is not in ``place``.
    """
    wrong = _faults_once(place)
    if wrong:
        raise ConfigError(f"the Dask worker on {platform.node()} cannot build here: {'; '.join(wrong)}")
    if place.root not in sys.path:
        sys.path.append(place.root)
    function, args, kwargs = pickle.loads(work)
    return function(*args, **kwargs)


def faults(place: Place) -> tuple[str, ...]:
    """What keeps this process from working in ``place``."""
    wrong = []
    mine = dict(_versions())
    for name, wanted in place.versions:
        if mine.get(name) != wanted:
            wrong.append(f"it has {name} {mine.get(name, '(none)')}, this machine {wanted}")
    wrong += [f"it does not see {folder}" for folder in (place.root, *place.folders) if not Path(folder).exists()]
    if not wrong and place.mark and not _reads(Path(place.mark), place.token):
        wrong.append(f"{place.root} there is another folder than here")
    return tuple(wrong)


@functools.lru_cache(maxsize=8)
def _faults_once(place: Place) -> tuple[str, ...]:
    return faults(place)


def _reads(mark: Path, token: str) -> bool:
    try:
        return mark.read_text() == token
    except OSError:
        return False


@functools.cache
def _versions() -> tuple[tuple[str, str], ...]:
    from shardtrail.records.example import ENCODING_VERSION

    packages = [(name, version(name)) for name in ("shardtrail", "numpy", "imagecodecs")]
    return (*packages, ("record encoding", str(ENCODING_VERSION)))
