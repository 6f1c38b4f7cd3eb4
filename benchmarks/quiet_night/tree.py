"""A raw tree of millions of files that takes no room: hard links to a few hundred tiny files, no two samples alike.

<root>/tile-0017/patch-0017203/patch-0017203_B04.bin
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

BYTES = 16
"""Bytes of every file."""

_CONTENTS = 256
_SAMPLES_A_TILE = 1000


def make_tree(root: Path, contents: Path, samples: int, files: int) -> None:
    """Link ``samples`` folders of ``files`` files each below ``root``, to files made below ``contents``."""
    contents.mkdir(parents=True)
    pieces = np.random.default_rng(1).integers(0, 256, (_CONTENTS, BYTES), np.uint8)
    for number, piece in enumerate(pieces):
        (contents / f"{number:03}").write_bytes(piece.tobytes())
    originals = [os.fspath(contents / f"{number:03}") for number in range(_CONTENTS)]
    for sample in range(samples):
        for path, number in zip(_paths(root, sample, files), _digits(sample, files), strict=True):
            os.link(originals[number], path)


def add_samples(root: Path, first: int, samples: int, files: int) -> None:
    """Add samples with files of their own: a further link would change an old file's stat, and so every sample."""
    for sample in range(first, first + samples):
        for number, path in enumerate(_paths(root, sample, files)):
            Path(path).write_bytes(sample.to_bytes(BYTES - 1, "big") + bytes([number]))


def _paths(root: Path, sample: int, files: int) -> Iterator[str]:
    name = f"patch-{sample:07}"
    folder = root / f"tile-{sample // _SAMPLES_A_TILE:04}" / name
    folder.mkdir(parents=True)
    return (f"{folder}/{name}_B{number:02}.bin" for number in range(files))


def _digits(sample: int, files: int) -> Iterator[int]:
    """Which content each file of a sample has: every content about as often, so that no file gets too many links.

    The first three tell the number of the sample, up to 2^24 of them.
    """
    low, middle, high = sample % 256, sample // 256 % 256, sample // 65536
    yield from (low, (low + middle) % 256, (low + middle + high) % 256)
    yield from ((low + number * middle + number**2 * high) % 256 for number in range(3, files))
