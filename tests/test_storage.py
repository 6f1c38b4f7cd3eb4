"""The source of a job, from its text to a tree on disk, and that tree as columns."""

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from archives import make_tar
from file_server import Server, server
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtrail.errors import ConfigError, LeaseHeld, SourceChanged, SourceError, StoreUnavailable
from shardtrail.job import Job, open_job
from shardtrail.storage.local import Paths, file_digest, printable, scan
from shardtrail.storage.source import is_archive, kind, materialise, raw_tree

__all__ = ["server"]  # a fixture


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def job_of(folder: Path, source: str, checksum: str = "", reproduce: bool = False) -> Job:
    folder.mkdir(exist_ok=True)
    (folder / "params.yaml").write_text(f"source: {json.dumps(source)}\ndownload: {{checksum: {checksum!r}}}\n")
    job = open_job(folder)
    return Job(job.folder, job.config, reproduce=reproduce)


# Scan


NAMES = st.sampled_from(["a", "a.txt", "a-b", "A", "b", "a b", "日本", "é", "~", "a0", "!", "#1%20", "-"])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(NAMES, min_size=1, max_size=4), max_size=25))
def test_a_scan_lists_every_file_in_byte_order(paths: list[list[str]]) -> None:
    """Whatever the tree, paths come in byte order, once each, with the file's own stats."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for parts in paths:
            try:
                write(root, {"/".join(parts): b"x" * len(parts)})
            except (FileExistsError, IsADirectoryError, NotADirectoryError):
                continue
        found = scan(root)
        expected = sorted((p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()), key=str.encode)
        assert list(found.paths) == expected
        assert [found.paths[place] for place in range(len(expected))] == expected
        assert found.paths[::-2] == expected[::-2]
        stats = [(root / path).stat() for path in expected]
        for name, column in (("st_size", found.size), ("st_mtime_ns", found.mtime_ns), ("st_ctime_ns", found.ctime_ns)):
            assert column.dtype == np.int64
            assert column.tolist() == [getattr(entry, name) for entry in stats]
        assert found.inode.tolist() == [entry.st_ino for entry in stats]
        assert found.bytes == sum(entry.st_size for entry in stats)


def test_long_folders_are_indexed(tmp_path: Path) -> None:
    """Any of many files in one folder is found by its place; a place outside is an error."""
    write(tmp_path, {f"d/{number:05}": b"" for number in range(2500)} | {"e": b""})
    paths = scan(tmp_path).paths
    assert len(paths) == 2501
    assert [paths[place] for place in (0, 1023, 1024, 2499, -1)] == ["d/00000", "d/01023", "d/01024", "d/02499", "e"]
    with pytest.raises(IndexError):
        paths[2501]


@given(st.lists(st.sampled_from(["a", "a/b", "a/b/c", "a-b", "b", "b/a", "m/1", "m/2", "z"]), max_size=12))
def test_every_path_has_its_place(wanted: list[str]) -> None:
    """Paths are found in whatever order they are asked for, files of other folders in between; others are not there."""
    paths = Paths()
    paths.add("", ["0"])
    paths.add("a/", [f"{number:04}" for number in range(3000)])
    paths.add("b/", ["x", "y"])
    asked = [*wanted, "a/0000", "b/y", "a/2999", "0", "b/x", "a/1024", *wanted, "a/1023", "b/z", "a/3000"]
    listed = list(paths)
    assert paths.places(asked).tolist() == [listed.index(path) if path in listed else -1 for path in asked]
    assert Paths().places(asked).tolist() == [-1] * len(asked)


def test_a_digest_tells_every_change(tmp_path: Path) -> None:
    """An untouched tree has the same digest; a touched, grown, renamed, new or removed file gives another."""
    write(tmp_path, {"a/x": b"1", "b": b"2"})
    seen = [scan(tmp_path)]
    assert scan(tmp_path).digest == seen[0].digest

    def touch() -> None:
        os.utime(tmp_path / "b", ns=(1, 1))

    changes = [
        touch,
        lambda: write(tmp_path, {"b": b"22"}),
        lambda: (tmp_path / "b").rename(tmp_path / "c"),
        lambda: write(tmp_path, {"a/y": b""}),
        lambda: (tmp_path / "a/y").unlink(),
        lambda: (tmp_path / "dangling").symlink_to("nowhere"),
    ]
    for change in changes:
        change()
        seen.append(scan(tmp_path))
        assert seen[-1].digest != seen[-2].digest
    assert seen[0].content_digest == seen[1].content_digest != seen[2].content_digest


def test_a_copy_has_the_same_content_digest(tmp_path: Path) -> None:
    """Paths and sizes make the content digest, so a copy elsewhere has the same."""
    write(tmp_path / "one", {"a/x": b"1", "b": b"2"})
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert scan(tmp_path / "one").content_digest == scan(tmp_path / "two").content_digest
    assert scan(tmp_path / "one").digest != scan(tmp_path / "two").digest


def test_links_are_followed(tmp_path: Path) -> None:
    """Links to files and folders count as what they lead to; the root may be one; what leads nowhere is named."""
    write(tmp_path, {"real/x.tif": b"123", "real/sub/y.tif": b"1", "elsewhere/z.tif": b"12"})
    (tmp_path / "root").symlink_to("real")
    (tmp_path / "real/file.tif").symlink_to("x.tif")
    (tmp_path / "real/folder").symlink_to("../elsewhere")
    (tmp_path / "real/broken.jpg").symlink_to("gone.jpg")
    (tmp_path / "real/self").symlink_to("self")
    (tmp_path / "real/sub/up").symlink_to("..")
    (tmp_path / "elsewhere/back").symlink_to("../real")
    os.mkfifo(tmp_path / "real/pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "real/socket"))
    found = scan(tmp_path / "root")
    assert list(found.paths) == ["file.tif", "folder/z.tif", "sub/y.tif", "x.tif"]
    assert found.size.tolist() == [3, 2, 1, 3]
    assert found.broken == {
        "broken.jpg": "a link that leads to no file",
        "folder/back": "a link to a folder above it",
        "pipe": "a named pipe",
        "self": "a link in a circle",
        "socket": "a socket",
        "sub/up": "a link to a folder above it",
    }


def test_what_is_no_file_is_called_by_its_kind(tmp_path: Path) -> None:
    """A link to a pipe or a device is left aside, and said to be that."""
    write(tmp_path, {"raw/x": b"1"})
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "raw/a").symlink_to("../pipe")
    (tmp_path / "raw/b").symlink_to("/dev/null")
    assert scan(tmp_path / "raw").broken == {"a": "a link to a named pipe", "b": "a link to a character device"}


@pytest.mark.parametrize("target", ["..", "../..", "../../..", "/", "../../other", "../../other/deep"])
def test_a_folder_that_holds_the_source_is_left_aside(tmp_path: Path, target: str) -> None:
    """A link to any folder above the source, or above where another link leads, brings no file a second time."""
    write(tmp_path, {"base/set/raw/sub/x": b"1", "base/other/deep/y": b"1"})
    (tmp_path / "base/other/deep/up").symlink_to("..")
    (tmp_path / "base/set/raw/link").symlink_to(target)
    (tmp_path / "short").symlink_to("base/set/raw")
    for root in (tmp_path / "base/set/raw", tmp_path / "short"):
        found = scan(root)
        names = [path.rpartition("/")[2] for path in found.paths]
        assert sorted(names) == (["x", "y"] if "other" in target else ["x"])
        assert set(found.broken.values()) == {"a link to a folder above it"}


def test_a_name_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    """No table can hold such a name; the error shows it escaped and how to mend it."""
    write(tmp_path, {"cat/good.jpg": b""})
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/cat/caf\xe9.jpg")).touch()
    with pytest.raises(SourceError, match=r"/cat/caf\\xe9\.jpg: this name is not UTF-8.*rename") as caught:
        scan(tmp_path)
    str(caught.value).encode()
    assert printable("caf\udce9/日本") == "caf\\xe9/日本"


def test_an_unreadable_folder_is_an_error() -> None:
    """A folder that may not be listed ends the scan by name: its files are not taken for removed."""
    root = Path(tempfile.mkdtemp())
    write(root, {"open/x": b"", "shut/y": b""})
    root.chmod(0o755)
    (root / "shut").chmod(0)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)  # root may list anything
        with pytest.raises(SourceError, match=f"{root}/shut cannot be read"):
            scan(root)
    finally:
        os.seteuid(user)
        (root / "shut").chmod(0o755)
        shutil.rmtree(root)


def test_an_absent_root_is_an_error(tmp_path: Path) -> None:
    """Only a folder can be scanned."""
    for path in (tmp_path / "absent", write(tmp_path, {"file": b""}) / "file"):
        with pytest.raises(SourceError, match="no folder"):
            scan(path)


def test_file_digest(tmp_path: Path) -> None:
    """A digest carries its algorithm; an absent file is named."""
    from shardtrail.progress import Silent

    write(tmp_path, {"f": b"abc"})
    assert file_digest(tmp_path / "f", "md5", Silent()) == "md5:900150983cd24fb0d6963f7d28e17f72"
    with pytest.raises(SourceError, match="absent"):
        file_digest(tmp_path / "absent", "sha256", Silent())


# Kinds of sources


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raw", "folder"),
        ("/data/BigEarthNet-v1.0", "folder"),
        ("raw.zip/", "folder"),
        ("~/x.TAR.GZ", "archive"),
        ("x.tar", "archive"),
        ("x.tgz", "archive"),
        ("x.tar.zst", "archive"),
        ("x.tar.bz2", "archive"),
        ("x.tar.xz", "archive"),
        ("x.zip", "archive"),
        ("https://host/any?download=1", "http"),
        ("HTTP://host/x.zip", "http"),
        ("s3://bucket/x.tar", "s3"),
    ],
)
def test_the_kind_of_a_source(source: str, expected: str) -> None:
    """A source's text alone says what it is."""
    assert kind(source) == expected
    assert is_archive(source) == (expected in ("archive", "http"))


