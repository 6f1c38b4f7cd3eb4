"""Planning: every sample once, a function of the set, and a change that stays local."""

from __future__ import annotations

import hashlib
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtrail.config import ShardParams
from shardtrail.dataset import SPLITS, schema_to_json
from shardtrail.errors import ConfigError
from shardtrail.files import canonical_json
from shardtrail.manifest import table_bytes, write_table
from shardtrail.planning import PLAN_SCHEMA, make_plan, plan_manifest
from shardtrail.planning import plan as plan_module
from shardtrail.planning.cut import NO_KEY, exact_cuts, landmark_keys, stable_cuts
from shardtrail.planning.growth import growth_of
from shardtrail.planning.plan import shard_names
from shardtrail.planning.summary import cost_of_change, summarise
from shardtrail.samples import Feature, Schema

SCHEMA = Schema((Feature("B02", "uint16", (120, 120)),), ("patch_name",), ("Pastures", "Mixed forest"))
MIB = 2**20

GOLDEN = [
    ("train-00000", "train-7b2b33ab7010", "00008 00000 00001"),
    ("train-00001", "train-75201db6733d", "00004 00003 00005"),
    ("train-00002", "train-4758cb6ac95c", "00007 00002 00006"),
    ("validation-00000", "validation-2893ef2bf31e", "val2 val0 val1"),
]


def sample(name: str, **values: Any) -> dict[str, Any]:
    """One manifest row."""
    row = {
        "sample_id": name,
        "split": "train",
        "labels": [1],
        "digest": hashlib.md5(name.encode()).hexdigest(),
        "bytes": MIB,
        "region": "T33UUP",
        "month": "2017-06",
        "acquired": "2017-06-13",
        "texts": [name],
    }
    return row | values


def manifest(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """A manifest of these rows, sorted as the true one is."""
    types = {"labels": pa.list_(pa.int32()), "texts": pa.list_(pa.string()), "bytes": pa.int64()}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in sample("")])
    return pa.Table.from_pylist(sorted(rows, key=lambda row: row["sample_id"].encode()), schema=schema)


def patches(count: int, **values: Any) -> list[dict[str, Any]]:
    return [sample(f"S2A_{number:05}", **values) for number in range(count)]


def plan_of(rows: Sequence[dict[str, Any]], **params: Any) -> pa.Table:
    return make_plan(manifest(rows), SCHEMA, ShardParams(**params))


def shards_of(plan: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """Rows by shard, in plan order."""
    return {name: list(rows) for name, rows in groupby(plan.to_pylist(), key=lambda row: row["shard"])}


def sizes_of(plan: pa.Table) -> list[int]:
    return [len(rows) for rows in shards_of(plan).values()]


rows_strategy = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6),
    st.fixed_dictionaries(
        {
            "split": st.sampled_from(SPLITS),
            "region": st.sampled_from(["", "T29SNB", "T33UUP"]),
            "acquired": st.sampled_from(["", "2017-06-13", "2018-01-02"]),
            "bytes": st.integers(1, 5 * MIB),
            "labels": st.lists(st.integers(0, 1), unique=True).map(sorted),
        }
    ),
    max_size=60,
).map(lambda by_name: [sample(name, **values) for name, values in by_name.items()])

params_strategy = st.fixed_dictionaries(
    {
        "group": st.sampled_from(["none", "region", "month", "acquired"]),
        "order": st.sampled_from(["shuffled", "natural"]),
        "cut": st.sampled_from(["stable", "exact"]),
        "seed": st.integers(-(2**70), 2**70),
    }
).flatmap(
    lambda fixed: st.one_of(
        st.builds(dict, st.just(fixed), target_samples=st.integers(1, 30)),
        st.builds(dict, st.just(fixed), target_mib=st.floats(0.1, 60)),
    )
)


