"""The values that pass between layouts, validation, planning and sharding.

Unit    what one check reads: a patch folder, an image, an image with its mask
Report  what the check of one unit found; cached by the unit's file stats
Sample  what becomes one record: one unit, or several joined (an S2 patch and its S1 partner)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardtrail.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One raw file as a sample's part.

    Attributes:
        role: what it is in the sample: a band's name, ``image``, ``mask``, ``metadata``.
        path: POSIX path relative to the raw root.
        size: bytes.
        md5: hex digest of the whole file; empty until it was read.
        stat: ``(size, mtime_ns, ctime_ns, inode)`` seen with the digest, if known. Never
            part of any output: only evidence that the bytes are still those of ``md5``.
    """

    role: str
    path: str
    size: int
    md5: str = ""
    stat: tuple[int, int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """Files that are checked together. ``key`` is unique and stable, such as the folder's path."""

    key: str
    kind: str
    files: Sequence[SourceFile]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing noticed about a unit or sample.

    Attributes:
        reason: a short code, such as ``missing_band``; documented in docs/quarantine.md.
        path: the offending file or folder, relative to the raw root.
        detail: a sentence with expected and found values.
    """

    reason: str
    path: str
    detail: str


@dataclass(frozen=True, slots=True)
class BandSums:
    """Sums of one band of one sample, from which statistics are added up exactly.

    Integer bands keep integer sums; float bands are summed in float64 in pixel order.
    """

    count: int
    total: float | int
    squares: float | int
    low: float | int
    high: float | int


@dataclass(frozen=True, slots=True)
class Report:
    """What the check of one unit found: a function of its bytes and the layout's options alone.

    Attributes:
        unit: the unit's key.
        kind: the unit's kind.
        files: the unit's files, each with its md5.
        faults: why it cannot be used; empty when it can.
        warnings: what is odd but usable.
        facts: JSON-able values the layout needs to assemble samples (labels, dates, partner).
        sums: per band.
    """

    unit: str
    kind: str
    files: Sequence[SourceFile]
    faults: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    sums: Mapping[str, BandSums] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """What becomes one record.

    Attributes:
        id: unique; orders the manifest.
        files: in the layout's role order.
        labels: names from the layout's vocabulary, in vocabulary order.
        split: ``train``, ``validation``, ``test``, or empty where the default rule shall draw it.
        attributes: extra manifest columns, such as ``region``, ``month`` (``2017-06``),
            ``acquired`` (ISO date), ``country``.
        texts: strings stored in the record beside ``sample_id`` (such as ``patch_name_s1``).
        units: keys of the units it was made of.
    """

    id: str
    files: Sequence[SourceFile]
    labels: tuple[str, ...]
    split: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    units: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejected:
    """A sample that is not used. ``excluded`` by the user's choice, otherwise quarantined."""

    id: str
    finding: Finding
    excluded: bool = False


@dataclass(frozen=True, slots=True)
class Feature:
    """One array of every record, or one image that is kept encoded.

        Feature("B02", "uint16", (120, 120))
        Feature("image", "uint8", (None, None, 3), format="jpeg")

    A layout's ``decode`` gives an array of this dtype and shape for the first. With a ``format`` it gives the ``bytes``
    of the file as they are; records keep them byte for byte, whatever the encoding of arrays, and who reads the dataset
    gets the image decoded. Shards are planned by the size of the sample's file whose role is the feature's name.

    Attributes:
        name: the feature's key in the ``tf.train.Example``.
        dtype: numpy name, little-endian in the record: ``uint8``, ``uint16``, ``float32``.
        shape: declared, such as ``(120, 120)`` [height, width]. Of an encoded image ``(height, width, channels)``;
            height and width are None unless they are the same in every sample.
        format: empty for an array; ``jpeg``, ``png``, or ``encoded`` where samples differ (JPEG, PNG, GIF or BMP).

    Raises:
        ConfigError: there is no such image.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    format: str = ""

    def __post_init__(self) -> None:
        if fault := _undecodable(self) if self.format else "has an unknown size" if None in self.shape else "":
            declared = f"{self.dtype}{list(self.shape)}"
            raise ConfigError(f"feature {self.name}: {declared}{' as ' + self.format if self.format else ''} {fault}")

    @property
    def fixed_shape(self) -> tuple[int, ...]:
        """``shape``, where all of it is declared.

        Raises:
            ConfigError: height or width is not.
        """
        if None in self.shape:
            raise ConfigError(
                f"feature {self.name}: its images have no declared size ({list(self.shape)}), which is needed here; "
                "read it with shardtrail.reading.open_dataset and bring the images to one size there"
            )
        return tuple(length for length in self.shape if length is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded array."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.fixed_shape, dtype=np.int64))


_IMAGES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "jpeg": {"uint8": (1, 3)},
    "png": {"uint8": (1, 3, 4), "uint16": (1, 3, 4)},
    "encoded": {"uint8": (1, 3, 4)},
}
"""Format -> dtype -> channels, of the images that TensorFlow decodes."""


def _undecodable(feature: Feature) -> str:
    """Why there is no such image; empty if there is."""
    if feature.format not in _IMAGES:
        return f"is no known format; known: {', '.join(_IMAGES)}"
    channels = _IMAGES[feature.format].get(feature.dtype)
    if channels is None:
        return f"does not exist: its pixels are {' or '.join(_IMAGES[feature.format])}"
    if len(feature.shape) != 3 or feature.shape[2] not in channels:
        return f"needs the shape (height, width, channels), channels one of {', '.join(map(str, channels))}"
    return ""


@dataclass(frozen=True, slots=True)
class Schema:
    """What every record of a dataset holds.

    Attributes:
        features: arrays and encoded images, in the layout's order.
        texts: names of the string features beside ``sample_id``.
        vocabulary: label names; a label's index is its place here.
        label_prefix: prefix of BigEarthNet's own label keys under ``encoding: int64``.
    """

    features: tuple[Feature, ...]
    texts: tuple[str, ...]
    vocabulary: tuple[str, ...]
    label_prefix: str = ""
    decode: str = ""

    def payload_bytes(self, samples: Sequence[Sample]) -> list[int]:
        """Bytes of each sample's arrays, as declared, and of its encoded images: a plan's sizes are made of it.

        An image's are those of the files whose role is the feature's name; where no file has it, of all files.
        """
        declared = sum(feature.nbytes for feature in self.features if not feature.format)
        images = {feature.name for feature in self.features if feature.format}
        if not images:
            return [declared] * len(samples)
        return [
            declared + sum([f.size for f in sample.files if f.role in images] or [f.size for f in sample.files])
            for sample in samples
        ]
