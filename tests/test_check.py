"""What `shardtrail check` says before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from archives import make_tar
from working import job_in, numbers_folder, write_numbers

from shardtrail.check import CheckResult, check
from shardtrail.job import Job


def about(subject: str, job: Job) -> CheckResult:
    """The line of one subject."""
    (found,) = (result for result in check(job) if result.subject == subject)
    return found


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return write_numbers(tmp_path / "raw", {f"{name}/x.json": {"numbers": [1]} for name in "abc"})


def test_a_folder_is_counted_and_nothing_written(tmp_path, raw):
    """Files, bytes and units of a folder are told, and the working folder is left as it was."""
    root = numbers_folder(tmp_path / "work", raw)
    size = sum(path.stat().st_size for path in raw.rglob("*.json"))

    source = about("source", job_in(root))

    assert source.good and f"3 files, {size} bytes, 3 units" in source.text
    assert f"about {size} bytes for the shards" in about("disk", job_in(root)).text
    assert [path.name for path in root.iterdir()] == ["params.yaml"]


def test_shards_that_are_there_need_no_second_room(tmp_path, raw):
    """What the present shards take is not asked for again."""
    root = numbers_folder(tmp_path / "work", raw)
    size = sum(path.stat().st_size for path in raw.rglob("*.json"))
    (root / "data" / "shards").mkdir(parents=True)
    (root / "data" / "shards" / "train-0123456789ab.tfrecord").write_bytes(bytes(10))
    assert f"about {size - 10} bytes for the shards beside the 10" in about("disk", job_in(root)).text
    (root / "data" / "shards" / "train-0123456789ab.tfrecord").write_bytes(bytes(size + 10))
    disk = about("disk", job_in(root))
    assert disk.good and "about 0 bytes" in disk.text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("s3://bucket/set", "s3:// is not supported yet"),
        ("ftp://host/set.tar", "ftp:// is not supported"),
        ("../absent", "does not exist"),
        ("../absent.tar", "is no file"),
        ("../empty", "is empty"),
        ("..", "outputs"),
    ],
)
def test_a_source_that_cannot_be_used_is_told_as_a_run_would(tmp_path, source, words):
    """What a run would refuse is refused here, in words that say what it is."""
    (tmp_path / "empty").mkdir()
    found = about("source", job_in(numbers_folder(tmp_path / "work", source)))
    assert not found.good
    assert words in found.text


def test_an_address_is_shown_without_its_secrets(tmp_path):
    """Of an address's query, which may sign it, nothing is shown."""
    root = numbers_folder(tmp_path / "work", "https://host.example/set.tar?token=s3cret")
    found = about("source", job_in(root))
    assert found.good and "https://host.example/set.tar?…" in found.text
    assert not any("s3cret" in result.text for result in check(job_in(root)))


def test_an_archive_is_known_as_packed_only(tmp_path):
    """An archive's size is said to be the packed one, and the disk needed to be more."""
    archive = make_tar(tmp_path / "set.tar.gz", "w:gz")
    root = numbers_folder(tmp_path / "work", archive)
    assert "as it is packed" in about("source", job_in(root)).text
    assert "and more" in about("disk", job_in(root)).text
