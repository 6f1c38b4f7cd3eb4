"""``python -m benchmarks.locality.run [METADATA]``: what a change of the samples has written anew.

Shards and bytes rewritten, as a distribution over random draws: for small changes under ``group: none``, and for 1 %
more data under ``none`` and ``month``. METADATA is BigEarthNet v2's ``metadata.parquet``; without it, as many ids are
made up.

A plan for every draw would take hours. So the cut functions of the library run on arrays that are edited instead, and
only on the splits and groups that a change touches; for some draws of every kind the full plan is made as well, and any
difference ends the run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.measure import machine
from benchmarks.plan.manifests import made_up, of_bigearthnet, schema
from shardtrail.config import ShardParams
from shardtrail.planning import make_plan
from shardtrail.planning.cut import exact_cuts, landmark_keys, stable_cuts
from shardtrail.planning.plan import sample_keys
from shardtrail.planning.summary import cost_of_change

HERE = Path(__file__).parent
PATCHES = 480_038
TARGETS = (500, 5000)
PROVED = 2
"""Draws of every kind that are compared with the full plan."""

Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Change:
    """One draw: rows that go, rows whose labels change, and new samples as copies of rows under new ids.

    Attributes:
        month: of the new samples; empty: that of the row each is a copy of.
    """

    removed: Rows
    relabelled: Rows
    copied: Rows
    month: str = ""

    def new_ids(self, ids: npt.NDArray[Any]) -> list[str]:
        """Names of the new samples: no other sample has them."""
        return [f"{ids[row]}_new_{number}" for number, row in enumerate(self.copied.tolist())]


class Shards:
    """The shards of a set of samples under one setting, section by section, and what a change makes of them.

    A shard is known by the sum of its samples' tokens, random numbers that stand for their content.
    """

    def __init__(self, table: pa.Table, params: ShardParams, rng: np.random.Generator) -> None:
        self._params = params
        self._rng = rng
        self.ids = table["sample_id"].to_numpy(zero_copy_only=False)
        split = table["split"].to_numpy(zero_copy_only=False)
        group = (
            table[params.group].to_numpy(zero_copy_only=False) if params.group != "none" else np.full(len(split), "")
        )
        names = np.char.add(np.char.add(split.astype(str), "/"), group.astype(str))
        self._names, self._section = np.unique(names, return_inverse=True)
        self._draws, _ = sample_keys(table["sample_id"].combine_chunks(), params.seed)
        self._tokens = rng.integers(0, 2**64, len(split), dtype=np.uint64)
        order = np.lexsort((self._draws, self._section))
        bounds = np.searchsorted(self._section[order], np.arange(len(self._names) + 1))
        self._members = [order[start:stop] for start, stop in itertools.pairwise(bounds)]
        self._known = [self._cut(self._draws[rows], self._tokens[rows])[0] for rows in self._members]

    @property
    def total(self) -> int:
        """Shards."""
        return sum(map(len, self._known))

    def first_samples(self) -> Rows:
        """The samples before which a cut fell."""
        found = []
        for rows in self._members:
            _, sizes = self._cut(self._draws[rows], self._tokens[rows])
            found.append(rows[np.cumsum(sizes)[:-1]])
        return np.concatenate(found)

    def rewritten(self, change: Change) -> tuple[int, int]:
        """Shards that the change makes and that were not there before, and the samples in them."""
        new_draws, _ = sample_keys(pa.array(change.new_ids(self.ids), pa.string()), self._params.seed)
        new_tokens = self._rng.integers(0, 2**64, len(new_draws), dtype=np.uint64)
        if change.month and self._params.group == "month":
            splits = np.array([name.partition("/")[0] for name in self._names])[self._section[change.copied]]
            made = [self._cut(*_by_draw(new_draws[splits == s], new_tokens[splits == s])) for s in np.unique(splits)]
            return sum(len(sums) for sums, _ in made), sum(int(sizes.sum()) for _, sizes in made)
        tokens = self._tokens.copy()
        tokens[change.relabelled] += np.uint64(1)
        touched = np.unique(self._section[np.concatenate([change.removed, change.relabelled, change.copied])])
        shards = samples = 0
        for section in touched.tolist():
            rows = self._members[section]
            rows = rows[~np.isin(rows, change.removed)] if len(change.removed) else rows
            into = self._section[change.copied] == section
            draws = np.concatenate([self._draws[rows], new_draws[into]])
            sums, sizes = self._cut(*_by_draw(draws, np.concatenate([tokens[rows], new_tokens[into]])))
            fresh = ~np.isin(sums, self._known[section])
            shards += int(fresh.sum())
            samples += int(sizes[fresh].sum())
        return shards, samples

    def _cut(self, draws: Words, tokens: Words) -> tuple[Words, Rows]:
        """[shard] sum of tokens, and number of samples; of one section in the order of its draws."""
        ones, target = np.ones(len(draws), np.int64), self._params.target_samples
        assert target is not None
        if self._params.cut == "exact":
            ends = exact_cuts(ones, target)
        else:
            ends = stable_cuts(ones, landmark_keys(draws, ones, target), target)
        starts = np.array([0, *ends[:-1]], np.int64)
        return np.add.reduceat(tokens, starts), np.diff(np.array([0, *ends], np.int64))


def _by_draw(draws: Words, tokens: Words) -> tuple[Words, Words]:
    order = np.argsort(draws, kind="stable")
    return draws[order], tokens[order]


def small_changes(
    shards: Shards, rows: int, rng: np.random.Generator, draws: int
) -> Iterator[tuple[str, list[Change]]]:
    """The kinds of small change, each with its draws."""
    none = np.empty(0, np.int64)
    at_cuts = shards.first_samples()

    def some(count: int) -> Rows:
        return rng.choice(rows, count, replace=False).astype(np.int64)

    yield "1 added", [Change(none, none, some(1)) for _ in range(draws)]
    yield "1 removed", [Change(some(1), none, none) for _ in range(draws)]
    yield "1 removed at a cut", [Change(rng.choice(at_cuts, 1), none, none) for _ in range(draws)]
    yield "37 relabelled", [Change(none, some(37), none) for _ in range(draws)]
    yield "100 added", [Change(none, none, some(100)) for _ in range(draws)]


def growth(rows: int, rng: np.random.Generator, draws: int) -> Iterator[tuple[str, list[Change]]]:
    """1 % more samples, all of one new month or spread over the months as the others are."""
    none, count = np.empty(0, np.int64), rows // 100
    for name, month in (("1 % added, of a new month", "2018-06"), ("1 % added, of all months", "")):
        yield name, [Change(none, none, rng.choice(rows, count, replace=False), month) for _ in range(draws)]


def prove(table: pa.Table, before: pa.Table, params: ShardParams, change: Change, found: tuple[int, int]) -> None:
    """Make the full plan of the changed manifest.

    Raises:
        SystemExit: it has another number of new shards, or of samples in them.
    """
    ids = table["sample_id"].to_numpy(zero_copy_only=False)
    added = table.take(pa.array(change.copied))
    added = added.set_column(0, "sample_id", pa.array(change.new_ids(ids), pa.string()))
    if change.month:
        place = table.column_names.index("month")
        added = added.set_column(place, "month", pa.array([change.month] * len(added), pa.string()))
    if len(change.relabelled):
        digests = table["digest"].to_numpy(zero_copy_only=False)
        digests[change.relabelled] = "0" * 32
        table = table.set_column(table.column_names.index("digest"), "digest", pa.array(digests, pa.string()))
    kept = np.ones(len(table), bool)
    kept[change.removed] = False
    after = make_plan(pa.concat_tables([table.filter(pa.array(kept)), added]), schema(), params)
    cost = cost_of_change(before, after)
    if (len(cost.written), cost.samples) != found:
        raise SystemExit(f"{params}: the plan writes {len(cost.written)} shards, {cost.samples} samples; here {found}")


def measure(table: pa.Table, draws: int) -> Iterator[dict[str, Any]]:
    """One row a setting and kind of change."""
    for target in TARGETS:
        for group, cut in (("none", "stable"), ("none", "exact"), ("month", "stable")):
            params = ShardParams(group=group, cut=cut, target_samples=target)
            rng = np.random.default_rng(target)
            shards = Shards(table, params, rng)
            before = make_plan(table, schema(), params)
            kinds = [*(small_changes(shards, len(table), rng, draws) if group == "none" else ())]
            kinds += growth(len(table), rng, draws) if cut == "stable" else ()
            for kind, changes in kinds:
                found = [shards.rewritten(change) for change in changes]
                for change, each in list(zip(changes, found, strict=True))[:PROVED]:
                    prove(table, before, params, change, each)
                share = [100 * samples / len(table) for _, samples in found]
                row = {"target": target, "group": group, "cut": cut, "change": kind, "draws": draws}
                row |= {"of_shards": shards.total, "shards": _spread([each for each, _ in found])}
                yield row | {"percent_of_bytes": _spread(share)}


def _spread(values: list[float]) -> dict[str, float]:
    quantiles = dict(zip(("median", "p90", "p99"), np.percentile(values, [50, 90, 99], method="higher"), strict=True))
    return {name: round(float(value), 3) for name, value in quantiles.items()} | {
        "mean": round(float(np.mean(values)), 3),
        "max": round(float(np.max(values)), 3),
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("metadata", type=Path, nargs="?", help="BigEarthNet v2's metadata.parquet")
    parser.add_argument("--draws", type=int, default=500)
    options = parser.parse_args()
    table = of_bigearthnet(options.metadata) if options.metadata else made_up(PATCHES)
    table = table.drop_columns("files")
    rows = []
    for row in measure(table, options.draws):
        rows.append(row)
        shards, share = row["shards"], row["percent_of_bytes"]
        print(
            f"{row['group']:6}{row['cut']:7}{row['target']:6} {row['change']:26} of {row['of_shards']:5} shards: "
            + " ".join(f"{name} {value:g}" for name, value in shards.items())
            + f" | % of bytes: median {share['median']:.2f} p99 {share['p99']:.2f} max {share['max']:.2f}",
            flush=True,
        )
    samples = {"rows": len(table), "of": "BigEarthNet v2" if options.metadata else "made-up ids"}
    versions = {".venv": {"numpy": np.__version__, "pyarrow": pa.__version__}}
    with tempfile.TemporaryDirectory() as scratch:
        found = machine(Path(scratch))
    result = {"samples": samples, "proved": PROVED, "rows": rows, "versions": versions, "machine": found}
    (HERE / "result.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
