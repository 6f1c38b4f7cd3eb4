"""``dataset.json`` as a value: every shard with md5, bytes and records; digests of splits and whole.

Readers take the list of files from here and never glob.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardtrail.errors import ConfigError
from shardtrail.files import canonical_json, to_json
from shardtrail.samples import Feature, Schema

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of a dataset. ``file`` is its name in ``data/shards/``; ``address`` its place in the plan."""

    address: str
    file: str
    fingerprint: str
    split: str
    records: int
    bytes: int
    md5: str

    @property
    def index(self) -> str:
        """Name of the index beside the shard."""
        return self.file.removesuffix(".tfrecord") + ".index"


@dataclass(frozen=True, slots=True)
class Dataset:
    """A sharded dataset; see docs/architecture.md for the file's keys."""

    schema: Schema
    encoding: str
    encoding_version: int
    shards: tuple[Shard, ...]
    bands: Mapping[str, Mapping[str, float]]
    classes: Mapping[str, Mapping[str, int]]
    samples: Mapping[str, int]

    def of_split(self, split: str) -> tuple[Shard, ...]:
        """The shards of one split, in plan order."""
        return tuple(shard for shard in self.shards if shard.split == split)

    @property
    def splits(self) -> dict[str, dict[str, Any]]:
        """``digest``, ``shards``, ``records`` and ``bytes`` of every split that has shards."""
        result = {}
        for split in SPLITS:
            shards = self.of_split(split)
            if shards:
                lines = "".join(f"{shard.md5}\n" for shard in shards)
                result[split] = {
                    "digest": hashlib.sha256(lines.encode()).hexdigest(),
                    "shards": len(shards),
                    "records": sum(shard.records for shard in shards),
                    "bytes": sum(shard.bytes for shard in shards),
                }
        return result

    @property
    def digest(self) -> str:
        """sha256 over schema, encoding and the splits' digests: one name for exactly these bytes."""
        digests = {split: entry["digest"] for split, entry in self.splits.items()}
        encoding = {"name": self.encoding, "version": self.encoding_version}
        content = {"schema": schema_to_json(self.schema), "encoding": encoding, "splits": digests}
        return hashlib.sha256(canonical_json(content)).hexdigest()

    def to_json(self) -> bytes:
        """The bytes of ``dataset.json``; ``content`` is sha256 of the canonical JSON of all other keys."""
        values = {
            "format": 1,
            "digest": self.digest,
            "encoding": {"name": self.encoding, "version": self.encoding_version},
            "schema": schema_to_json(self.schema),
            "samples": dict(self.samples),
            "splits": self.splits,
            "bands": {name: dict(values) for name, values in self.bands.items()},
            "classes": {split: dict(values) for split, values in self.classes.items()},
            "shards": [dataclasses.asdict(shard) for shard in self.shards],
        }
        return to_json({**values, "content": _content(values)})


def load_dataset(path: Path) -> Dataset:
    """Read ``dataset.json``.

    Raises:
        ConfigError: absent, not JSON, of a later format, incomplete, or other than it was written.
    """
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; build the dataset first: {_MEND}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}); build it again: {_MEND}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds a {type(values).__name__}, expected an object; build it again: {_MEND}")
    if values.get("format") != 1:
        raise ConfigError(f"{path} has format {values.get('format')!r}; this version of shardtrail reads format 1")
    try:
        content = values.pop("content")
        dataset = Dataset(
            schema=schema_from_json(values["schema"]),
            encoding=values["encoding"]["name"],
            encoding_version=values["encoding"]["version"],
            shards=tuple(Shard(**shard) for shard in values["shards"]),
            bands=values["bands"],
            classes=values["classes"],
            samples=values["samples"],
        )
        whole = content == _content(values) and dataset.digest == values["digest"]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{path} lacks a key or has one of another type ({what}); build it again: {_MEND}") from error
    if not whole:
        raise ConfigError(f"{path} was edited: its digest does not fit its content; build it again: {_MEND}")
    return dataset


_MEND = "shardtrail run --until hash"


def _content(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(values)).hexdigest()


def schema_to_json(schema: Schema) -> dict[str, Any]:
    """A schema as JSON values."""
    return {
        "features": [
            {"name": f.name, "dtype": f.dtype, "shape": list(f.shape), **({"format": f.format} if f.format else {})}
            for f in schema.features
        ],
        "texts": list(schema.texts),
        "vocabulary": list(schema.vocabulary),
        "label_prefix": schema.label_prefix,
        **({"decode": schema.decode} if schema.decode else {}),
    }


def schema_from_json(values: Mapping[str, Any]) -> Schema:
    """The schema that ``schema_to_json`` wrote."""
    features: Sequence[Mapping[str, Any]] = values["features"]
    return Schema(
        features=tuple(Feature(f["name"], f["dtype"], tuple(f["shape"]), f.get("format", "")) for f in features),
        texts=tuple(values["texts"]),
        vocabulary=tuple(values["vocabulary"]),
        label_prefix=values["label_prefix"],
        decode=values.get("decode", ""),
    )