@given(rows_strategy, params_strategy)
def test_every_sample_is_one_record_of_one_shard(rows, params):
    """Whatever the settings: no sample twice or lost, records count from 0, no shard crosses a split or group."""
    plan = plan_of(rows, **params)
    assert plan.schema.equals(PLAN_SCHEMA)
    assert sorted(plan["sample_id"].to_pylist()) == sorted(row["sample_id"] for row in rows)
    shards = shards_of(plan)
    assert len(shards) == len(set(plan["shard"].to_pylist())) == len(set(plan["address"].to_pylist()))
    by_id = {row["sample_id"]: row for row in rows}
    for name, records in shards.items():
        assert [record["record"] for record in records] == list(range(len(records)))
        sources = [by_id[record["sample_id"]] for record in records]
        group = params["group"]
        assert {source["split"] for source in sources} == {records[0]["split"]}
        assert {source.get(group, "") for source in sources} == {records[0]["group"]}
        assert name == f"{records[0]['split']}-{records[0]['fingerprint'][:12]}"
        assert all(record["digest"] == by_id[record["sample_id"]]["digest"] for record in records)
        assert all(record["bytes"] == by_id[record["sample_id"]]["bytes"] for record in records)
    splits = [records[0]["split"] for records in shards.values()]
    assert splits == sorted(splits, key=SPLITS.index)
    addresses = [records[0]["address"] for records in shards.values()]
    counts = {split: splits.count(split) for split in SPLITS}
    assert addresses == [f"{split}-{number:05}" for split in SPLITS for number in range(counts[split])]


@given(rows_strategy, params_strategy, st.randoms(use_true_random=False))
def test_a_plan_is_a_function_of_the_set(rows, params, rng):
    """The order of the manifest's rows does not matter, nor how its columns are chunked."""
    table = manifest(rows)
    shuffled = table.take(pa.array(rng.sample(range(len(rows)), len(rows)), pa.int64()))
    half = len(rows) // 2
    chunked = pa.concat_tables([shuffled.slice(half), shuffled.slice(0, half)])
    assert make_plan(chunked, SCHEMA, ShardParams(**params)).equals(make_plan(table, SCHEMA, ShardParams(**params)))


