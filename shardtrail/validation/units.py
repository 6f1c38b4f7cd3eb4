"""A layout's units joined with the scan they were cut from: all of them packed, objects only of those that are read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import numpy as np

from shardtrail.errors import ConfigError
from shardtrail.layouts import Layout
from shardtrail.packed import columns, pack_files
from shardtrail.samples import Unit
from shardtrail.stat_cache import signature
from shardtrail.storage.local import Scan
from shardtrail.validation.check import Batch

_BLOCK = 1 << 12


class ScannedUnits(Sequence[Unit]):
    """Units whose files carry the scan's stats; ``packed`` has the same without."""

    def __init__(self, units: Sequence[Unit], tree: Scan, layout: str) -> None:
        """Raises:
        ConfigError: the layout named a file that is not in the tree.
        """
        self.packed = [replace(unit, files=pack_files(unit.files)) for unit in units]
        self._tree = tree
        self._ends = np.cumsum([0, *(len(unit.files) for unit in self.packed)])
        self._places = tree.paths.places(itertools.chain.from_iterable(columns(unit.files)[1] for unit in self.packed))
        if (absent := np.flatnonzero(self._places < 0)).size:
            unit = self.packed[int(np.searchsorted(self._ends, absent[0], side="right")) - 1]
            raise ConfigError(f"layout {layout}: unit {unit.key} has a file that is not in the raw tree")

    def __len__(self) -> int:
        return len(self.packed)

    @overload
    def __getitem__(self, index: int) -> Unit: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Unit, ...]: ...
    def __getitem__(self, index: int | slice) -> Unit | tuple[Unit, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        unit = self.packed[index]
        rows = self._stats(index, index + 1).tolist()
        files = (replace(file, size=row[0], stat=tuple(row)) for file, row in zip(unit.files, rows, strict=True))
        return replace(unit, files=tuple(files))

    def signatures(self, rules: str) -> Iterator[tuple[str, str]]:
        """``(key, signature)`` of every unit; see ``stat_cache.signature``."""
        for start in range(0, len(self), _BLOCK):
            some = self.packed[start : start + _BLOCK]
            stats = self._stats(start, start + len(some)).astype("<i8", copy=False).tobytes()
            ends = (32 * (self._ends[start : start + len(some) + 1] - self._ends[start])).tolist()
            for unit, (first, end) in zip(some, itertools.pairwise(ends), strict=True):
                yield unit.key, signature(unit, rules, stats[first:end])

    def _stats(self, first: int, last: int) -> np.ndarray:
        """[file, 4] int64: stats of the files of units ``first`` to ``last`` - 1."""
        places = self._places[self._ends[first] : self._ends[last]]
        return np.stack([column[places] for column in self._tree.columns], axis=1)


@dataclass(frozen=True)
class Batches(Sequence[tuple[str, Batch]]):
    """``(label, batch)`` of the units at some places, each made when it is asked for: all at once are too many."""

    raw: Path
    layout: Layout
    units: ScannedUnits
    places: Sequence[int]
    size: int

    def __len__(self) -> int:
        return -(-len(self.places) // self.size)

    @overload
    def __getitem__(self, index: int) -> tuple[str, Batch]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[str, Batch]]: ...
    def __getitem__(self, index: int | slice) -> tuple[str, Batch] | Sequence[tuple[str, Batch]]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        places = self.places[index * self.size : (index + 1) * self.size]
        return self.label(index), Batch(self.raw, self.layout, tuple(self.units[place] for place in places))

    def label(self, index: int) -> str:
        """What a batch is called in messages, such as ``patches 33 to 64``."""
        start = index * self.size
        return f"patches {start + 1} to {min(start + self.size, len(self.places))}"
