"""The plan: which sample becomes which record of which shard, and every shard's name.

    plan = plan_manifest(folder.manifest, config.shard)
    plan = make_plan(manifest, schema, config.shard)

It is a function of the set of samples, the schema, the parameters and the encoding version; the order of the
manifest's rows does not matter.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
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
from shardtrail.manifest import manifest_schema, read_pieces, stored_digest
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

_SPAN = 1 << 22
"""Rows that are in memory with all their columns at once: larger manifests are read once more for each span."""

Indices = npt.NDArray[np.int64]
Ranks = npt.NDArray[np.int32]

Read = Callable[[Sequence[str]], Iterable[pa.RecordBatch]]
"""Some columns of a manifest, piece by piece, as often as asked."""


def plan_manifest(path: Path, params: ShardParams) -> pa.Table:
    """``make_plan`` of ``data/manifest.parquet``, which is never in memory as a whole.

    Raises:
        ConfigError: see ``read_table`` and ``make_plan``.
    """
    stored_digest(path)  # says what is wrong with a file that is none of ours
    columns = pq.read_schema(path)
    return _plan(partial(read_pieces, path), columns, manifest_schema(columns.empty_table()), params)


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
    return _plan(lambda names: manifest.select(names).to_batches(), manifest.schema, schema, params)


def _plan(read: Read, manifest: pa.Schema, schema: Schema, params: ShardParams) -> pa.Table:
    """The plan of the manifest that ``read`` reads."""
    _check_columns(manifest, params.group)
    rows, sizes, splits, groups, ends = shared_out(read, manifest, params)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64) if len(ends) else ends

    hashes = _Fingerprints(ends, schema, params.encoding)
    sample_ids, digests = [], []
    for sample_id, digest, labels, texts in _in_order(read, rows):
        hashes.update(*_lines(sample_id, digest, labels, texts))
        sample_ids.append(sample_id)
        digests.append(digest)
    of_shard = np.repeat(np.arange(len(ends), dtype=np.int32), ends - starts)
    records = (np.arange(len(rows)) - starts[of_shard]).astype(np.int32)
    del rows

    def for_each_record(values: Sequence[str]) -> pa.ChunkedArray:
        each = pa.array(values, pa.string())
        batches = (pa.array(of_shard[start : start + _BATCH]) for start in range(0, len(of_shard), _BATCH))
        return pa.chunked_array([each.take(batch) for batch in batches], pa.string())

    return pa.table(
        {
            "address": for_each_record(_addresses(splits)),
            "shard": for_each_record(shard_names(splits, hashes.of_shards)),
            "fingerprint": for_each_record(hashes.of_shards),
            "split": for_each_record(splits),
            "group": for_each_record(groups),
            "record": pa.array(records),
            "sample_id": pa.chunked_array(sample_ids, pa.string()),
            "digest": pa.chunked_array(digests, pa.string()),
            "bytes": pa.array(sizes),
        },
        schema=PLAN_SCHEMA,
    )


def shared_out(
    read: Read, manifest: pa.Schema, params: ShardParams
) -> tuple[Indices, Indices, list[str], list[str], Indices]:
    """Group, order and cut.

    Returns:
        [sample] the manifest's rows in plan order and their nominal bytes; [shard] split, group and the place after the
        last sample.
    """
    columns = _whole(read, manifest, ("sample_id", "split", "bytes", *_keys(manifest, params)))
    rows = _by_id(columns)
    group_ranks, groups = _group_ranks(columns, params)
    split_ranks = _split_ranks(columns["split"])
    draws, cut_keys = sample_keys(columns["sample_id"], params.seed)
    sizes = columns["bytes"].to_numpy()
    within: npt.NDArray[Any] = draws
    if params.order == "natural":
        within = _ranked(columns["acquired"])[0] if "acquired" in columns else np.zeros_like(draws)
    columns.clear()
    # Rows are in the order of their ids: that settles ties. Small numbers are sorted by radix.
    section = split_ranks * len(groups) + group_ranks
    order = np.argsort(within, kind="stable")
    order = order[np.argsort(section[order].astype(np.min_scalar_type(len(SPLITS) * len(groups))), kind="stable")]
    split_ranks, group_ranks, sizes = split_ranks[order], group_ranks[order], sizes[order]

    cut_sizes = sizes if params.target_samples is None else np.ones(len(order), np.int64)
    sections = _section_bounds(section[order])
    ends = _cuts(cut_sizes, draws[order], cut_keys[order] if params.order == "natural" else None, sections, params)
    last = ends - 1
    return (
        order if rows is None else rows[order],
        sizes,
        [SPLITS[rank] for rank in split_ranks[last]],
        [groups[rank] for rank in group_ranks[last]],
        ends,
    )


def _in_order(read: Read, rows: Indices) -> Iterator[tuple[pa.Array, pa.Array, pa.Array, pa.Array]]:
    """Id, digest, labels and texts of the samples in plan order, ``_BATCH`` at a time."""
    names = ("sample_id", "digest", "labels", "texts")
    place = np.empty(len(rows), np.int64)
    place[rows] = np.arange(len(rows))
    for first in range(0, len(rows), _SPAN):
        picked: dict[str, list[pa.Array]] = {name: [] for name in names}
        places, row = [], 0
        for piece in read(names):
            here = place[row : row + len(piece)] - first
            row += len(piece)
            inside = (here >= 0) & (here < _SPAN)
            places.append(here[inside])
            for name in names:
                column = _complete(name, piece[name])
                picked[name].append(column if inside.all() else column.filter(pa.array(inside)))
        kinds = [picked[name][0].type for name in names]
        span = [_one_piece(picked.pop(name), kind) for name, kind in zip(names, kinds, strict=True)]
        where = np.empty(len(span[0]), np.int64)
        where[np.concatenate(places)] = np.arange(len(where))
        for start in range(0, len(where), _BATCH):
            batch = pa.array(where[start : start + _BATCH])
            columns = (column.take(batch).cast(kind) for column, kind in zip(span, kinds, strict=True))
            sample_id, digest, labels, texts = columns
            yield sample_id, digest, labels, texts
        del span  # before the next one is read


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


def key_columns(manifest: Path, params: ShardParams) -> list[str]:
    """The columns of a manifest that group and order go by, beside split and id.

    Raises:
        ConfigError: there is no such manifest, or none with the group.
    """
    stored_digest(manifest)  # says what is wrong with a file that is none of ours
    columns = pq.read_schema(manifest)
    _check_columns(columns, params.group)
    return _keys(columns, params)


def _keys(manifest: pa.Schema, params: ShardParams) -> list[str]:
    """The columns that group and order go by, of those that there are."""
    keys = COORDINATES if params.group == "grid" else (params.group,)
    wanted = (*keys, "acquired") if params.order == "natural" else keys
    return [name for name in dict.fromkeys(wanted) if name in manifest.names and name != "split"]


def _whole(read: Read, manifest: pa.Schema, names: Sequence[str]) -> dict[str, pa.Array]:
    """Columns in one piece each."""
    pieces: dict[str, list[pa.Array]] = {name: [] for name in names}
    for batch in read(names):
        for name in names:
            pieces[name].append(_complete(name, batch[name]))
    return {name: _one_piece(pieces.pop(name), manifest.field(name).type) for name in names}


def _complete(name: str, column: pa.Array) -> pa.Array:
    """The column; keys to group or order by may have nulls, which count as empty."""
    if column.null_count and name in _NEEDED:
        raise ConfigError(f"the manifest has no (complete) column {name}; make it again: run --until validate")
    return column


def _one_piece(pieces: list[pa.Array], kind: pa.DataType) -> pa.Array:
    """Pieces of a column as one array; strings of 2 GiB and more need 64-bit offsets for that."""
    if sum(piece.nbytes for piece in pieces) >= _LARGE:
        if pa.types.is_string(kind):
            pieces = [piece.cast(pa.large_string()) for piece in pieces]
        elif pa.types.is_list(kind):
            inner = pa.large_string() if pa.types.is_string(kind.value_type) else kind.value_type
            pieces = [piece.cast(pa.large_list(inner)) for piece in pieces]
    return pa.concat_arrays(pieces) if pieces else pa.array([], kind)


def _by_id(columns: dict[str, pa.Array]) -> Indices | None:
    """Bring the columns into the byte order of the sample ids; the manifest's rows in it, None where it is theirs."""
    if _ascending(columns["sample_id"]):
        return None
    rows = pc.sort_indices(columns["sample_id"])
    for name in columns:
        columns[name] = columns[name].take(rows)
    if not _ascending(columns["sample_id"]):
        twice = next(row for row in pc.value_counts(columns["sample_id"]) if row["counts"].as_py() > 1)
        raise ConfigError(f"the manifest names sample {twice['values']} twice; make it again: run --until validate")
    return np.asarray(rows, np.int64)