@given(st.integers(1, 3000), st.integers(1, 200), st.integers(0, 5))
def test_stable_sizes_stay_in_bounds(count, target, seed):
    """0.75 to 1.25 of the target, wherever shards lie in their run; only small runs give one or two smaller shards."""
    keys = np.random.default_rng(seed).integers(0, 2**63, count, dtype=np.uint64)
    ends = stable_cuts(np.ones(count, np.int64), keys, target)
    sizes = np.diff([0, *ends])
    assert ends[-1] == count
    off = max(target // 4, min(1, target // 2))
    assert sizes.max() <= target + off
    if count >= 2 * (target - off):
        assert sizes.min() >= target - off
    elif count > target + off:
        assert len(sizes) == 2 and sizes.min() >= (target + off) // 2
    else:
        assert len(sizes) == 1


@given(st.lists(st.integers(0, 400), min_size=1, max_size=300), st.integers(1, 1000))
def test_stable_cuts_of_any_sizes_advance_and_end(sizes, target):
    """Empty, equal or huge samples: cuts ascend to the end, and only a single sample is far larger than the target."""
    keys = np.random.default_rng(0).integers(0, 2**63, len(sizes), dtype=np.uint64)
    ends = stable_cuts(np.array(sizes, np.int64), keys, target)
    assert ends == sorted(set(ends)) and ends[-1] == len(sizes) and ends[0] > 0
    for start, end in zip([0, *ends], ends, strict=False):
        assert sum(sizes[start:end]) <= 1.5 * target or end - start == 1


@given(st.integers(1, 3000), st.integers(1, 200))
def test_exact_shards_are_equal(count, target):
    """Sizes differ by one sample at most, and lie between 0.6 and 1.2 of the target, to within a sample."""
    sizes = np.diff([0, *exact_cuts(np.ones(count, np.int64), target)])
    assert sizes.sum() == count and sizes.max() - sizes.min() <= 1
    assert sizes.max() <= 1.2 * target + 1
    assert len(sizes) == 1 or sizes.min() >= 0.6 * target - 1


@given(st.lists(st.integers(0, 400), min_size=1, max_size=300), st.integers(1, 1000))
def test_exact_cuts_of_any_sizes_ascend(sizes, target):
    """Each shard has a sample; with unequal samples a shard's size is off its share by one sample at most."""
    ends = exact_cuts(np.array(sizes, np.int64), target)
    assert ends == sorted(set(ends)) and ends[-1] == len(sizes) and ends[0] > 0
    assert exact_cuts(np.array([], np.int64), target) == []


def test_a_changed_sample_changes_one_shard():
    """Stable: adding or removing one of 5,000 samples usually rewrites one shard of 50; exact: half of them."""
    rows = patches(5000)
    rng = random.Random(0)
    written: dict[str, list[int]] = {"stable": [], "exact": []}
    for cut in written:
        before = plan_of(rows, target_samples=100, cut=cut)
        for trial in range(20):
            added = [*rows, sample(f"S2B_{trial:05}")]
            removed = [row for row in rows if row["sample_id"] != f"S2A_{rng.randrange(5000):05}"]
            for changed in (added, removed):
                after = plan_of(changed, target_samples=100, cut=cut)
                written[cut].append(len(cost_of_change(before, after).written))
    assert statistics.median(written["stable"]) == 1
    assert statistics.mean(written["stable"]) < 2
    assert statistics.median(written["exact"]) > 10


def test_the_cut_hash_is_not_the_order_hash():
    """Cuts fall anywhere in the window: with one hash for both, every shard would have 80 samples."""
    sizes = sizes_of(plan_of(patches(10_000), target_samples=100))
    assert 90 < statistics.mean(sizes) < 110
    assert len(set(sizes)) > 20


def test_a_new_digest_label_or_text_changes_exactly_its_shard():
    """A sample whose content changed keeps its place; its shard, and only that, gets a new name."""
    rows = patches(300)
    before = plan_of(rows, target_samples=20)
    for change in ({"digest": "0" * 32}, {"labels": [0, 1]}, {"texts": ["other"]}):
        after = plan_of([*rows[:77], rows[77] | change, *rows[78:]], target_samples=20)
        assert after["sample_id"].equals(before["sample_id"])
        differing = {
            name
            for name, old in zip(after["shard"].to_pylist(), before["shard"].to_pylist(), strict=True)
            if name != old
        }
        assert differing == {row["shard"] for row in after.to_pylist() if row["sample_id"] == "S2A_00077"}


def test_whatever_decides_the_bytes_renames_every_shard():
    """Encoding, schema and vocabulary are in the fingerprint; a column that is not stored is not."""
    rows = patches(40)
    table, params = manifest(rows), ShardParams(target_samples=10)
    names = set(make_plan(table, SCHEMA, params)["shard"].to_pylist())
    swapped = Schema(SCHEMA.features, SCHEMA.texts, SCHEMA.vocabulary[::-1])
    floats = Schema((Feature("B02", "float32", (120, 120)),), SCHEMA.texts, SCHEMA.vocabulary)
    for other in (swapped, floats):
        assert not names & set(make_plan(table, other, params)["shard"].to_pylist())
    assert not names & set(plan_of(rows, target_samples=10, encoding="int64")["shard"].to_pylist())
    moved = plan_of([row | {"region": "elsewhere"} for row in rows], target_samples=10)
    assert names == set(moved["shard"].to_pylist())


def test_strings_that_look_like_separators_are_told_apart():
    """Two different lists of texts never give one fingerprint, whatever characters they hold."""
    lists = [["a", "b"], ["a,1:b"], ["a\t", "b"], ["a", "\tb"], ["a\n", "b"], ["", "ab"], ["ab", ""], ["1:a", "b"]]
    fingerprints = {plan_of([sample("x", texts=texts)])["fingerprint"][0].as_py() for texts in lists}
    assert len(fingerprints) == len(lists)


def test_fingerprints_over_many_batches():
    """The fingerprint is sha256 over the head and one line a sample: recomputed here in plain Python."""
    count = 150_000
    ids = pa.array([f"S2A_{number:06}" for number in range(count)])
    zeros = pa.array(np.zeros(count, np.int32))
    one_each = pa.array(np.arange(count + 1, dtype=np.int32))
    table = pa.table(
        {
            "sample_id": ids,
            "split": pa.array(["train"]).take(zeros),
            "labels": pa.ListArray.from_arrays(one_each, zeros),
            "digest": pa.array(["d" * 32]).take(zeros),
            "bytes": pa.array(np.ones(count, np.int64)),
            "texts": pa.ListArray.from_arrays(one_each, ids),
        }
    )
    plan = make_plan(table, SCHEMA, ShardParams(target_samples=40_000))
    head = canonical_json({"encoding": {"name": "raw", "version": 1}, "schema": schema_to_json(SCHEMA)}) + b"\n"
    for records in shards_of(plan).values():
        lines = "".join(f"10:{r['sample_id']}\t{'d' * 32}\t0\t10:{r['sample_id']}\n" for r in records)
        assert records[0]["fingerprint"] == hashlib.sha256(head + lines.encode()).hexdigest()


def test_natural_order_is_acquisition_then_id():
    """Within a group, earlier images come first, and ids settle what is left."""
    rows = [
        sample("d", acquired="2017-06-01"),
        sample("a", acquired="2018-01-01"),
        sample("c", acquired=""),
        sample("b", acquired="2017-06-01"),
    ]
    assert plan_of(rows, order="natural")["sample_id"].to_pylist() == ["c", "b", "d", "a"]


def test_shuffled_shards_are_fair_draws():
    """Each shard of a set that is half one country, half another holds a fair share of both."""
    rows = [*patches(1000), *(sample(f"T2B_{number:05}") for number in range(1000))]
    for records in shards_of(plan_of(rows, target_samples=100)).values():
        share = sum(record["sample_id"].startswith("S2A") for record in records) / len(records)
        assert 0.3 < share < 0.7


def test_another_seed_draws_another_plan():
    """The seed moves order and cuts; the set of samples stays."""
    one, two = (plan_of(patches(500), target_samples=50, seed=seed) for seed in (0, 1))
    assert one["sample_id"].to_pylist() != two["sample_id"].to_pylist()
    assert sizes_of(one) != sizes_of(two)


def test_a_target_in_mib_counts_nominal_bytes():
    """Shards of unequal samples are near the target in bytes; one larger than the window is alone."""
    rows = [sample(f"s{number:04}", bytes=MIB * (1 + number % 3)) for number in range(900)]
    sizes = [sum(record["bytes"] for record in records) for records in shards_of(plan_of(rows, target_mib=40)).values()]
    assert all(28 * MIB <= size <= 50 * MIB for size in sizes)
    assert all(0.75 * 192 <= size <= 1.25 * 192 for size in sizes_of(plan_of(patches(1920))))
    giant = shards_of(plan_of([*rows, sample("giant", bytes=500 * MIB)], target_mib=40)).values()
    assert [len(records) for records in giant if any(record["sample_id"] == "giant" for record in records)] == [1]


def test_small_targets_leave_a_choice():
    """With 4 samples a shard, cuts still follow the content: a new sample changes one or two of 50 shards."""
    rows = patches(200)
    before = plan_of(rows, target_samples=4)
    assert set(sizes_of(before)) == {3, 4, 5}
    written = [
        len(cost_of_change(before, plan_of([*rows, sample(f"S2B_{n}")], target_samples=4)).written) for n in range(20)
    ]
    assert statistics.median(written) <= 2 and max(written) < 10
    assert sizes_of(plan_of(rows, target_samples=1)) == [1] * 200


def test_what_cannot_be_planned_is_refused():
    """Unknown groups list the columns; samples named twice, unknown splits and absent columns are named."""
    rows = patches(4)
    with pytest.raises(ConfigError, match=r"no column 'tile'; use none, grid, split, region, month, acquired"):
        plan_of(rows, group="tile")
    with pytest.raises(ConfigError, match="no column 'labels'"):
        plan_of(rows, group="labels")
    with pytest.raises(ConfigError, match="sample S2A_00002 twice"):
        plan_of([*rows, rows[2]])
    with pytest.raises(ConfigError, match="the split 'holdout'; known: train, validation, test"):
        plan_of([*rows, sample("x", split="holdout")])
    with pytest.raises(ConfigError, match=r"no \(complete\) column texts"):
        make_plan(manifest(rows).drop_columns("texts"), SCHEMA, ShardParams())
    with pytest.raises(ConfigError, match=r"train-abababababab .*another shard\.seed"):
        shard_names(["train", "train", "test"], ["ab" * 32, "ab" * 6 + "cd" * 26, "ab" * 32])


def test_no_sample_no_shard():
    """An empty manifest gives an empty plan of the same columns."""
    plan = plan_of([])
    assert plan.num_rows == 0 and plan.schema.equals(PLAN_SCHEMA)


def test_the_plan_is_the_same_in_any_process(tmp_path):
    """Hash seed, locale, time zone and working folder do not matter."""
    pq.write_table(manifest(patches(200)), tmp_path / "manifest.parquet")
    script = f"""
import pyarrow.parquet as pq
from shardtrail.config import ShardParams
from shardtrail.planning import make_plan
from shardtrail.samples import Feature, Schema

manifest = pq.read_table({str(tmp_path / "manifest.parquet")!r})
print(make_plan(manifest, {SCHEMA!r}, ShardParams(group="region", target_samples=20)).to_pylist())
"""
    here = plan_of(patches(200), group="region", target_samples=20).to_pylist()
    for hash_seed, zone, folder in (("0", "UTC", "/"), ("1", "Asia/Kathmandu", str(tmp_path))):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "TZ": zone, "LC_ALL": "C"}
        environment["PYTHONPATH"] = str(Path(__file__).parents[1])
        command = [sys.executable, "-c", script]
        output = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True).stdout
        assert output == f"{here}\n"