@pytest.mark.parametrize("source", ["s3://bucket/prefix", "ftp://host/x.tar", "gs://b/x"])
def test_unsupported_sources_say_what_to_do(tmp_path: Path, source: str) -> None:
    """A kind that is not supported is a fault of the configuration."""
    with pytest.raises(ConfigError, match="supported"):
        materialise(job_of(tmp_path, source))


# Folders


def test_a_folder_is_used_where_it_lies(tmp_path: Path) -> None:
    """A folder source is not copied, and its tree is what is scanned."""
    write(tmp_path / "raw", {"a": b"1"})
    job = job_of(tmp_path / "work", "../raw")
    assert job.raw == tmp_path / "raw"
    assert list(raw_tree(job).paths) == ["a"]
    assert not job.folder.unpacked.exists()


def test_folders_that_cannot_be_meant(tmp_path: Path) -> None:
    """An absent or empty folder, a file, and a folder that holds the outputs are refused by name."""
    write(tmp_path, {"file.txt": b""})
    (tmp_path / "empty").mkdir()
    for source, words in (("absent", "exist"), ("empty", "empty"), ("file.txt", "neither")):
        with pytest.raises(SourceError, match=f"{source}.*{words}"):
            materialise(job_of(tmp_path / "work", f"../{source}"))
    for source in ("..", ".", "data"):
        (tmp_path / "work/data").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match="outputs"):
            materialise(job_of(tmp_path / "work", source))


