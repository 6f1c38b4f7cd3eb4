"""The order of an epoch, and that the pipeline reads exactly it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from tiny_dataset import SCHEMA, arrays, write_dataset

from shardtrail.dataset import load_dataset
from shardtrail.errors import ConfigError, ShardError
from shardtrail.reading import open_dataset
from shardtrail.reading.files import shard_files
from shardtrail.reading.order import plan_epoch, steps_per_epoch
from shardtrail.reading.pipeline import global_batches, make_parser

EPOCHS = {
    "shards": st.lists(st.integers(0, 40), max_size=6),
    "seed": st.integers(-(2**70), 2**70),
    "epoch": st.integers(0, 2**20),
    "lanes": st.sampled_from([1, 2, 3, 4, 8]),
    "block": st.integers(1, 20),
    "window": st.integers(1, 9),
}


def lines(**epoch):
    return [[tuple(pair) for pair in lane.records().tolist()] for lane in plan_epoch(**epoch)]


@given(**EPOCHS)
def test_an_epoch_is_every_record_once(**epoch):
    """Whatever the shards, seed and sizes, the lanes together hold each record exactly once, in equal shares."""
    lanes = lines(**epoch)

    wanted = [(shard, record) for shard, count in enumerate(epoch["shards"]) for record in range(count)]
    assert sorted(pair for lane in lanes for pair in lane) == wanted
    assert max(map(len, lanes)) - min(map(len, lanes)) <= 1


@given(start=st.integers(0, 250), **EPOCHS)
def test_a_later_start_is_the_rest_of_the_unbroken_epoch(start, **epoch):
    """A lane entered at any record yields what was left of it, without what came before."""
    for lane in plan_epoch(**epoch):
        assert lane.records(start).tolist() == lane.records()[start:].tolist()


@given(micro_batch=st.integers(1, 9), **EPOCHS)
def test_steps_cover_the_longest_lane(micro_batch, **epoch):
    """The steps of an epoch are just enough for its longest lane."""
    longest = max(len(lane) for lane in plan_epoch(**epoch))
    steps = steps_per_epoch(sum(epoch["shards"]), micro_batch * epoch["lanes"], epoch["lanes"])

    assert (steps - 1) * micro_batch < longest <= steps * micro_batch or steps == longest == 0


def test_the_order_of_a_seed_is_pinned():
    """A seed's order never changes: resumed runs and recorded results rely on it."""
    assert lines(shards=[5, 3, 9], seed=0, epoch=0, lanes=2, block=2, window=2) == [
        [(0, 4), (0, 1), (0, 0), (2, 8), (0, 2), (0, 3), (2, 6), (2, 7)],
        [(2, 0), (2, 1), (1, 2), (1, 0), (2, 2), (2, 3), (1, 1), (2, 5), (2, 4)],
    ]


def test_seeds_and_epochs_differ():
    """Another seed or epoch gives another order."""
    orders = [lines(shards=[40, 40], seed=s, epoch=e, lanes=2) for s in (0, 1) for e in (0, 1)]

    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


