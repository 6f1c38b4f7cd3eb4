"""Made-up photographs: smooth random images with noise, about 100 KB each, in a folder a class."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.peers.sample import Array, Row, Sample

CLASSES = tuple(f"class_{number}" for number in range(10))

_HEIGHT, _WIDTH = 375, 500
_DISTINCT = 50
"""Images; every file is one of them with a comment of its own, so that no two files have the same bytes."""


def make(root: Path, count: int) -> None:
    """Write ``count`` photographs below ``root``, every machine the same."""
    from imagecodecs import jpeg8_encode

    random = np.random.Generator(np.random.PCG64(1))
    images = [jpeg8_encode(_image(random), level=90) for _ in range(min(count, _DISTINCT))]
    for name in CLASSES:
        (root / name).mkdir(parents=True)
    for number in range(count):
        image, text = images[number % len(images)], f"photograph {number:06d}".encode()
        comment = b"\xff\xfe" + (len(text) + 2).to_bytes(2, "big") + text
        path = root / CLASSES[number % len(CLASSES)] / f"photo_{number:06d}.jpg"
        path.write_bytes(image[:2] + comment + image[2:])


def _image(random: np.random.Generator) -> Array:
    """[height, width, 3] uint8: a few waves in every colour, with grain."""
    rows = np.linspace(0, 1, _HEIGHT)[:, None, None]
    columns = np.linspace(0, 1, _WIDTH)[None, :, None]
    image = np.full((_HEIGHT, _WIDTH, 3), 128.0)
    for _ in range(8):
        down, across = random.uniform(0, 12, 2)
        phase, strength = random.uniform(0, 6.28, 3), random.uniform(0, 25, 3)
        image += strength * np.sin(6.28 * (down * rows + across * columns) + phase)
    image += random.normal(0, 15, (_HEIGHT, _WIDTH, 1))
    photograph: Array = np.clip(image, 0, 255).astype(np.uint8)
    return photograph


def photographs(root: Path) -> Iterator[Row]:
    """Every photograph with its folder as the label."""
    for path in sorted(root.glob("*/*.jpg")):
        yield Row(path.stem, [path.parent.name], {"image": str(path)})


def read(row: Row) -> Sample:
    """The bytes as they are."""
    return Sample(row.id, row.labels, images={name: Path(path).read_bytes() for name, path in row.files.items()})