# Archives


def test_an_archive_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time the archive is not even opened; a touched one is read, but its tree stays."""
    archive = tmp_path / "set.tar.gz"
    archive.symlink_to(make_tar(tmp_path / "kept", "w:gz", files={"a/x": b"1", "b": b"2"}))
    job = job_of(tmp_path / "work", "../set.tar.gz")
    first = raw_tree(job)
    assert list(first.paths) == ["a/x", "b"]

    with monkeypatch.context() as patched:
        patched.setattr("shardtrail.storage.local.file_digest", None)
        patched.setattr("shardtrail.storage.archive.unpack", None)
        assert raw_tree(job).digest == first.digest
    os.utime(archive, ns=(5, 5))
    assert raw_tree(job).digest == first.digest
    assert raw_tree(job_of(tmp_path / "work", "../set.tar.gz", reproduce=True)).digest == first.digest


def test_a_changed_archive_replaces_the_tree(tmp_path: Path) -> None:
    """What left the archive leaves the tree; ``dvc repro`` refuses the change and names the archive."""
    archive = make_tar(tmp_path / "set.tar", files={"a": b"1", "gone": b"2"})
    job = job_of(tmp_path / "work", "../set.tar")
    first = raw_tree(job)
    make_tar(archive, files={"a": b"1", "new": b"333"})
    with pytest.raises(SourceChanged, match=r"set\.tar"):
        materialise(job_of(tmp_path / "work", "../set.tar", reproduce=True))
    assert scan(job.raw).digest == first.digest
    assert list(raw_tree(job).paths) == ["a", "new"]
    assert [path.name for path in job.folder.data.iterdir()] == ["unpacked"]


def test_full_checks_read_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other bytes of equal size and times are noticed by the time of change; where a disk keeps none, by ``full``."""
    archive = make_tar(tmp_path / "set.tar", files={"a": b"1"})
    good = archive.read_bytes()
    job = job_of(tmp_path / "work", "../set.tar")

    def swap(content: bytes) -> None:
        stats = archive.stat()
        archive.write_bytes(content)
        os.utime(archive, ns=(stats.st_atime_ns, stats.st_mtime_ns))

    first = raw_tree(job)
    swap(make_tar(tmp_path / "other.tar", files={"a": b"2"}).read_bytes())
    assert raw_tree(job).digest != first.digest
    assert (job.raw / "a").read_bytes() == b"2"

    forgetful = lambda stats: (stats.st_size, stats.st_mtime_ns, 0, 0)  # noqa: E731
    monkeypatch.setattr("shardtrail.storage.source._stats_of", forgetful)
    swap(good)
    raw_tree(job)  # notes the stats of such a disk
    swap(make_tar(tmp_path / "other.tar", files={"a": b"3"}).read_bytes())
    for reproduce, full in ((False, False), (True, False)):
        raw_tree(dataclasses.replace(job, reproduce=reproduce, full=full))
        assert (job.raw / "a").read_bytes() == b"1"
    with pytest.raises(SourceChanged, match="no longer the archive"):
        raw_tree(dataclasses.replace(job, reproduce=True, full=True))
    third = raw_tree(dataclasses.replace(job, full=True))
    assert (job.raw / "a").read_bytes() == b"3"
    assert raw_tree(dataclasses.replace(job, full=True)).digest == third.digest


