from __future__ import annotations

import json
import shutil

import pytest
from builds import build_all, new_folder, stamps

from shardtrail.dataset import load_dataset
from shardtrail.job import open_job
from shardtrail.records.example import decode_example
from shardtrail.records.index import read_index
from shardtrail.records.scan import read_record
from shardtrail.sharding.view import make_view
from shardtrail.stages.hash import hash_shards
from shardtrail.stages.shard import shard

pytest_plugins = ["build_fixtures"]


def test_links_lead_to_the_shards_in_plan_order(finished):
    """Every shard has one link that says its place and how many there are; links are relative."""
    dataset = load_dataset(finished.folder.dataset)
    for split, figures in dataset.splits.items():
        count = figures["shards"]
        for number, one in enumerate(dataset.of_split(split)):
            link = finished.folder.view / f"{split}-{number:05}-of-{count:05}.tfrecord"
            assert str(link.readlink()) == f"../shards/{one.file}"
            assert link.stat().st_size == one.bytes
    assert len(list(finished.folder.view.iterdir())) == len(dataset.shards) + 2


def test_lengths_and_bytes_are_told(finished):
    """dataset_info.json holds the records of every shard, by split."""
    dataset = load_dataset(finished.folder.dataset)
    info = json.loads((finished.folder.view / "dataset_info.json").read_bytes())

    assert info["version"] == "1.0.0"
    assert {split["name"]: [int(n) for n in split["shardLengths"]] for split in info["splits"]} == {
        split: [one.records for one in dataset.of_split(split)] for split in dataset.splits
    }
    assert {split["filepathTemplate"] for split in info["splits"]} == {"{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}"}


@pytest.mark.parametrize("encoding", ["raw", "int64"])
def test_features_are_those_of_the_records(raw, tmp_path, encoding):
    """features.json names exactly the keys that a record has, with dtype, shape and how arrays are stored."""
    job = new_folder(tmp_path, raw, encoding=encoding)
    _, dataset = build_all(job)
    features = json.loads((job.folder.view / "features.json").read_bytes())["featuresDict"]["features"]
    path = job.folder.shards / dataset.shards[0].file
    example = decode_example(read_record(path, read_index(path.with_suffix(".index"))[0][0]))

    assert list(features) == sorted(example)
    assert features["B05"]["tensor"] == {
        "shape": {"dimensions": ["60", "60"]},
        "dtype": "uint16",
        "encoding": "bytes" if encoding == "raw" else "none",
    }
    stored = example["VV"]
    assert (len(stored[0]) if encoding == "raw" else stored.nbytes) == 120 * 120 * 4


def test_an_unchanged_view_is_left_alone(built):
    """Nothing is remade where links and descriptions are as they should be."""
    before = stamps(built.folder.view)
    assert not make_view(built.folder, load_dataset(built.folder.dataset))
    assert stamps(built.folder.view) == before


@pytest.mark.parametrize("damage", ["link gone", "link elsewhere", "foreign file", "description edited", "gone"])
def test_a_changed_view_is_remade_as_a_whole(built, damage):
    """Whatever was done to it, the view is again exactly what dataset.json gives, leftovers of a killed run removed."""
    view = built.folder.view
    link = next(view.glob("train-00000-*"))
    if damage == "gone":
        shutil.rmtree(view)
    elif damage == "foreign file":
        (view / "train-00000-of-00099.tfrecord").write_bytes(b"")
    elif damage == "description edited":
        (view / "features.json").write_text("{}")
    else:
        link.unlink()
        if damage == "link elsewhere":
            link.symlink_to("../shards/nothing.tfrecord")
    (built.folder.data / ".view.1.new.tmp").mkdir()

    dataset = load_dataset(built.folder.dataset)
    assert make_view(built.folder, dataset)
    assert not make_view(built.folder, dataset)
    assert link.exists()
    assert list(built.folder.data.glob(".view*")) == []


def test_a_new_plan_replaces_every_link(built):
    """After a change of the plan no link of the old one is left."""
    text = built.folder.params.read_text()
    built.folder.params.write_text(text.replace("target_samples: 4", "target_samples: 20"))
    job = open_job(built.folder.root)
    shard(job)
    dataset = hash_shards(job)

    assert len(list(job.folder.view.glob("*.tfrecord"))) == len(dataset.shards)
