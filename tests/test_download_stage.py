from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from working import job_in, let_settle, numbers_folder, outputs, write_numbers

from shardtrail.errors import SourceChanged, SourceError
from shardtrail.folder import Folder
from shardtrail.manifest import read_table
from shardtrail.progress import Lines
from shardtrail.stages.__main__ import main
from shardtrail.stages.download import compare, download
from shardtrail.stages.scan_state import STATS, load_scan, save_scan
from shardtrail.stages.validate import validate
from shardtrail.storage.local import Paths, Scan


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Three samples, each with numbers of its own."""
    return write_numbers(
        tmp_path / "raw", {f"{name}/x.json": {"numbers": [number]} for number, name in enumerate("abc")}
    )


@pytest.fixture
def root(tmp_path: Path, raw: Path) -> Path:
    return numbers_folder(tmp_path / "work", raw, compute={"workers": 1})


def lock(root: Path, cached: bool) -> None:
    """Record the inventory as DVC does: its md5 in dvc.lock, its bytes in the cache."""
    path = root / "data" / "inventory.parquet"
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    (root / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  download:\n    cmd: x\n    params:\n      params.yaml:\n"
        f"        source: {root.parent / 'raw'}\n    outs:\n    - path: data/inventory.parquet\n      md5: {md5}\n"
    )
    if cached:
        place = root / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:]
        place.parent.mkdir(parents=True)
        shutil.copy(path, place)


def test_inventory_lists_the_tree(root, raw):
    """The inventory holds every file by its relative path in byte order, with its size."""
    inventory = download(job_in(root))
    rows = read_table(root / "data" / "inventory.parquet").to_pylist()
    assert rows == [
        {"path": f"{name}/x.json", "size": (raw / name / "x.json").stat().st_size, "version": ""} for name in "abc"
    ]
    assert (inventory.files, inventory.bytes) == (3, sum(row["size"] for row in rows))


def test_news_are_counted(root, raw):
    """Files added, changed and removed since the last time are counted; without news nothing is written."""
    assert download(job_in(root)).added == 3
    before = (root / "data" / "inventory.parquet").stat()
    again = download(job_in(root))
    assert (again.added, again.changed, again.removed) == (0, 0, 0)
    assert (root / "data" / "inventory.parquet").stat() == before
    write_numbers(raw, {"d/x.json": {}, "e/x.json": {}, "a/x.json": {"numbers": [1, 2, 3, 4]}})
    (raw / "b" / "x.json").unlink()
    news = download(job_in(root))
    assert (news.added, news.changed, news.removed) == (2, 1, 1)
    shutil.rmtree(root / ".shardtrail")
    lost = download(job_in(root))
    assert (lost.added, lost.changed, lost.removed) == (0, 0, 0)


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped", "another"])
def test_without_news_a_damaged_inventory_is_mended(root, raw, damage):
    """On an unchanged tree the inventory is not made again, unless it is gone or is not what it was."""
    place = root / "data" / "inventory.parquet"
    download(job_in(root))
    good = place.read_bytes()
    if damage == "gone":
        place.unlink()
    elif damage == "cut":
        place.write_bytes(good[:-20])
    elif damage == "flipped":
        middle = good.index(b"\x28\xb5\x2f\xfd") + 8  # in the first compressed page
        place.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
    else:
        place.write_bytes((root / ".shardtrail" / "scan.parquet").read_bytes())
    again = download(job_in(root))
    assert (again.added, again.changed, again.removed) == (0, 0, 0)
    assert place.read_bytes() == good


def test_an_unchanged_night_makes_no_table(root, monkeypatch):
    """On an unchanged tree the listing is neither made into a table nor compared."""
    first = download(job_in(root))
    for name in ("inventory_table", "load_scan", "compare", "write_table", "save_scan"):
        monkeypatch.setattr(f"shardtrail.stages.download.{name}", None)
    again = download(job_in(root))
    assert (again.files, again.bytes, again.digest, again.added) == (first.files, first.bytes, first.digest, 0)


trees = st.dictionaries(
    st.sampled_from(["a", "b/a", "b/b", "b/c", "b/m/a", "b/z", "c/a"]), st.tuples(*[st.integers(0, 2)] * 4), min_size=1
)


def scan_of(tree: dict[str, tuple[int, int, int, int]]) -> Scan:
    stats = np.array([tree[path] for path in sorted(tree)], np.int64)
    return Scan(Paths.of(sorted(tree)), *stats.T, {"link": "a link that leads to no file"})


@given(trees, trees)
def test_scans_are_compared_by_path_and_stats(one, other):
    """Added, removed and changed are what the paths and stats of two scans say, in the order of the paths."""
    found = compare(scan_of(one), scan_of(other), STATS)
    assert found.added == sorted(other.keys() - one.keys())
    assert found.removed == sorted(one.keys() - other.keys())
    assert found.changed == sorted(path for path in one.keys() & other.keys() if one[path] != other[path])


@given(trees)
def test_a_kept_scan_is_the_scan(tree):
    """What is read back has the paths, stats, broken links and so the digests of what was kept."""
    with tempfile.TemporaryDirectory() as place:
        folder, scanned = Folder(Path(place)), scan_of(tree)
        save_scan(folder, scanned, "digest")
        kept = load_scan(folder)
    assert kept is not None
    assert list(kept.paths) == sorted(tree) and list(kept.stats()) == [tree[path] for path in sorted(tree)]
    assert (kept.digest, kept.content_digest, kept.broken) == (scanned.digest, scanned.content_digest, scanned.broken)


@pytest.mark.parametrize("source", ["absent", "empty"])
def test_a_missing_source_is_an_error(tmp_path, source):
    """A source that is absent or empty fails, says which folder it was, and leaves no inventory."""
    (tmp_path / "empty").mkdir()
    root = numbers_folder(tmp_path / "work", tmp_path / source)
    with pytest.raises(SourceError, match=source):
        download(job_in(root))
    assert not (root / "data").exists()


def test_a_broken_link_is_named(root, raw):
    """A link to nothing is named, is in no table, and does not stop the stage."""
    (raw / "gone.json").symlink_to(raw / "nowhere.json")
    lines: list[str] = []
    assert download(job_in(root, progress=Lines(lines.append))).files == 3
    assert any("gone.json" in line for line in lines)
    validate(job_in(root))
    assert "broken_link" in (root / "data" / "warnings.csv").read_text()


@pytest.mark.parametrize("recorded", ["on disk", "in lock and cache", "in lock alone"])
def test_reproducing_refuses_news(root, raw, recorded):
    """Reproducing names what was added, removed or changed in size since it was recorded, and writes nothing."""
    download(job_in(root))
    if recorded != "on disk":
        lock(root, cached=recorded == "in lock and cache")
        (root / "data" / "inventory.parquet").unlink()
        download(job_in(root, reproduce=True))  # the same tree is fine, and gives the same bytes
        (root / "data" / "inventory.parquet").unlink()
    before = outputs(root)
    write_numbers(raw, {"d/x.json": {}, "c/x.json": {"numbers": [1, 2, 3]}})
    (raw / "a" / "x.json").unlink()
    with pytest.raises(SourceChanged) as caught:
        download(job_in(root, reproduce=True))
    if recorded != "in lock alone":
        for line in ("added: d/x.json", "removed: a/x.json", "changed: c/x.json"):
            assert line in str(caught.value)
    assert "shardtrail run" in str(caught.value)
    assert outputs(root) == before


def test_a_lock_of_other_parameters_refuses_nothing(root, raw):
    """After the user names another source, the tree recorded for the old one does not stand in the way."""
    download(job_in(root))
    lock(root, cached=True)
    other = write_numbers(root.parent / "other", {"z/x.json": {}})
    numbers_folder(root, other)
    assert download(job_in(root, reproduce=True)).files == 1


def test_many_differences_are_cut_short(root, raw):
    """Of many differences twenty are named and the rest is counted."""
    download(job_in(root))
    write_numbers(raw, {f"new/{number:02}.json": {} for number in range(25)})
    with pytest.raises(SourceChanged, match="and 5 more") as caught:
        download(job_in(root, reproduce=True))
    assert str(caught.value).count("added:") == 20


def replace_bytes(path: Path) -> None:
    """Other bytes of the same length under the same modification time."""
    stat = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_reproducing_sees_other_bytes(root, raw):
    """Other bytes of equal length and time are refused by name; a file that was only touched is not."""
    let_settle(raw)
    download(job_in(root))
    validate(job_in(root))
    (raw / "b" / "x.json").touch()
    download(job_in(root, reproduce=True))
    replace_bytes(raw / "a" / "x.json")
    with pytest.raises(SourceChanged, match=r"changed: a/x\.json") as caught:
        download(job_in(root, reproduce=True))
    assert "b/x.json" not in str(caught.value)


def test_full_checks_need_no_evidence(root, raw):
    """With ``check_sources: full`` every byte is compared with the manifest, even with no stat cache left."""
    numbers_folder(root, raw, check_sources="full")
    download(job_in(root))
    validate(job_in(root))
    download(job_in(root, reproduce=True))
    replace_bytes(raw / "c" / "x.json")
    shutil.rmtree(root / ".shardtrail")
    with pytest.raises(SourceChanged, match=r"changed: c/x\.json"):
        download(job_in(root, reproduce=True))


def test_stages_as_modules(root, raw, tmp_path, monkeypatch, capsys):
    """Each stage runs as a module: 0 done, 1 the work failed, 2 configuration; errors come without a trace."""

    def run(folder: Path, *arguments: str) -> tuple[int, str]:
        monkeypatch.chdir(folder)
        status = main(arguments)
        printed = capsys.readouterr()
        assert printed.out == "" and "Traceback" not in printed.err
        return status, printed.err

    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "shardtrail.stages", "download"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert run(root, "validate")[0] == 0
    write_numbers(raw, {"d/x.json": {}})
    status, printed = run(root, "download")
    assert status == 1 and "SourceChanged: " in printed and "added: d/x.json" in printed
    status, printed = run(tmp_path, "validate")
    assert status == 2 and "params.yaml does not exist" in printed
    status, printed = run(root, "shard", "--encoding-version", "0")
    assert status == 2 and "encoding version 0" in printed
    with pytest.raises(SystemExit) as caught:
        main(["bake"])
    assert caught.value.code == 2