def test_a_full_check_knows_the_archive_by_another_algorithm(tmp_path: Path) -> None:
    """A checksum given later, of another algorithm than the recorded one, makes no archive new."""
    archive = make_tar(tmp_path / "set.tar", files={"a": b"1"})
    first = raw_tree(job_of(tmp_path / "work", "../set.tar"))
    md5 = f"md5:{hashlib.md5(archive.read_bytes()).hexdigest()}"
    job = job_of(tmp_path / "work", "../set.tar", md5, reproduce=True)
    assert raw_tree(dataclasses.replace(job, full=True)).digest == first.digest


def test_leftovers_of_any_depth_are_removed(tmp_path: Path) -> None:
    """What a killed run left behind goes, however deep it is."""
    make_tar(tmp_path / "set.tar", files={"a": b"1"})
    job = job_of(tmp_path / "work", "../set.tar")
    deep = job.folder.data / ".unpacked.new.tmp" / ("d/" * 1500)
    place = Path(deep.anchor)
    for part in deep.parts[1:]:
        place = place / part
        place.mkdir(exist_ok=True)
    assert list(raw_tree(job).paths) == ["a"]
    assert [path.name for path in job.folder.data.iterdir()] == ["unpacked"]


def test_a_damaged_new_archive_leaves_the_old_tree(tmp_path: Path) -> None:
    """An archive that cannot be unpacked costs nothing that is there."""
    archive = make_tar(tmp_path / "set.tar", files={"a": b"1" * 5000})
    job = job_of(tmp_path / "work", "../set.tar")
    first = raw_tree(job)
    archive.write_bytes(archive.read_bytes()[:3000])
    with pytest.raises(SourceError, match="cut short"):
        materialise(job)
    assert scan(job.raw).digest == first.digest
    assert [path.name for path in job.folder.data.iterdir()] == ["unpacked"]


