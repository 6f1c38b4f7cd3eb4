"""The plan: which sample becomes which record of which shard, and every shard's name.

    plan = make_plan(manifest, schema, config.shard)

It is a function of the set of samples, the schema, the parameters and the encoding version; the order of the
manifest's rows does not matter.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardtrail.config import ShardParams
from shardtrail.dataset import SPLITS, schema_to_json
from shardtrail.errors import ConfigError
from shardtrail.files import canonical_json
from shardtrail.manifest import PLAN as PLAN_SCHEMA
from shardtrail.planning.cut import exact_cuts, stable_cuts
from shardtrail.records.example import ENCODING_VERSION
from shardtrail.samples import Schema

DEFAULT_TARGET_MIB = 192

_NEEDED = ("sample_id", "split", "labels", "digest", "bytes", "texts")
_BATCH = 1 << 17

Indices = npt.NDArray[np.int64]


def make_plan(manifest: pa.Table, schema: Schema, params: ShardParams) -> pa.Table:
    """Share out the samples of a manifest over shards.

    Args:
        manifest: columns of ``data/manifest.parquet``; ``files`` is not needed.
        schema: what every record holds; part of the fingerprints.
        params: group, order, cut, target, encoding and seed.

    Returns:
        Columns of ``PLAN_SCHEMA``, one row a sample, in plan order: splits as in ``SPLITS``, groups by name.

    Raises:
        ConfigError: the manifest lacks a column or names a sample twice, the group is no column of it, or two shards
            would bear one name.
    """
    samples = _by_id(manifest, params.group)
    group_ranks, groups = _ranked(samples[params.group]) if params.group != "none" else _one_group(samples.num_rows)
    split_ranks = _split_ranks(samples["split"])
    draw_keys, cut_keys = sample_keys(samples["sample_id"], params.seed)
    within: npt.NDArray[Any] = draw_keys
    if params.order == "natural":
        within = _ranked(samples["acquired"])[0] if "acquired" in samples.column_names else np.zeros_like(draw_keys)
    # lexsort is stable, and rows are in the order of their ids: that settles ties.
    order = np.lexsort((within, group_ranks, split_ranks))

    sections = _section_bounds(split_ranks[order], group_ranks[order])
    sizes = samples["bytes"].to_numpy()[order] if params.target_samples is None else np.ones(len(order), np.int64)
    ends = _cuts(sizes, cut_keys[order], sections, params)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64) if len(ends) else ends
    fingerprints = _fingerprints(samples, order, ends, schema, params.encoding)
    splits = [SPLITS[rank] for rank in split_ranks[order[starts]]]

    of_shard = np.repeat(np.arange(len(ends), dtype=np.int32), ends - starts)
    records = (np.arange(len(order)) - starts[of_shard]).astype(np.int32)
    in_order = samples.select(["sample_id", "digest", "bytes"]).take(order)

    def for_each_record(values: Sequence[str]) -> pa.Array:
        return pa.array(values, pa.string()).take(pa.array(of_shard))

    return pa.table(
        {
            "address": for_each_record(_addresses(splits)),
            "shard": for_each_record(shard_names(splits, fingerprints)),
            "fingerprint": for_each_record(fingerprints),
            "split": for_each_record(splits),
            "group": for_each_record([groups[rank] for rank in group_ranks[order[starts]]]),
            "record": pa.array(records),
            "sample_id": in_order["sample_id"],
            "digest": in_order["digest"],
            "bytes": in_order["bytes"],
        },
        schema=PLAN_SCHEMA,
    )


def sample_keys(ids: pa.ChunkedArray, seed: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Two independent 64-bit hashes of every sample id: one to draw the order, one to find the cuts.

    They are the halves of one BLAKE2b digest. With a single hash for both, samples in a window would be sorted by
    the very key that is minimised, every cut would fall at the window's start, and a change would run through all
    shards behind it.

    Args:
        ids: [sample] sample ids.
        seed: another seed gives other, independent hashes.

    Returns:
        [sample] uint64 each.
    """
    salt = hashlib.blake2b(str(seed).encode(), digest_size=16).digest()
    digests = bytearray()
    for start in range(0, len(ids), _BATCH):
        batch = ids.slice(start, _BATCH).cast(pa.binary()).to_numpy()
        digests += b"".join(hashlib.blake2b(name, digest_size=16, salt=salt).digest() for name in batch)
    halves = np.frombuffer(digests, dtype="<u8").astype(np.uint64).reshape(-1, 2)
    return np.ascontiguousarray(halves[:, 0]), np.ascontiguousarray(halves[:, 1])


def shard_names(splits: Sequence[str], fingerprints: Sequence[str]) -> list[str]:
    """``<split>-<first 12 hex of the fingerprint>`` of every shard.

    Raises:
        ConfigError: two shards would bear one name.
    """
    names = [f"{split}-{fingerprint[:12]}" for split, fingerprint in zip(splits, fingerprints, strict=True)]
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise ConfigError(f"two shards would be called {twice} (a hash collision); set another shard.seed")
    return names