def test_golden_plan():
    """The plan of a fixed set never changes: addresses, names and records are pinned."""
    rows = [*patches(9), *(sample(f"S2A_val{n}", split="validation", region="T29SNB") for n in range(3))]
    shards = shards_of(plan_of(rows, target_samples=3, seed=7))
    assert [
        (records[0]["address"], name, " ".join(record["sample_id"][4:] for record in records))
        for name, records in shards.items()
    ] == GOLDEN


def test_a_summary_counts_and_warns():
    """Figures per split and group add up; oversized, undersized and lone shards are pointed out at real sizes."""
    rows = [
        *patches(40, region="T29SNB"),
        *(sample(f"x{n}", region="T33UUP") for n in range(20)),
        *(sample(f"y{n}", split="test") for n in range(10)),
    ]
    plan = plan_of(rows, group="region", target_samples=10)
    summary = summarise(plan)
    assert [(f.split, f.samples) for f in summary.splits] == [("train", 60), ("test", 10)]
    assert [(f.split, f.group, f.samples) for f in summary.groups] == [
        ("train", "T29SNB", 40),
        ("train", "T33UUP", 20),
        ("test", "T33UUP", 10),
    ]
    assert sum(f.bytes for f in summary.groups) == 70 * MIB
    assert sum(f.shards for f in summary.groups) == len(shards_of(plan))
    test = summary.splits[1]
    assert (test.shards, test.smallest, test.median, test.largest) == (1, 10 * MIB, 10 * MIB, 10 * MIB)
    assert summary.warnings == ()

    big = summarise(plan_of(patches(4, bytes=600 * MIB), target_mib=2400))
    assert any("more than 1 GiB (up to 2,400 MiB)" in warning for warning in big.warnings)
    small = summarise(plan_of(patches(1100), target_mib=10))
    assert any("less than 32 MiB" in warning for warning in small.warnings)
    lone = summarise(plan_of(patches(5)))
    assert any("one shard" in warning for warning in lone.warnings)