def test_a_tree_that_someone_changed_is_unpacked_anew(tmp_path: Path) -> None:
    """Only the archive may change the tree: a file deleted from it comes back, one put into it goes."""
    make_tar(tmp_path / "set.tar", files={"a": b"1", "b": b"2"})
    for reproduce in (False, True):
        job = job_of(tmp_path / "work", "../set.tar", reproduce=reproduce)
        whole = raw_tree(job)
        (job.raw / "a").unlink()
        write(job.raw, {"mine": b""})
        assert raw_tree(job).content_digest == whole.content_digest
    (tmp_path / "set.tar").rename(tmp_path / "away.tar")
    assert raw_tree(job).content_digest == whole.content_digest  # reproducing needs the tree only
    with pytest.raises(SourceError, match="put it back"):
        materialise(job_of(tmp_path / "work", "../set.tar"))
    (tmp_path / "away.tar").rename(tmp_path / "set.tar")
    shutil.rmtree(job.raw)
    assert raw_tree(job).content_digest == whole.content_digest


def test_archives_with_equal_members_make_equal_trees(tmp_path: Path) -> None:
    """An archive built anew, with the same files at other times, gives the same paths and sizes."""
    digests = set()
    for day in (1, 2):
        with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
            archive.writestr(zipfile.ZipInfo("a/x", (2020, 1, day, 0, 0, 0)), b"1")
        digests.add(raw_tree(job_of(tmp_path / "work", "../set.zip")).content_digest)
    assert len(digests) == 1


def test_the_checksum_of_a_local_archive(tmp_path: Path) -> None:
    """A published checksum is verified before anything is unpacked, and may be added later."""
    archive = make_tar(tmp_path / "set.tar", files={"a": b"1"})
    from shardtrail.progress import Silent

    good = file_digest(archive, "md5", Silent())
    with pytest.raises(SourceError, match="expects md5:00"):
        materialise(job_of(tmp_path / "work", "../set.tar", "md5:00"))
    assert not (tmp_path / "work/data").exists()
    raw_tree(job_of(tmp_path / "work", "../set.tar"))
    before = scan(tmp_path / "work/data/unpacked")
    for reproduce in (True, False):
        raw_tree(job_of(tmp_path / "work", "../set.tar", good.upper().replace("MD5", "md5"), reproduce))
    assert scan(tmp_path / "work/data/unpacked").digest == before.digest
    with pytest.raises(SourceError, match="expects md5:00"):
        materialise(job_of(tmp_path / "work", "../set.tar", "md5:00"))


def test_sources_that_are_no_archive(tmp_path: Path) -> None:
    """A folder named like an archive, an absent archive and one of no known kind are refused by name."""
    (tmp_path / "folder.zip").mkdir()
    write(tmp_path, {"text.zip": b"hello", "folder.zip/a": b""})
    for source, words in (("folder.zip", "slash"), ("absent.zip", "exist"), ("text.zip", "known kind")):
        with pytest.raises(SourceError, match=f"{source}.*{words}"):
            materialise(job_of(tmp_path / "work", f"../{source}"))
    assert list(raw_tree(job_of(tmp_path / "work", "../folder.zip/")).paths) == ["a"]