def _by_id(manifest: pa.Table, group: str) -> pa.Table:
    """The columns a plan needs, rows in the byte order of the sample ids, one chunk a column."""
    for name in _NEEDED:
        if name not in manifest.column_names or manifest[name].null_count:
            raise ConfigError(f"the manifest has no (complete) column {name}; make it again: run --until validate")
    usable = [
        field.name
        for field in manifest.schema
        if pa.types.is_string(field.type) and field.name not in ("sample_id", "digest")
    ]
    if group != "none" and group not in usable:
        raise ConfigError(f"shard.group: the manifest has no column {group!r}; use none, {', '.join(usable)}")
    optional = [name for name in dict.fromkeys(("acquired", group)) if name in usable and name not in _NEEDED]
    samples = manifest.select([*_NEEDED, *optional]).combine_chunks()
    if not _ascending(samples["sample_id"]):
        samples = samples.take(pc.sort_indices(samples["sample_id"])).combine_chunks()
        if not _ascending(samples["sample_id"]):
            twice = next(row for row in pc.value_counts(samples["sample_id"]) if row["counts"].as_py() > 1)
            raise ConfigError(f"the manifest names sample {twice['values']} twice; make it again: run --until validate")
    return samples


def _ascending(ids: pa.ChunkedArray) -> bool:
    """Whether every id is greater than the one before it."""
    return len(ids) < 2 or bool(pc.all(pc.less(ids[:-1].combine_chunks(), ids[1:].combine_chunks())).as_py())


def _ranked(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Each row's place among the distinct values in byte order, and those values; null counts as empty."""
    encoded = pa.chunked_array(column.fill_null("")).combine_chunks().dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(order), np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    return ranks[encoded.indices.to_numpy()], encoded.dictionary.take(order).to_pylist()


def _one_group(rows: int) -> tuple[npt.NDArray[np.int32], list[str]]:
    return np.zeros(rows, np.int32), [""]


def _split_ranks(column: pa.ChunkedArray) -> npt.NDArray[np.int32]:
    ranks, names = _ranked(column)
    unknown = sorted(set(names) - set(SPLITS))
    if unknown:
        raise ConfigError(f"the manifest has the split {unknown[0]!r}; known: {', '.join(SPLITS)}")
    return np.array([SPLITS.index(name) for name in names], np.int32)[ranks]


def _section_bounds(split_ranks: npt.NDArray[np.int32], group_ranks: npt.NDArray[np.int32]) -> Indices:
    """Edges of the runs of equal split and group: no shard crosses one."""
    changes = (np.diff(split_ranks) != 0) | (np.diff(group_ranks) != 0)
    return np.concatenate([[0], np.flatnonzero(changes) + 1, [len(split_ranks)]]).astype(np.int64)


def _cuts(
    sizes: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64], sections: Indices, params: ShardParams
) -> Indices:
    """The row after each shard's last."""
    target = params.target_samples or round((params.target_mib or DEFAULT_TARGET_MIB) * 2**20)
    ends: list[int] = []
    for start, stop in zip(sections[:-1].tolist(), sections[1:].tolist(), strict=True):
        part = slice(start, stop)
        cuts = (
            stable_cuts(sizes[part], keys[part], target) if params.cut == "stable" else exact_cuts(sizes[part], target)
        )
        ends += [start + cut for cut in cuts]
    return np.array(ends, np.int64)


def _fingerprints(samples: pa.Table, order: Indices, ends: Indices, schema: Schema, encoding: str) -> list[str]:
    """sha256 of all that a shard's bytes depend on: encoding, schema and its samples in order."""
    head = {"encoding": {"name": encoding, "version": ENCODING_VERSION}, "schema": schema_to_json(schema)}
    fresh = hashlib.sha256(canonical_json(head) + b"\n")
    fingerprints: list[str] = []
    current, row = fresh.copy(), 0
    for offsets, content in _lines(samples, order):
        first, last = row, row + len(offsets) - 1
        while row < last:
            end = int(ends[len(fingerprints)])
            upto = min(last, end)
            current.update(content[offsets[row - first] : offsets[upto - first]])
            row = upto
            if row == end:
                fingerprints.append(current.hexdigest())
                current = fresh.copy()
    return fingerprints


def _lines(samples: pa.Table, order: Indices) -> Iterator[tuple[Indices, memoryview]]:
    """One line a sample in plan order: id, digest, labels and texts; as offsets and content, batch by batch.

    Every string is preceded by its length, so that no two samples give one line.
    """
    columns = samples.select(["sample_id", "digest", "labels", "texts"])
    for start in range(0, len(order), _BATCH):
        batch = columns.take(order[start : start + _BATCH]).combine_chunks()
        sample_id, digest, labels, texts = (column.combine_chunks() for column in batch.columns)
        label_list = _join(labels, labels.flatten().cast(pa.string()))
        text_list = _join(texts, _with_length(texts.flatten()))
        lines = pc.binary_join_element_wise(_with_length(sample_id), digest, label_list, text_list, "\t")
        lines = pc.binary_join_element_wise(lines, "", "\n").cast(pa.large_string())
        _, offsets, content = lines.buffers()
        yield np.frombuffer(offsets, np.int64)[: len(lines) + 1], memoryview(content)


def _with_length(strings: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pc.binary_length(strings).cast(pa.string()), strings, ":")


def _join(lists: pa.Array, values: pa.Array) -> pa.Array:
    """Each list's values, joined by commas; ``values`` are those of all lists, as strings."""
    lengths = pc.list_value_length(lists).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), values), ",")


def _addresses(splits: Sequence[str]) -> list[str]:
    """``train-00017``: place of each shard in its split, from 0."""
    counts: dict[str, int] = {}
    addresses: list[Any] = []
    for split in splits:
        addresses.append(f"{split}-{counts.get(split, 0):05}")
        counts[split] = counts.get(split, 0) + 1
    return addresses
