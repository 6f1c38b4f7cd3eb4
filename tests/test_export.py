"""Export: checked copies of the shards, under other tools' names, resumable."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builds import edit, stamps

from shardtrail.dataset import load_dataset
from shardtrail.errors import ConfigError, StageFailed
from shardtrail.job import Job
from shardtrail.sharding.export import Exported, export

pytest_plugins = ["build_fixtures"]


def read(folder: Path, name: str) -> bytes:
    """A shard of an export, unpacked."""
    content = (folder / name).read_bytes()
    return gzip.decompress(content) if name.endswith(".gz") else content


@pytest.mark.parametrize("compressed", [False, True])
def test_an_export_holds_every_shard_and_its_checksums(finished: Job, tmp_path: Path, compressed: bool) -> None:
    """Every shard is there under its place in the plan with the bytes it has here; md5sum agrees with MD5SUMS on every
    file, and nothing else is there."""
    dataset = load_dataset(finished.folder.dataset)
    target = tmp_path / "out"
    done = export(finished, target, compressed=compressed)
    suffix = ".tfrecord.gz" if compressed else ".tfrecord"
    for split, figures in dataset.splits.items():
        for number, shard in enumerate(dataset.of_split(split)):
            name = f"{split}-{number:05}-of-{figures['shards']:05}{suffix}"
            assert hashlib.md5(read(target, name)).hexdigest() == shard.md5
    shards = [path for path in target.iterdir() if path.name.endswith(suffix)]
    assert done == Exported(len(dataset.shards), sum(path.stat().st_size for path in shards), len(dataset.shards))
    described = {"dataset.json", "features.json", "MD5SUMS"} | (set() if compressed else {"dataset_info.json"})
    assert {path.name for path in target.iterdir()} == described | {path.name for path in shards}
    subprocess.run(["md5sum", "--strict", "--quiet", "-c", "MD5SUMS"], cwd=target, check=True)
    assert len((target / "MD5SUMS").read_text().splitlines()) == len(list(target.iterdir())) - 1


def test_gzip_is_read_by_tensorflow(finished: Job, tmp_path: Path) -> None:
    """TFRecordDataset with compression_type GZIP gives the records of the shards, in order."""
    import tensorflow as tf

    export(finished, tmp_path / "out", ["train"], compressed=True)
    packed = sorted(str(path) for path in (tmp_path / "out").glob("*.gz"))
    shards = [str(finished.folder.shards / one.file) for one in load_dataset(finished.folder.dataset).of_split("train")]
    found = list(tf.data.TFRecordDataset(packed, compression_type="GZIP").as_numpy_iterator())
    assert found == list(tf.data.TFRecordDataset(shards).as_numpy_iterator())
    assert len(packed) == len(shards) > 1


def test_the_same_shards_give_the_same_gzip(finished: Job, tmp_path: Path) -> None:
    """Neither time nor name is in the files: two exports are equal byte for byte."""
    for name in ("a", "b"):
        export(finished, tmp_path / name, ["test"], compressed=True)
    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("a", "b")]
    assert contents[0] == contents[1]


def test_an_exported_split_is_read_by_tensorflow_datasets(finished: Job, tmp_path: Path) -> None:
    """A folder with one split alone is a dataset of this split."""
    import tensorflow_datasets as tfds

    export(finished, tmp_path / "out", ["validation"])
    builder = tfds.builder_from_directory(str(tmp_path / "out"))
    records = load_dataset(finished.folder.dataset).splits["validation"]["records"]
    assert {name: split.num_examples for name, split in builder.info.splits.items()} == {"validation": records}
    assert len(list(builder.as_dataset(split="validation"))) == records


@pytest.mark.parametrize("compressed", [False, True])
def test_what_is_there_and_right_is_not_done_again(finished: Job, tmp_path: Path, compressed: bool) -> None:
    """After a kill, or when copies were cut, changed or lost, just those are written; leftovers go."""
    target = tmp_path / "out"
    whole = export(finished, target, compressed=compressed)
    assert export(finished, target, compressed=compressed) == Exported(whole.files, whole.bytes, 0)
    before = stamps(target)
    cut, changed, lost, *rest = sorted(path.name for path in target.glob("train-*"))
    edit(target / cut, lambda content: content.__delitem__(slice(len(content) // 2, None)))
    edit(target / changed, lambda content: content.__setitem__(99, content[99] ^ 1))
    (target / lost).unlink()
    (target / "MD5SUMS").unlink()
    (target / f".{lost}.1.tmp").write_bytes(b"half")
    assert export(finished, target, compressed=compressed) == Exported(whole.files, whole.bytes, 3)
    after = stamps(target)
    assert after.keys() == before.keys()
    assert all(after[name] == before[name] for name in rest)
    subprocess.run(["md5sum", "--strict", "--quiet", "-c", "MD5SUMS"], cwd=target, check=True)


def test_a_damaged_shard_is_named_and_the_others_are_there(built: Job, tmp_path: Path) -> None:
    """A shard with other bytes than dataset.json says is never handed on under a good name, nor is one that is gone."""
    bad, gone, *_ = load_dataset(built.folder.dataset).of_split("train")
    stamp = (built.folder.shards / bad.file).stat()
    edit(built.folder.shards / bad.file, lambda content: content.__setitem__(500, content[500] ^ 1))
    os.utime(built.folder.shards / bad.file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    (built.folder.shards / gone.file).unlink()
    with pytest.raises(StageFailed, match=f"(?s){bad.file}: its bytes.*{gone.file} does not exist.*verify --deep") as e:
        export(built, tmp_path / "out")
    assert len(e.value.failures) == 2
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert not any(name.startswith(("train-00000", "train-00001")) for name in names)
    assert any(name.startswith("train-00002") for name in names)
    assert "MD5SUMS" not in names


def test_a_foreign_folder_is_left_alone(finished: Job, tmp_path: Path) -> None:
    """Whatever is not of an export of this dataset is named, and nothing is written or removed."""
    export(finished, tmp_path / "train", ["train"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "dataset.json").write_text("{}")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".mine.1.tmp").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = stamps(tmp_path)
    for name, text in [
        ("train", "train-00000-of-"),
        ("other", "dataset.json"),
        ("hidden", r"\.mine\.1\.tmp"),
        ("file", "not a folder"),
    ]:
        with pytest.raises(ConfigError, match=text):
            export(finished, tmp_path / name, ["test"])
    assert stamps(tmp_path) == before


def test_neither_raw_data_nor_shards_are_written_to(finished: Job) -> None:
    """A target among them is refused before it is made."""
    for place in (finished.raw / "out", finished.folder.shards / "out", finished.folder.data):
        with pytest.raises(ConfigError, match="choose another folder"):
            export(finished, place)
    assert not (finished.raw / "out").exists()
    with pytest.raises(ConfigError, match="no split night; it has train, validation, test"):
        export(finished, finished.folder.root / "out", ["night"])
    assert not (finished.folder.root / "out").exists()


def test_the_command_prints_one_object(finished: Job, tmp_path: Path) -> None:
    """shardtrail export --json: where it lies and what was written, nothing else on standard output."""
    command = [sys.executable, "-m", "flows.cli", "-C", str(finished.folder.root), "export", str(tmp_path / "out")]
    answer = subprocess.run(
        [*command, "--split", "test", "--gzip", "--json"], capture_output=True, text=True, check=True
    )
    said = json.loads(answer.stdout)
    assert said.keys() == {"folder", "files", "bytes", "written"}
    assert (said["folder"], said["written"]) == (str(tmp_path / "out"), said["files"])
    assert len(list((tmp_path / "out").glob("test-*.tfrecord.gz"))) == said["files"]