def test_only_one_process_unpacks(tmp_path: Path) -> None:
    """While one process unpacks, a second one is told so instead of writing into the same tree."""
    make_tar(tmp_path / "set.tar", files={"a": b"1"})
    job = job_of(tmp_path / "work", "../set.tar")
    code = (
        "import fcntl, sys, time\n"
        "lock = open(sys.argv[1], 'w'); fcntl.flock(lock, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"
    )
    job.folder.state.mkdir()
    arguments = [sys.executable, "-c", code, job.folder.state / "source.lock"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(LeaseHeld, match="another process"):
            materialise(job)
        other.kill()
    materialise(job)


def test_a_killed_unpacking_starts_over(tmp_path: Path) -> None:
    """kill -9 in the middle leaves no tree under its name; the next run makes all of it and clears the rest away."""
    files = {f"folder{number % 7}/{number:04}": os.urandom(20_000) for number in range(2000)}
    make_tar(tmp_path / "set.tar", files=files)
    job = job_of(tmp_path / "work", "../set.tar")
    code = (
        "import sys; from pathlib import Path; from shardtrail.job import open_job\n"
        "from shardtrail.storage.source import materialise; materialise(open_job(Path(sys.argv[1])))"
    )
    child = subprocess.Popen([sys.executable, "-c", code, job.folder.root])
    half = job.folder.data / ".unpacked.new.tmp"
    deadline = time.monotonic() + 60
    while not (half / "folder3").exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert half.exists() and not job.raw.exists()

    assert list(raw_tree(job).paths) == sorted(files)
    assert [path.name for path in job.folder.data.iterdir()] == ["unpacked"]


@pytest.mark.parametrize("step", ["unlink", "first rename", "second rename"])
def test_killed_while_trees_are_swapped(tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the swap of two trees ends early, the next run makes the tree of the present archive."""
    archive = make_tar(tmp_path / "set.tar", files={"old": b"1"})
    job = job_of(tmp_path / "work", "../set.tar")
    raw_tree(job)
    make_tar(archive, files={"new": b"22"})
    calls = []

    class Killed(BaseException): ...

    def rename(path: Path, to: Path) -> None:
        calls.append(path)
        if len(calls) == {"unlink": 1, "first rename": 2}.get(step):
            raise Killed
        path.replace(to)
        if len(calls) == 2 and step == "second rename":
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            materialise(job)
    assert list(raw_tree(job).paths) == ["new"]
    assert [path.name for path in job.folder.data.iterdir()] == ["unpacked"]


# Archives behind an address


@pytest.mark.parametrize("with_checksum", [False, True])
def test_an_address_is_fetched_and_unpacked_once(server: Server, tmp_path: Path, with_checksum: bool) -> None:
    """The archive is fetched and unpacked; a second run transfers nothing, not even when the archive was deleted."""
    server.content = make_tar(tmp_path / "set.tar", files={"a": b"1", "b": b"2"}).read_bytes()
    from shardtrail.progress import Silent

    checksum = file_digest(tmp_path / "set.tar", "sha1", Silent()) if with_checksum else ""
    job = job_of(tmp_path / "work", server.url, checksum)
    first = raw_tree(job)
    assert list(first.paths) == ["a", "b"]
    asked, sent = len(server.requests), server.sent
    shutil.rmtree(job.folder.downloads)
    assert raw_tree(job).digest == first.digest
    assert server.sent == sent
    assert len(server.requests) == (asked if with_checksum else asked + 1)


def test_news_behind_an_address(server: Server, tmp_path: Path) -> None:
    """A changed archive is taken in by a rebuild; ``dvc repro`` does not even ask."""
    server.content = make_tar(tmp_path / "set.tar", files={"a": b"1"}).read_bytes()
    job = job_of(tmp_path / "work", server.url)
    first = raw_tree(job)
    server.content, server.etag = make_tar(tmp_path / "set.tar", files={"b": b"22"}).read_bytes(), '"v2"'
    asked = len(server.requests)
    assert raw_tree(job_of(tmp_path / "work", server.url, reproduce=True)).digest == first.digest
    assert len(server.requests) == asked
    assert list(raw_tree(job).paths) == ["b"]


def test_an_unavailable_server_leaves_the_tree(server: Server, tmp_path: Path) -> None:
    """When the server cannot say whether there is news the run fails as unavailable, and the tree stays."""
    server.content = make_tar(tmp_path / "set.tar", files={"a": b"1"}).read_bytes()
    job = job_of(tmp_path / "work", server.url)
    first = raw_tree(job)
    server.quirk = lambda handler, number: handler.answer(503) or True
    with pytest.raises(StoreUnavailable):
        materialise(job)
    assert scan(job.raw).digest == first.digest


def test_no_secret_is_written(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """User and password come from ~/.netrc; neither they nor an address's signature reach the run's files or output."""
    server.content = make_tar(tmp_path / "set.tar", files={"a": b"1"}).read_bytes()
    source = server.url + "?sig=s3cret"
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password passw0rd\n")
    (tmp_path / ".netrc").chmod(0o600)
    job = job_of(tmp_path / "work", source)
    raw_tree(job)
    assert server.requests[0]["authorization"].startswith("Basic ")
    written = b"".join(
        path.read_bytes() for path in (tmp_path / "work").rglob("*") if path.name != "params.yaml" and path.is_file()
    )
    output = "".join(capfd.readouterr())
    assert not any(secret in text for secret in ("passw0rd", "s3cret") for text in (written.decode(), output))