def test_the_cost_of_a_change():
    """Kept, written, found and dropped shards are told apart; without an old plan everything is to write."""
    rows = patches(300)
    old, new = plan_of(rows, target_samples=30), plan_of([*rows, sample("S2B_1")], target_samples=30)
    change = cost_of_change(old, new)
    names = list(shards_of(new))
    assert change.kept + len(change.written) == len(names) and change.found == ()
    assert change.samples == sum(len(shards_of(new)[name]) for name in change.written)
    assert change.bytes == change.samples * MIB
    assert set(change.dropped) == set(shards_of(old)) - set(names)

    again = cost_of_change(old, new, on_disk=names)
    assert (again.written, again.found, again.samples, again.bytes) == ((), change.written, 0, 0)
    first = cost_of_change(None, new)
    assert (first.kept, list(first.written), first.dropped, first.samples) == (0, names, (), 301)


def places(*pairs: tuple[str, str]) -> pa.Table:
    """A manifest of samples at these places of longitude and latitude."""
    table = manifest([sample(f"s{number:02}") for number in range(len(pairs))])
    for name, values in zip(("longitude", "latitude"), zip(*pairs, strict=True), strict=True):
        table = table.append_column(name, pa.array(values, pa.string()))
    return table


@given(
    st.lists(
        st.tuples(
            st.one_of(st.just(""), st.floats(-180, 180).map(lambda value: f"{value:.6f}")),
            st.one_of(st.just(""), st.floats(-90, 90).map(lambda value: f"{value:.6f}")),
        ),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from([0.001, 0.1, 0.7, 1.0, 7.5, 90.0]),
)
def test_a_cell_of_the_grid_holds_what_lies_in_it(pairs, degrees):
    """No shard crosses a cell; a cell's name is its south-western corner; without a place, samples are on their own."""
    plan = make_plan(places(*pairs), SCHEMA, ShardParams(group="grid", grid_degrees=degrees, target_samples=5))
    assert sorted(plan["sample_id"].to_pylist()) == [f"s{number:02}" for number in range(len(pairs))]
    for records in shards_of(plan).values():
        (name,) = {record["group"] for record in records}
        for record in records:
            longitude, latitude = pairs[int(record["sample_id"][1:])]
            assert (name == "") == (longitude == "" or latitude == "")
            if name:
                south, west = float(name[:7]), float(name[7:])
                east_of = (float(longitude) + 180) % 360 - 180 - west
                assert -1e-3 <= east_of <= degrees + 1e-3
                assert -1e-3 <= float(latitude) - south <= degrees + 1e-3


def test_cells_are_named_by_their_corner():
    """The default side is a degree; an edge belongs to the cell north-east of it; the antimeridian is one line."""
    pairs = [("13.5", "48.2"), ("13.0", "48.0"), ("-0.000001", "-0.000001"), ("180", "90"), ("-180", "89.5"), ("", "")]
    plan = make_plan(places(*pairs), SCHEMA, ShardParams(group="grid"))
    assert dict(zip(plan["sample_id"].to_pylist(), plan["group"].to_pylist(), strict=True)) == {
        "s00": "+48.000+013.000",
        "s01": "+48.000+013.000",
        "s02": "-01.000-001.000",
        "s03": "+89.000-180.000",
        "s04": "+89.000-180.000",
        "s05": "",
    }


def test_places_that_are_none_are_refused():
    """The sample and what it holds are named; a manifest without coordinates says how to come by them."""
    for place in (("east", "48"), ("181", "48"), ("13", "-90.1"), ("nan", "0"), ("inf", "0")):
        with pytest.raises(ConfigError, match=r"sample s01 has the l.*expected decimal degrees"):
            make_plan(places(("1", "1"), place), SCHEMA, ShardParams(group="grid"))
    with pytest.raises(ConfigError, match="has no longitude and no latitude; give each sample these attributes"):
        plan_of(patches(3), group="grid")


@pytest.mark.parametrize("target", [20, 100])
def test_losing_a_sample_beside_a_cut_moves_no_cut(target):
    """Of 30 samples before and behind cuts, all but a few give one new shard when they go, and none gives many."""
    rows = patches(20 * target)
    before = plan_of(rows, target_samples=target)
    shards = list(shards_of(before).values())
    written = []
    for shard in shards[1:16]:
        for record in (shard[0], shard[-1]):
            after = plan_of([row for row in rows if row["sample_id"] != record["sample_id"]], target_samples=target)
            written.append(len(cost_of_change(before, after).written))
    assert statistics.median(written) == 1
    assert sum(count > 1 for count in written) <= len(written) // 4 and max(written) <= 6


@given(st.integers(1, 400), st.integers(1, 50), st.integers(0, 3))
def test_more_landmarks_change_no_key(count, target, seed):
    """Keys of a smaller target are read further in the same list: what was marked keeps its key."""
    draws = np.sort(np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64))
    ones = np.ones(count, np.int64)
    few, many = landmark_keys(draws, ones, target + 7), landmark_keys(draws, ones, target)
    marked = few != NO_KEY
    assert (many[marked] == few[marked]).all()
    assert (many[~marked] >= few[marked].max(initial=0)).all()


