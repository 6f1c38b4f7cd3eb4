"""dataset.json: what was written is read back; anything else is refused with what mends it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardtrail.dataset import Dataset, Shard, load_dataset
from shardtrail.errors import ConfigError
from shardtrail.samples import Feature, Schema

DATASET = Dataset(
    schema=Schema((Feature("B02", "uint16", (120, 120)),), ("note",), ("a", "b"), "original"),
    encoding="raw",
    encoding_version=1,
    shards=(Shard("train-00000", "train-0123456789ab.tfrecord", "f" * 64, "train", 3, 400, "0" * 32),),
    bands={"B02": {"count": 3, "mean": 1.5, "std": 0.5, "min": 1, "max": 2}},
    classes={"train": {"a": 2, "b": 1}},
    samples={"seen": 4, "accepted": 3, "quarantined": 1, "excluded": 0},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "dataset.json"
    file.write_bytes(DATASET.to_json())
    return file


def test_what_was_written_is_read_back(path):
    """A dataset comes back as it was, and is written to the same bytes again."""
    assert load_dataset(path) == DATASET
    assert load_dataset(path).to_json() == path.read_bytes()


def test_the_digest_names_the_records_alone(path):
    """The public digest is pinned: what does not change a record, such as statistics, does not change it."""
    assert DATASET.digest == "e1442b5d04ef0c750a40c11cf1713f75b87b715cd7d6a213e86c0e4d58352cc5"
    assert json.loads(path.read_bytes())["digest"] == DATASET.digest


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "bands": lambda values: values["bands"]["B02"].update(mean=9.0),
    "classes": lambda values: values["classes"]["train"].update(a=1),
    "samples": lambda values: values["samples"].update(quarantined=0),
    "records": lambda values: values["shards"][0].update(records=4),
    "file": lambda values: values["shards"][0].update(file="../../other.tfrecord"),
    "splits": lambda values: values["splits"]["train"].update(records=4),
    "md5": lambda values: values["shards"][0].update(md5="1" * 32),
    "digest": lambda values: values.update(digest="0" * 64),
    "content": lambda values: values.update(content="0" * 64),
    "more": lambda values: values.update(more=1),
}


@pytest.mark.parametrize("edit", EDITS)
def test_every_key_is_covered(path, edit):
    """A dataset.json edited in any key is refused, with the command that builds it again."""
    values = json.loads(path.read_bytes())
    EDITS[edit](values)
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=r"was edited: .*shardtrail run --until hash"):
        load_dataset(path)


@pytest.mark.parametrize("key", sorted(json.loads(DATASET.to_json()).keys() - {"format"}))
@pytest.mark.parametrize("change", ["gone", None, 7, "text", [1], {"x": 1}])
def test_missing_keys_and_other_types_are_configuration_errors(path, key, change):
    """Whatever a key holds, the answer is a ConfigError with the command that mends it."""
    values = json.loads(path.read_bytes())
    if change == "gone":
        del values[key]
    else:
        values[key] = change
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="shardtrail run --until hash"):
        load_dataset(path)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, '{"format": 1}', "\x00"])
def test_files_that_are_no_dataset_are_configuration_errors(path, text):
    """Cut, empty, nested or foreign files are refused with the command that mends them."""
    path.write_text(text)
    with pytest.raises(ConfigError, match="shardtrail run --until hash"):
        load_dataset(path)


def test_a_later_format_is_refused(path):
    """A file of a later format is named as such."""
    path.write_text('{"format": 2}')
    with pytest.raises(ConfigError, match="format 2"):
        load_dataset(path)
