"""What every writer is handed, and how a benchmark lists it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample, decoded as far as the benchmark wants it.

    Attributes:
        id: unique.
        labels: names.
        arrays: decoded bands by name, [height, width].
        images: encoded images by name, byte for byte as on disk.
    """

    id: str
    labels: Sequence[str]
    arrays: Mapping[str, Array] = field(default_factory=dict)
    images: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the list that every writer is given; ``files`` by role, as absolute paths."""

    id: str
    labels: list[str]
    files: dict[str, str]


Read: TypeAlias = Callable[[Row], Sample]
Write: TypeAlias = Callable[[Iterable[Row], Read, Path], int]
"""Writes rows below a folder of its own, which exists; returns the number of records."""


def write_list(path: Path, rows: Iterable[Row]) -> None:
    """Keep rows as JSON lines."""
    path.write_text("".join(json.dumps([row.id, row.labels, row.files]) + "\n" for row in rows))


def read_list(path: Path, part: int, parts: int) -> list[Row]:
    """Every ``parts``-th row, from the ``part``-th on."""
    with path.open() as file:
        return [Row(*json.loads(line)) for place, line in enumerate(file) if place % parts == part]
