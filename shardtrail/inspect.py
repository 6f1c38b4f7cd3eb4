"""What a shard, or one record of it, holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shardtrail.dataset import Dataset, Shard, load_dataset
from shardtrail.errors import ConfigError, ShardError
from shardtrail.folder import Folder
from shardtrail.records.compression import decompress
from shardtrail.records.encoded import image_format
from shardtrail.records.example import decode_example
from shardtrail.records.index import read_index
from shardtrail.records.scan import read_record
from shardtrail.samples import Feature


def find_shard(dataset: Dataset, name: str) -> Shard:
    """The shard with this address, name or file.

    Raises:
        ConfigError: none has; near names are given.
    """
    import difflib

    plain = name.rsplit("/", 1)[-1].removesuffix(".tfrecord").removesuffix(".index")
    for shard in dataset.shards:
        if plain in (shard.address, shard.file.removesuffix(".tfrecord"), shard.fingerprint):
            return shard
    known = [shard.address for shard in dataset.shards] + [shard.file for shard in dataset.shards]
    near = difflib.get_close_matches(name, known, 3) or known[:3]
    raise ConfigError(f"no shard is called {name}; there are for example {', '.join(near)}")


def inspect_shard(folder: Folder, name: str) -> dict[str, Any]:
    """Figures of a shard and the ids of its records, in order."""
    dataset = load_dataset(folder.dataset)
    shard = find_shard(dataset, name)
    path = folder.shards / shard.file
    spans = read_index(folder.shards / shard.index)
    ids = [_text(decode_example(read_record(path, offset))["sample_id"]) for offset, _ in spans]
    return {
        "shard": shard.address,
        "file": shard.file,
        "split": shard.split,
        "records": shard.records,
        "bytes": shard.bytes,
        "md5": shard.md5,
        "samples": ids,
    }


def inspect_record(folder: Folder, name: str, record: int) -> dict[str, Any]:
    """Every feature of one record: text, numbers, or dtype, shape and range of an array.

    Raises:
        ConfigError: the shard has no such record.
        ShardError: its bytes are damaged.
    """
    dataset = load_dataset(folder.dataset)
    shard = find_shard(dataset, name)
    spans = read_index(folder.shards / shard.index)
    if not 0 <= record < len(spans):
        raise ConfigError(f"{shard.address} has records 0 to {len(spans) - 1} (got {record})")
    path = folder.shards / shard.file
    example = decode_example(read_record(path, spans[record][0]))
    arrays = {feature.name: feature for feature in dataset.schema.features}
    shown: dict[str, Any] = {
        "shard": shard.address,
        "file": shard.file,
        "record": record,
        "offset": spans[record][0],
    }
    for key, values in example.items():
        if key in arrays:
            feature = arrays[key]
            if feature.format:
                content = _bytes(values)
                shown[key] = {"format": image_format(content), "bytes": len(content)}
                continue
            flat = _numbers(dataset.encoding, feature, values)
            if flat.size != np.prod(feature.fixed_shape):
                raise ShardError(f"{path}, record {record}: {key} has {flat.size} values, {feature.shape} are declared")
            shown[key] = {
                "dtype": feature.dtype,
                "shape": list(feature.shape),
                "min": flat.min().item(),
                "max": flat.max().item(),
                "mean": round(float(flat.mean(dtype=np.float64)), 4),
            }
        elif isinstance(values, list):
            shown[key] = [value.decode("utf-8", "replace") for value in values]
        else:
            shown[key] = [] if values is None else values.tolist()
    return shown


def _numbers(encoding: str, feature: Feature, values: Any) -> npt.NDArray[Any]:
    """The values of an array, in one row.

    Raises:
        ShardError: it is compressed and cannot be inflated.
    """
    if encoding == "raw":
        return np.frombuffer(_bytes(values), np.dtype(feature.dtype).newbyteorder("<"))
    if encoding == "zlib":
        try:
            return decompress(_bytes(values), feature.dtype, feature.fixed_shape).reshape(-1)
        except ValueError as error:
            raise ShardError(f"{feature.name}: {error}") from error
    return np.asarray(values)


def _bytes(values: Any) -> bytes:
    return bytes(values[0])


def _text(values: Any) -> str:
    return _bytes(values).decode()
