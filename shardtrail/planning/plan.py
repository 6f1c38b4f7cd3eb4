"""The plan: which sample becomes which record of which shard, and every shard's name.

    plan = plan_manifest(folder.manifest, config.shard)
    plan = make_plan(manifest, schema, config.shard)

It is a function of the set of samples, the schema, the parameters and the encoding version; the order of the
manifest's rows does not matter.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shardtrail.config import ShardParams
from shardtrail.dataset import SPLITS, schema_to_json
from shardtrail.errors import ConfigError
from shardtrail.files import canonical_json
from shardtrail.manifest import PLAN as PLAN_SCHEMA
from shardtrail.manifest import manifest_schema, read_table, stored_digest
from shardtrail.planning.cut import exact_cuts, landmark_keys, stable_cuts
from shardtrail.planning.grid import COORDINATES, cells
from shardtrail.records.example import ENCODING_VERSION
from shardtrail.samples import Schema

DEFAULT_TARGET_MIB = 192

_NEEDED = ("sample_id", "split", "labels", "digest", "bytes", "texts")

_BATCH = 1 << 17
"""Rows that are hashed or copied at once: whole row groups, see ``manifest.ROW_GROUP``."""

_LARGE = 2**31
"""Bytes of strings that one Arrow array with 32-bit offsets cannot hold."""

Indices = npt.NDArray[np.int64]

Columns = dict[str, pa.Array]
"""The manifest's columns by name, a single piece each. What is used for the last time is taken out, and so freed."""


def plan_manifest(path: Path, params: ShardParams) -> pa.Table:
    """``make_plan`` of ``data/manifest.parquet``, of which only the columns that a plan needs are read.

    Raises:
        ConfigError: see ``read_table`` and ``make_plan``.
    """
    stored_digest(path)  # says what is wrong with a file that is none of ours
    columns = pq.read_schema(path)
    _check_columns(columns, params.group)
    samples = read_table(path, _wanted(columns, params.group))
    schema, owned = manifest_schema(samples), dict(zip(samples.column_names, samples.columns, strict=True))
    del samples
    return _plan(owned, schema, params)


def make_plan(manifest: pa.Table, schema: Schema, params: ShardParams) -> pa.Table:
    """Share out the samples of a manifest over shards.

    Args:
        manifest: columns of ``data/manifest.parquet``; ``files`` is not needed.
        schema: what every record holds; part of the fingerprints.
        params: group, order, cut, target, encoding and seed.

    Returns:
        Columns of ``PLAN_SCHEMA``, one row a sample, in plan order: splits as in ``SPLITS``, groups by name.

    Raises:
        ConfigError: the manifest lacks a column or names a sample twice, the group is no column of it, a coordinate is
            none, or two shards would bear one name.
    """
    _check_columns(manifest.schema, params.group)
    return _plan({name: manifest[name] for name in _wanted(manifest.schema, params.group)}, schema, params)


def _plan(manifest: dict[str, pa.ChunkedArray], schema: Schema, params: ShardParams) -> pa.Table:
    """The plan of these columns, which are given up."""
    columns = _by_id(manifest)
    group_ranks, groups = _group_ranks(columns, params)
    split_ranks = _split_ranks(columns["split"])
    draws, cut_keys = sample_keys(columns["sample_id"], params.seed)
    within: npt.NDArray[Any] = draws
    if params.order == "natural":
        within = _ranked(columns["acquired"])[0] if "acquired" in columns else np.zeros_like(draws)
    # lexsort is stable, and rows are in the order of their ids: that settles ties.
    order = np.lexsort((within, group_ranks, split_ranks))
    split_ranks, group_ranks = split_ranks[order], group_ranks[order]

    sizes = columns["bytes"].to_numpy()[order]
    cut_sizes = sizes if params.target_samples is None else np.ones(len(order), np.int64)
    sections = _section_bounds(split_ranks, group_ranks)
    ends = _cuts(cut_sizes, draws[order], cut_keys[order] if params.order == "natural" else None, sections, params)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64) if len(ends) else ends
    splits = [SPLITS[rank] for rank in split_ranks[starts]]
    in_groups = [groups[rank] for rank in group_ranks[starts]]
    del within, draws, cut_keys, cut_sizes, split_ranks, group_ranks
    fingerprints = _fingerprints(columns, order, ends, schema, params.encoding)
    sample_ids, digests = columns.pop("sample_id"), columns.pop("digest")
    columns.clear()

    of_shard = np.repeat(np.arange(len(ends), dtype=np.int32), ends - starts)
    records = (np.arange(len(order)) - starts[of_shard]).astype(np.int32)
    in_order = _taken(sample_ids, order)
    del sample_ids
    digests = _taken(digests, order)

    def for_each_record(values: Sequence[str]) -> pa.ChunkedArray:
        return _taken(pa.array(values, pa.string()), of_shard)

    return pa.table(
        {
            "address": for_each_record(_addresses(splits)),
            "shard": for_each_record(shard_names(splits, fingerprints)),
            "fingerprint": for_each_record(fingerprints),
            "split": for_each_record(splits),
            "group": for_each_record(in_groups),
            "record": pa.array(records),
            "sample_id": in_order,
            "digest": digests,
            "bytes": pa.array(sizes),
        },
        schema=PLAN_SCHEMA,
    )


def _taken(values: pa.Array, rows: npt.NDArray[np.integer[Any]]) -> pa.ChunkedArray:
    """Strings by row number, in pieces that stay below what one Arrow array can hold."""
    batches = (pa.array(rows[start : start + _BATCH]) for start in range(0, len(rows), _BATCH))
    return pa.chunked_array([values.take(batch).cast(pa.string()) for batch in batches], pa.string())


