"""What new samples would have written anew under the present settings, tried out with made-up ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardtrail.config import ShardParams
from shardtrail.manifest import read_table
from shardtrail.planning.plan import key_columns, shared_out


@dataclass(frozen=True, slots=True)
class Growth:
    """What some new samples would cost.

    Attributes:
        what: the new samples, as a phrase.
        samples: their number.
        draws: how often they were drawn; the other figures are of the median draw by bytes.
        shards: that would be written, ``of_shards`` after the change.
        bytes: nominal payload of those, the new samples included.
    """

    what: str
    samples: int
    draws: int
    shards: int
    of_shards: int
    bytes: int


def growth_of(manifest: Path, params: ShardParams) -> tuple[Growth, ...]:
    """One new sample, 1 % more, and, where samples are grouped by a column, 1 % more in a group that is not there yet.

    New samples are copies of samples drawn at random, under new ids: they share splits and groups as the present ones
    do. Draws are seeded, so that the same manifest gives the same figures.
    """
    names = ["sample_id", "split", "bytes", *key_columns(manifest, params)]
    table = read_table(manifest, names)
    if not table.num_rows:
        return ()
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 2**64, 2 * table.num_rows + 1, dtype=np.uint64)
    before, _ = _shards(table, tokens, params)
    percent = -(-table.num_rows // 100)
    new_group = params.group if params.group in table.column_names and params.group != "split" else ""

    def tried(what: str, count: int, draws: int, column: str = "") -> Growth:
        found = []
        for _ in range(draws):
            rows = rng.choice(table.num_rows, count, replace=False)
            keys, sizes = _shards(_with_new(table, rows, column), tokens, params)
            fresh = ~np.isin(keys, before)
            found.append((int(sizes[fresh].sum()), int(fresh.sum()), len(keys)))
        size, shards, of_shards = sorted(found)[draws // 2]
        return Growth(what, count, draws, shards, of_shards, size)

    tries = [tried("one new sample", 1, 3), tried(f"1 % new samples ({percent:,})", percent, 1)]
    if new_group:
        tries.append(tried(f"1 % new samples of a new {new_group}", percent, 1, new_group))
    return tuple(tries)


def _with_new(table: pa.Table, rows: npt.NDArray[np.int64], new_group: str) -> pa.Table:
    """The table and copies of these rows under ids that no sample has."""
    added = table.take(pa.array(rows))
    ids = [f"{name}\0new" for name in added["sample_id"].to_pylist()]
    added = added.set_column(table.column_names.index("sample_id"), table.schema.field("sample_id"), pa.array(ids))
    if new_group:
        group = pa.array(["\0new"] * len(rows), pa.string())
        added = added.set_column(table.column_names.index(new_group), table.schema.field(new_group), group)
    return pa.concat_tables([table, added])


def _shards(
    table: pa.Table, tokens: npt.NDArray[np.uint64], params: ShardParams
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """[shard] the sum of its samples' tokens, by which it is known again, and its nominal bytes."""

    def read(names: Sequence[str]) -> list[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = table.select(names).to_batches()
        return batches

    rows, sizes, _, _, ends = shared_out(read, table.schema, params)
    starts = np.array([0, *ends[:-1]], np.int64)
    return np.add.reduceat(tokens[rows], starts), np.add.reduceat(sizes, starts)