def _ascending(ids: pa.Array) -> bool:
    """Whether every id is greater than the one before it."""
    return len(ids) < 2 or bool(pc.all(pc.less(ids[:-1], ids[1:])).as_py())


def _ranked(column: pa.Array) -> tuple[Ranks, list[str]]:
    """Each row's place among the distinct values in byte order, and those values; null counts as empty."""
    encoded = column.fill_null("").dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(order), np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    return ranks[encoded.indices.to_numpy()], encoded.dictionary.take(order).to_pylist()


def _group_ranks(columns: dict[str, pa.Array], params: ShardParams) -> tuple[Ranks, list[str]]:
    """Each row's group, as its place among all groups by name."""
    if params.group == "none":
        return np.zeros(len(columns["sample_id"]), np.int32), [""]
    if params.group == "grid":
        longitude, latitude = (columns.pop(name) for name in COORDINATES)
        return _ranked(cells(columns["sample_id"], longitude, latitude, params.grid_degrees))
    return _ranked(columns[params.group])


def _split_ranks(column: pa.Array) -> Ranks:
    ranks, names = _ranked(column)
    unknown = sorted(set(names) - set(SPLITS))
    if unknown:
        raise ConfigError(f"the manifest has the split {unknown[0]!r}; known: {', '.join(SPLITS)}")
    return np.array([SPLITS.index(name) for name in names], np.int32)[ranks]