def sample_keys(ids: pa.Array, seed: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
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
        batch = ids.slice(start, _BATCH).cast(pa.binary()).to_numpy(zero_copy_only=False)
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


def _check_columns(schema: pa.Schema, group: str) -> None:
    """Raise ConfigError where the manifest has no column that the plan needs."""
    for name in _NEEDED:
        if name not in schema.names:
            raise ConfigError(f"the manifest has no (complete) column {name}; make it again: run --until validate")
    usable = [
        field.name
        for field in schema
        if pa.types.is_string(field.type) and field.name not in ("sample_id", "digest", *COORDINATES)
    ]
    if group == "grid":
        absent = [name for name in COORDINATES if name not in schema.names]
        if absent:
            raise ConfigError(
                f"shard.group: grid needs the columns {' and '.join(COORDINATES)}, and the manifest has no "
                f"{' and no '.join(absent)}; give each sample these attributes in the layout, or group by "
                f"none, {', '.join(usable)}"
            )
    elif group not in ("none", *usable):
        raise ConfigError(f"shard.group: the manifest has no column {group!r}; use none, grid, {', '.join(usable)}")


def _wanted(schema: pa.Schema, group: str) -> list[str]:
    """The columns that a plan needs, of those that there are."""
    keys = COORDINATES if group == "grid" else (group,)
    return [name for name in dict.fromkeys((*_NEEDED, "acquired", *keys)) if name in schema.names]


def _by_id(columns: dict[str, pa.ChunkedArray]) -> Columns:
    """The columns in one piece each, rows in the byte order of the sample ids; ``columns`` is emptied on the way."""
    whole: Columns = {}
    for name in list(columns):
        if name in _NEEDED and columns[name].null_count:
            raise ConfigError(f"the manifest has no (complete) column {name}; make it again: run --until validate")
        whole[name] = _one_piece(columns.pop(name))
    if not _ascending(whole["sample_id"]):
        order = pc.sort_indices(whole["sample_id"])
        for name in whole:
            whole[name] = whole[name].take(order)
        if not _ascending(whole["sample_id"]):
            twice = next(row for row in pc.value_counts(whole["sample_id"]) if row["counts"].as_py() > 1)
            raise ConfigError(f"the manifest names sample {twice['values']} twice; make it again: run --until validate")
    return whole


def _one_piece(column: pa.ChunkedArray) -> pa.Array:
    """A column's chunks as one array; strings of more than 2 GiB need 64-bit offsets for that."""
    if column.nbytes >= _LARGE:
        if pa.types.is_string(column.type):
            column = column.cast(pa.large_string())
        elif pa.types.is_list(column.type):
            inner = pa.large_string() if pa.types.is_string(column.type.value_type) else column.type.value_type
            column = column.cast(pa.large_list(inner))
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _ascending(ids: pa.Array) -> bool:
    """Whether every id is greater than the one before it."""
    return len(ids) < 2 or bool(pc.all(pc.less(ids[:-1], ids[1:])).as_py())


def _ranked(column: pa.Array) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Each row's place among the distinct values in byte order, and those values; null counts as empty."""
    encoded = column.fill_null("").dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(order), np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    return ranks[encoded.indices.to_numpy()], encoded.dictionary.take(order).to_pylist()


def _group_ranks(columns: Columns, params: ShardParams) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Each row's group, as its place among all groups by name."""
    if params.group == "none":
        return np.zeros(len(columns["sample_id"]), np.int32), [""]
    if params.group == "grid":
        longitude, latitude = (columns.pop(name) for name in COORDINATES)
        return _ranked(cells(columns["sample_id"], longitude, latitude, params.grid_degrees))
    return _ranked(columns[params.group])


def _split_ranks(column: pa.Array) -> npt.NDArray[np.int32]:
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
    sizes: npt.NDArray[np.int64],
    draws: npt.NDArray[np.uint64],
    cut_keys: npt.NDArray[np.uint64] | None,
    sections: Indices,
    params: ShardParams,
) -> Indices:
    """The row after each shard's last; ``cut_keys`` are those of an order that is not by draws."""
    target = params.target_samples or round((params.target_mib or DEFAULT_TARGET_MIB) * 2**20)
    ends: list[int] = []
    for start, stop in zip(sections[:-1].tolist(), sections[1:].tolist(), strict=True):
        part = slice(start, stop)
        if params.cut == "exact":
            cuts = exact_cuts(sizes[part], target)
        else:
            keys = landmark_keys(draws[part], sizes[part], target) if cut_keys is None else cut_keys[part]
            cuts = stable_cuts(sizes[part], keys, target)
        ends += [start + cut for cut in cuts]
    return np.array(ends, np.int64)


def _fingerprints(columns: Columns, order: Indices, ends: Indices, schema: Schema, encoding: str) -> list[str]:
    """sha256 of all that a shard's bytes depend on: encoding, schema and its samples in order."""
    head = {"encoding": {"name": encoding, "version": ENCODING_VERSION}, "schema": schema_to_json(schema)}
    fresh = hashlib.sha256(canonical_json(head) + b"\n")
    fingerprints: list[str] = []
    current, row = fresh.copy(), 0
    for offsets, content in _lines(columns, order):
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


def _lines(columns: Columns, order: Indices) -> Iterator[tuple[Indices, memoryview]]:
    """One line a sample in plan order: id, digest, labels and texts; as offsets and content, batch by batch.

    Every string is preceded by its length, so that no two samples give one line.
    """
    for start in range(0, len(order), _BATCH):
        rows = pa.array(order[start : start + _BATCH])
        sample_id, digest, labels, texts = (
            columns[name].take(rows) for name in ("sample_id", "digest", "labels", "texts")
        )
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