@pytest.fixture(scope="module", params=["raw", "int64"])
def dataset_root(request, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp(request.param)
    write_dataset(root, {"train": [17, 5, 30], "validation": [4, 3]}, request.param)
    return root


def ids(batches) -> list[str]:
    return [name.decode() for batch in batches for name in np.ravel(batch.sample_id) if name]


def test_records_come_back_as_they_were_written(dataset_root):
    """Both encodings give the stored arrays, dtypes and labels of every sample, in plan order without a seed."""
    batches = list(open_dataset(dataset_root, "train", batch_size=10, seed=None).as_numpy_iterator())

    assert ids(batches) == [f"s{sample:03}" for sample in range(52)]
    assert [batch.weight.sum() for batch in batches] == [10, 10, 10, 10, 10, 2]
    for sample in range(52):
        batch, row = batches[sample // 10], sample % 10
        values, labels = arrays(sample)
        for feature in SCHEMA.features:
            assert batch.bands[feature.name].dtype == np.dtype(feature.dtype)
            np.testing.assert_array_equal(batch.bands[feature.name][row], values[feature.name])
        assert np.flatnonzero(batch.labels[row]).tolist() == labels


@pytest.mark.parametrize("start", [0, 2, 5])
def test_the_pipeline_follows_the_plan(dataset_root, start):
    """A shuffled epoch yields the planned records in the planned order, from any batch on."""
    files = shard_files(load_dataset(dataset_root / "data/dataset.json"), dataset_root / "data/shards", ["train"])
    (lane,) = plan_epoch(files["train"].records, seed=3, epoch=1, lanes=1)
    firsts = np.cumsum([0, *files["train"].records])

    read = ids(open_dataset(dataset_root, batch_size=10, seed=3, epoch=1, start=start).as_numpy_iterator())

    assert read == [f"s{firsts[shard] + record:03}" for shard, record in lane.records(10 * start)]


@pytest.mark.parametrize("start", [0, 3])
def test_global_batches_do_not_depend_on_replicas(dataset_root, start):
    """One, two or four replicas are handed the same micro-batches of the same steps, and nothing is lost."""
    dataset = load_dataset(dataset_root / "data/dataset.json")
    files = shard_files(dataset, dataset_root / "data/shards", ["train"])["train"]
    lanes = plan_epoch(files.records, seed=0, epoch=0, lanes=4)
    steps = steps_per_epoch(52, 8, 4)

    def micro_batches(replicas):
        elements = global_batches(
            files, lanes, make_parser(dataset, ["B05"]), micro_batch=2, steps=steps, start=start, replicas=replicas
        ).as_numpy_iterator()
        return [row.tolist() for element in elements for row in element.sample_id]

    one = micro_batches(1)
    assert len(one) == 4 * (steps - start)
    assert one == micro_batches(2) == micro_batches(4)
    if start == 0:
        assert sorted(name for row in one for name in row if name) == [f"s{i:03}".encode() for i in range(52)]


def test_a_missing_band_is_refused(dataset_root):
    """A band that the records do not hold is named before anything is read."""
    with pytest.raises(ConfigError, match=r"asks for VH, which data/dataset\.json does not hold"):
        open_dataset(dataset_root, bands=["B02", "VH"])


@pytest.mark.parametrize("damage", ["cut", "gone", "no index"])
def test_shards_are_checked_before_reading(tmp_path, damage):
    """A shard that is gone, has lost records or its index is named with the command that rebuilds it."""
    shard = write_dataset(tmp_path, {"train": [3, 3]}).shards[1]
    path = tmp_path / "data/shards" / shard.file
    if damage == "cut":
        os.truncate(path, shard.bytes * 2 // 3)
    else:
        (path if damage == "gone" else path.with_suffix(".index")).unlink()

    with pytest.raises(ShardError, match=rf"(?s)1 of 2 shards.*{shard.file}.*--only train-00001"):
        open_dataset(tmp_path)


def test_left_over_shards_are_not_read(tmp_path):
    """Only what dataset.json names is read, whatever else lies in the folder."""
    write_dataset(tmp_path, {"train": [9, 9]})
    write_dataset(tmp_path, {"train": [4]})

    assert sorted(ids(open_dataset(tmp_path).as_numpy_iterator())) == [f"s{i:03}" for i in range(4)]


def test_a_label_outside_the_vocabulary_is_an_error(dataset_root):
    """A label index that no class has stops reading on every device; it is not trained on."""
    example = tf.train.Example()
    example.features.feature["labels"].int64_list.value.append(4)
    example.features.feature["sample_id"].bytes_list.value.append(b"s")
    parser = make_parser(load_dataset(dataset_root / "data/dataset.json"), [])

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"= 4 is not in \[0, 4\)"):
        parser(tf.constant([example.SerializeToString()]))