def _section_bounds(section: npt.NDArray[np.integer[Any]]) -> Indices:
    """Edges of the runs of equal split and group: no shard crosses one."""
    return np.concatenate([[0], np.flatnonzero(np.diff(section)) + 1, [len(section)]]).astype(np.int64)


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


class _Fingerprints:
    """sha256 of all that a shard's bytes depend on: encoding, schema and its samples in order."""

    def __init__(self, ends: Indices, schema: Schema, encoding: str) -> None:
        head = {"encoding": {"name": encoding, "version": ENCODING_VERSION}, "schema": schema_to_json(schema)}
        self._ends = ends
        self._fresh = hashlib.sha256(canonical_json(head) + b"\n")
        self._current = self._fresh.copy()
        self._row = 0
        self.of_shards: list[str] = []
        """[shard] of those that are complete."""

    def update(self, offsets: Indices, content: memoryview) -> None:
        """Add the next samples' lines, which ``offsets`` tell apart."""
        first, last = self._row, self._row + len(offsets) - 1
        while self._row < last:
            end = int(self._ends[len(self.of_shards)])
            upto = min(last, end)
            self._current.update(content[offsets[self._row - first] : offsets[upto - first]])
            self._row = upto
            if upto == end:
                self.of_shards.append(self._current.hexdigest())
                self._current = self._fresh.copy()


def _lines(sample_id: pa.Array, digest: pa.Array, labels: pa.Array, texts: pa.Array) -> tuple[Indices, memoryview]:
    """One line a sample of id, digest, labels and texts; as offsets and content.

    Every string is preceded by its length, so that no two samples give one line.
    """
    label_list = _join(labels, labels.flatten().cast(pa.string()))
    text_list = _join(texts, _with_length(texts.flatten()))
    lines = pc.binary_join_element_wise(_with_length(sample_id), digest, label_list, text_list, "\t")
    lines = pc.binary_join_element_wise(lines, "", "\n").cast(pa.large_string())
    _, offsets, content = lines.buffers()
    return np.frombuffer(offsets, np.int64)[: len(lines) + 1], memoryview(content)


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