def test_a_plan_of_a_file_is_that_of_the_table(tmp_path, monkeypatch):
    """Read span by span, sorted or not, with strings beyond what 32-bit offsets reach: the same plan, byte for byte."""
    rows = [sample(f"S2A_{number:05}", region=f"T{number % 7}", texts=[f"text {number}"]) for number in range(900)]
    table = manifest(rows).replace_schema_metadata({b"shardtrail.schema": canonical_json(schema_to_json(SCHEMA))})
    params = ShardParams(group="region", order="natural", target_samples=20)
    expected = table_bytes(make_plan(table, SCHEMA, params))
    monkeypatch.setattr(plan_module, "_BATCH", 64)
    monkeypatch.setattr(plan_module, "_SPAN", 256)
    monkeypatch.setattr(plan_module, "_LARGE", 1)
    shuffled = table.take(pa.array(random.Random(0).sample(range(900), 900)))
    for name, each in (("sorted", table), ("shuffled", shuffled)):
        write_table(tmp_path / f"{name}.parquet", each)
        assert table_bytes(plan_manifest(tmp_path / f"{name}.parquet", params)) == expected
    with pytest.raises(ConfigError, match="does not exist"):
        plan_manifest(tmp_path / "none.parquet", params)


def test_growth_is_what_the_plan_of_more_samples_writes(tmp_path):
    """One new sample, 1 %, and 1 % of a new month, which writes its own shards alone."""
    rows = [sample(f"S2A_{number:05}", month=f"2017-{1 + number % 12:02}") for number in range(2400)]
    table = manifest(rows).replace_schema_metadata({b"shardtrail.schema": canonical_json(schema_to_json(SCHEMA))})
    write_table(tmp_path / "manifest.parquet", table)
    one, percent, month = growth_of(tmp_path / "manifest.parquet", ShardParams(group="month", target_samples=20))
    assert (one.samples, percent.samples, month.samples) == (1, 24, 24)
    assert 1 <= one.shards <= 3 < month.shards + 3 < percent.shards <= percent.of_shards
    assert month.bytes == 24 * MIB
    exact, *_ = growth_of(tmp_path / "manifest.parquet", ShardParams(cut="exact", target_samples=20))
    assert exact.shards > 10


def test_warnings_tell_of_unwise_groups_and_of_too_few_shards():
    """Fewer shards than readers, a group that holds nearly all, thousands of tiny ones, samples without a place."""
    few = summarise(plan_of(patches(40), target_samples=20), readers=8)
    assert any("2 shards for 8 readers" in warning for warning in few.warnings)

    params = {"group": "region", "target_samples": 20}
    rows = [sample(f"a{n:04}", region="A" if n < 90 else f"B{n}") for n in range(100)]
    one = summarise(plan_of(rows, **params), ShardParams(**params))
    assert any("the group A holds 90% of the samples" in warning for warning in one.warnings)

    many = summarise(
        plan_of([sample(f"a{n:04}", region=f"r{n // 2}") for n in range(2400)], **params), ShardParams(**params)
    )
    assert any("1,200 of 1,200 groups do not fill half a shard" in warning for warning in many.warnings)
    lost = summarise(
        make_plan(places(("", ""), ("1", "1")), SCHEMA, ShardParams(group="grid")), ShardParams(group="grid")
    )
    assert any("1 of 2 samples have no coordinates" in warning for warning in lost.warnings)
