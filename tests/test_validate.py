from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from working import (
    job_in,
    let_settle,
    numbers_folder,
    outputs,
    tree_state,
    working_folder,
    write_numbers,
)

from shardtrail.config import SelectParams, SplitParams
from shardtrail.errors import ConfigError, InputRejected, SourceChanged, StageFailed
from shardtrail.execution import local_mapper, serial_mapper
from shardtrail.layouts import Grouping
from shardtrail.manifest import manifest_schema, read_manifest
from shardtrail.progress import Silent
from shardtrail.sample_data import make_sample_data
from shardtrail.samples import BandSums, Sample, SourceFile, Unit
from shardtrail.stages.download import download
from shardtrail.stages.validate import Books, validate
from shardtrail.validation.duplicates import drop_duplicates
from shardtrail.validation.select import select
from shardtrail.validation.splits import assign, draw_splits
from shardtrail.validation.statistics import ExactSum, band_statistics

HERE = Path(__file__).parent


class Heard(Silent):
    def __init__(self, said: list[str]) -> None:
        self.said = said

    def say(self, line: str) -> None:
        self.said.append(line)


def build(root: Path, **changes: object) -> Books:
    """download, then validate."""
    job = job_in(root, **changes)
    download(job)
    return validate(job)


def quarantine(root: Path, name: str = "quarantine.csv") -> list[dict[str, str]]:
    with (root / "data" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def statistics(root: Path) -> dict:
    return json.loads((root / "data" / "statistics.json").read_text())


def manifest(root: Path) -> dict[str, dict]:
    return {row["sample_id"]: row for row in read_manifest(root / "data" / "manifest.parquet").to_pylist()}


@pytest.fixture(scope="module")
def built(sample_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample archive, validated once, in this process."""
    root = working_folder(tmp_path_factory.mktemp("built"), sample_archive)
    assert build(root) == Books(seen=30, accepted=28, quarantined=2, excluded=0)
    return root


# True patches


def test_bad_patches_are_quarantined_with_their_reason(built, sample_data):
    """The patches that were broken are quarantined by name and reason, all others accepted."""
    broken = dict(sample_data.broken)
    assert {row["sample"]: row["reason"] for row in quarantine(built)} == broken
    counts = dict.fromkeys(sorted(broken.values()), 1)
    assert statistics(built)["rejected"] == {"quarantined": counts, "excluded": {}}
    folders = {path.name for path in (sample_data.root / "BigEarthNet-v1.0").iterdir()}
    assert set(manifest(built)) == folders - set(broken)


def test_manifest_names_every_raw_file(built, sample_archive):
    """Each row holds the sample's raw files with the size and md5 that they have on disk."""
    for row in manifest(built).values():
        assert len(row["files"]) == 16
        for file in row["files"]:
            content = (sample_archive / file["path"]).read_bytes()
            assert (file["size"], file["md5"]) == (len(content), hashlib.md5(content).hexdigest())
    schema = manifest_schema(read_manifest(built / "data" / "manifest.parquet"))
    assert [feature.name for feature in schema.features][-2:] == ["VV", "VH"]


def test_statistics_are_those_of_the_train_split(built, sample_archive):
    """Count, mean, standard deviation and bounds of each band equal numpy's over the accepted train samples."""
    rows = [row for row in manifest(built).values() if row["split"] == "train"]
    assert 0 < len(rows) < 28
    figures = statistics(built)
    assert figures["splits"]["train"] == len(rows)
    for band, found in figures["bands"].items():
        paths = [file["path"] for row in rows for file in row["files"] if file["role"] == band]
        pixels = np.concatenate([tifffile.imread(sample_archive / path).ravel() for path in paths]).astype(np.float64)
        assert found["count"] == pixels.size
        assert (found["min"], found["max"]) == (pixels.min(), pixels.max())
        assert found["mean"] == pytest.approx(pixels.mean(), rel=1e-12)
        assert found["std"] == pytest.approx(pixels.std(), rel=1e-9)
    counts = {split: sum(classes.values()) for split, classes in figures["classes"].items()}
    assert sum(counts.values()) == sum(len(row["labels"]) for row in manifest(built).values())


def test_regions_do_not_leak(built):
    """All patches of a region are in one split, and no split is empty."""
    splits: dict[str, set[str]] = {}
    for row in manifest(built).values():
        splits.setdefault(row["region"], set()).add(row["split"])
    assert len(splits) == 14
    assert all(len(found) == 1 for found in splits.values())
    assert set.union(*splits.values()) == {"train", "validation", "test"}


def test_raw_data_is_left_as_it_was(sample_archive, tmp_path):
    """Validation changes no byte, no time and no name under the source."""
    before = tree_state(sample_archive)
    build(working_folder(tmp_path / "w", sample_archive))
    assert tree_state(sample_archive) == before


def test_workers_do_not_change_a_byte(built, sample_archive, tmp_path):
    """The outputs are the same bytes for one process, one worker and two, and for units in any order."""
    for workers in (1, 2):
        root = working_folder(tmp_path / str(workers), sample_archive)
        with local_mapper(workers) as mapper:
            build(root, mapper=mapper)
        assert outputs(root) == outputs(built)

    def backwards(stage, function, units):
        return serial_mapper(stage, function, units[::-1])

    root = working_folder(tmp_path / "backwards", sample_archive)
    build(root, mapper=backwards)
    assert outputs(root) == outputs(built)


AUDIT = """
import os, sys
sys.path.insert(0, sys.argv[2])
from working import job_in
from pathlib import Path
from shardtrail.stages.download import download
from shardtrail.stages.validate import validate
opened, written = [], []
def listen(event, args):
    if event == "open" and str(args[0]).startswith(sys.argv[3]) and not args[2] & os.O_DIRECTORY:
        opened.append(str(args[0]))
    if event == "os.rename":
        written.append(str(args[1]))
sys.addaudithook(listen)
job = job_in(Path(sys.argv[1]))
download(job)
validate(job)
print("\\n".join(["opened", *opened, "written", *written]))
"""


def audited(root: Path, raw: Path) -> tuple[list[str], list[str]]:
    """Raw files opened and files put in place by one more build, in a process of its own."""
    command = [sys.executable, "-c", AUDIT, str(root), str(HERE), str(raw)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    place = lines.index("written")
    return lines[1:place], lines[place + 1 :]


def test_a_night_without_news_opens_nothing(built, sample_archive):
    """A second build, in another process, opens no raw file and puts no file in place."""
    before = outputs(built)
    assert audited(built, sample_archive) == ([], [])
    assert outputs(built) == before


def test_only_what_changed_is_read(tmp_path):
    """After one more patch and one band replaced, only these two patches' files are opened."""
    raw = tmp_path / "raw"
    make_sample_data(raw, samples=6, sentinel1=False, broken=0)
    let_settle(raw)
    root = working_folder(tmp_path / "w", raw)
    assert build(root).accepted == 6
    old = manifest(root)
    one, other, *_ = sorted((raw / "BigEarthNet-v1.0").iterdir())
    (one / f"{one.name}_B02.tif").write_bytes((other / f"{other.name}_B02.tif").read_bytes())
    make_sample_data(raw, samples=7, sentinel1=False, broken=0)
    opened, _ = audited(root, raw)
    new = manifest(root)
    (added,) = new.keys() - old.keys()
    assert sorted({Path(path).parent.name for path in opened}) == sorted([one.name, added])
    assert len(opened) == 2 * 13
    assert [name for name in old if new[name]["digest"] != old[name]["digest"]] == [one.name]


def test_full_checks_read_everything(sample_archive, tmp_path):
    """``check_sources: full`` opens every file again, and finds the same."""
    root = working_folder(tmp_path / "w", sample_archive, check_sources="full")
    build(root)
    before = outputs(root)
    opened, _ = audited(root, sample_archive)
    assert len(opened) == sum(1 for path in sample_archive.rglob("*") if path.is_file())
    assert outputs(root) == before


def test_a_killed_validation_goes_on(tmp_path):
    """Killed with -9 in the middle, the next run ends with the bytes of an undisturbed one and leaves no litter."""
    raw = tmp_path / "raw"
    make_sample_data(raw, samples=100, sentinel1=False)
    root = working_folder(tmp_path / "w", raw, compute={"workers": 1})
    download(job_in(root))
    command = [sys.executable, "-m", "shardtrail.stages", "validate"]
    process = subprocess.Popen(command, cwd=root, stderr=subprocess.DEVNULL)
    while not (root / ".shardtrail" / "stat.sqlite-wal").exists() and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (root / "data" / "manifest.parquet").exists()
    build(root)
    whole = working_folder(tmp_path / "whole", raw)
    build(whole)
    assert outputs(root) == outputs(whole)
    assert not list(root.rglob("*.tmp"))


def test_a_damaged_cache_changes_nothing(built, sample_archive, tmp_path):
    """With its evidence damaged, a build says so, reads everything again and gives the same bytes."""
    root = working_folder(tmp_path / "w", sample_archive)
    build(root)
    path = root / ".shardtrail" / "stat.sqlite"
    content = bytearray(path.read_bytes())
    content[4096 : len(content) // 2] = os.urandom(len(content) // 2 - 4096)
    path.write_bytes(content)
    (root / ".shardtrail" / "validate.json").write_text("{")
    build(root)
    assert outputs(root) == outputs(built)


def damage_rows(root: Path, statement: str) -> None:
    with sqlite3.connect(root / ".shardtrail" / "stat.sqlite") as database:
        database.execute(statement)
    database.close()


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE units SET report = substr(report, 1, 9)",
        "UPDATE units SET report = '[]'",
        'UPDATE units SET report = replace(report, \'"md5":["\', \'"md5":["0\')',
        "UPDATE units SET sums = '{\"numbers\":[1]}'",
        "UPDATE units SET sums = replace(sums, '1', '2')",
        "UPDATE units SET report = x'ff'",
    ],
)
def test_damaged_rows_of_the_cache_change_nothing(tmp_path, harm):
    """Rows that were cut or edited, even such as still parse, are thrown away with a line said."""
    raw = write_numbers(tmp_path / "raw", {f"{n}.json": {"numbers": [n]} for n in range(12)})
    let_settle(raw)
    root = numbers_folder(tmp_path / "w", raw)
    build(root)
    before = outputs(root)
    damage_rows(root, harm)
    (root / ".shardtrail" / "validate.json").unlink()
    said: list[str] = []
    build(root, progress=Heard(said))
    assert any("stat.sqlite is damaged" in line for line in said)
    assert outputs(root) == before


@pytest.mark.parametrize(
    "harm",
    [
        lambda state: state["books"].update(seen=5),
        lambda state: state["books"].update(more=5),
        lambda state: state.update(books=[]),
        lambda state: state.update(outs=7),
        lambda state: state.pop("books"),
        lambda state: state.clear(),
    ],
)
def test_a_state_that_is_not_as_written_is_no_evidence(tmp_path, harm):
    """A validate.json with other content is distrusted with a line said; the books and the tables are right."""
    raw = write_numbers(tmp_path / "raw", {f"{n}.json": {"numbers": [n]} for n in range(4)})
    let_settle(raw)
    root = numbers_folder(tmp_path / "w", raw)
    books, before = build(root), outputs(root)
    path = root / ".shardtrail" / "validate.json"
    state = json.loads(path.read_bytes())
    harm(state)
    path.write_text(json.dumps(state))
    said: list[str] = []
    assert build(root, progress=Heard(said)) == books
    assert any("validate.json is not as it was written" in line for line in said)
    assert outputs(root) == before


# The machine's faults


def swap_for_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def swap_for_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


@pytest.mark.parametrize("harm", [Path.unlink, swap_for_folder, swap_for_pipe, grow])
def test_what_cannot_be_read_fails_by_name(tmp_path, harm):
    """A file that vanished, is none any more or changed since the scan fails its unit by name: nothing is
    quarantined or written, what could be read is kept, and the next build ends well."""
    raw = write_numbers(tmp_path / "raw", {f"{name}.json": {"numbers": [number]} for number, name in enumerate("abc")})
    root = numbers_folder(tmp_path / "w", raw)
    download(job_in(root))
    harm(raw / "b.json")
    with pytest.raises(StageFailed) as caught:
        validate(job_in(root))
    assert [unit for unit, _ in caught.value.failures] == ["b.json"]
    assert not (root / "data" / "manifest.parquet").exists()
    assert not (root / "data" / "quarantine.csv").exists()
    books = build(root)
    assert books.quarantined == 0
    assert books.accepted == len([path for path in raw.iterdir() if path.is_file()])


def test_a_layout_that_raises_fails_by_name(tmp_path):
    """A layout's own error names its sample and is not taken for a fault of the data."""
    raw = write_numbers(tmp_path / "raw", {"a.json": {}, "b.json": {"numbers": ["x"]}})
    root = numbers_folder(tmp_path / "w", raw)
    with pytest.raises(StageFailed, match=r"b\.json: TypeError"):
        build(root)


def test_validation_needs_the_inventory_of_this_tree(tmp_path):
    """Without an inventory, or with one of another tree, it says what to run."""
    raw = write_numbers(tmp_path / "raw", {"a.json": {}})
    root = numbers_folder(tmp_path / "w", raw)
    with pytest.raises(ConfigError, match="shardtrail run --until download"):
        validate(job_in(root))
    download(job_in(root))
    (root / ".shardtrail" / "scan.parquet").write_bytes(b"PAR1")
    assert validate(job_in(root)).accepted == 1
    shutil.rmtree(root / ".shardtrail")
    write_numbers(raw, {"b.json": {}})
    with pytest.raises(SourceChanged, match="shardtrail run --until download"):
        validate(job_in(root))


# Books


@st.composite
def trees(draw):
    """Samples good, broken, equal, labelled otherwise, with and without split."""
    contents = st.fixed_dictionaries(
        {"numbers": st.lists(st.integers(-5, 5), min_size=1, max_size=2)},
        optional={
            "labels": st.sampled_from([["a"], ["b"], ["a", "c"]]),
            "split": st.sampled_from(["train", "validation", "test"]),
            "attributes": st.fixed_dictionaries({"region": st.sampled_from(["r1", "r2", "r3", "r4"])}),
        },
    )
    return draw(st.dictionaries(st.sampled_from([f"s{n}.json" for n in range(12)]), contents | st.none(), min_size=1))


@settings(max_examples=40)
@given(trees(), st.sampled_from([1.0, 0.5]))
def test_the_books_balance(tmp_path_factory, tree, share):
    """Every file is accepted, quarantined or excluded, exactly once, and every table agrees."""
    raw = tmp_path_factory.mktemp("raw")
    for path, content in tree.items():
        (raw / path).write_text("{ broken" if content is None else json.dumps(content))
    root = numbers_folder(tmp_path_factory.mktemp("w"), raw, validate={"select": {"share": share}})
    try:
        books = build(root)
    except InputRejected:
        assert not (root / "data" / "manifest.parquet").exists()
        return
    assert books.seen == len(tree) == books.accepted + books.quarantined + books.excluded
    accepted = manifest(root)
    refused = [row["sample"] for row in quarantine(root)]
    assert len(accepted) == books.accepted
    assert len(refused) == len(set(refused)) == books.quarantined
    assert not set(accepted) & set(refused)
    figures = statistics(root)
    assert figures["books"] == {
        "seen": books.seen,
        "accepted": books.accepted,
        "quarantined": books.quarantined,
        "excluded": books.excluded,
    }
    assert sum(figures["splits"].values()) == books.accepted
    assert sum(figures["rejected"]["quarantined"].values()) == books.quarantined
    assert sum(figures["rejected"]["excluded"].values()) == books.excluded
    kept = {(row["digest"], row["split"]) for row in accepted.values()}
    assert len(kept) == len({digest for digest, _ in kept})


def test_too_many_bad_samples_stop_the_build(tmp_path):
    """More quarantined than ``max_bad_share`` allows fails with counts; each is named in quarantine.csv."""
    raw = write_numbers(tmp_path / "raw", {f"{n}.json": {"numbers": [n]} for n in range(3)})
    (raw / "3.json").write_text("{")
    root = numbers_folder(tmp_path / "w", raw, validate={"max_bad_share": 0.2})
    with pytest.raises(InputRejected, match=r"1 of 4 samples are quarantined \(25.0%"):
        build(root)
    assert [row["sample"] for row in quarantine(root)] == ["3"]
    assert not (root / "data" / "manifest.parquet").exists()
    numbers_folder(root, raw, validate={"max_bad_share": 0.25})
    assert build(root).accepted == 3


def test_no_samples_is_an_error(tmp_path):
    """A tree with no sample of the layout, or with none left, fails; no manifest is written."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "notes.txt").write_text("hello")
    root = numbers_folder(tmp_path / "w", tmp_path / "raw")
    with pytest.raises(InputRejected, match="none of the 1 files"):
        build(root)
    (tmp_path / "raw" / "a.json").write_text("{")
    with pytest.raises(InputRejected, match="no sample is left"):
        build(root)
    assert [row["reason"] for row in quarantine(root)] == ["no_json"]
    assert not (root / "data" / "manifest.parquet").exists()


def test_names_survive_the_tables(tmp_path):
    """Odd names come through manifest, quarantine and warnings unchanged."""
    names = ["a b", "plus+1", "50%", "100%20", "#1", "it's", "日本", 'quote"', "comma,semi;", "n" * 200]
    raw = write_numbers(
        tmp_path / "raw", {f"{name}.json": {"numbers": [n], "odd": True} for n, name in enumerate(names)}
    )
    (raw / "bad,\n.json").write_text("{")
    root = numbers_folder(tmp_path / "w", raw)
    build(root)
    assert sorted(manifest(root)) == sorted(names)
    assert [row["sample"] for row in quarantine(root, "warnings.csv")] == sorted(names)
    assert [row["path"] for row in quarantine(root)] == ["bad,\n.json"]


def test_changed_parameters_read_nothing_again(tmp_path):
    """Other parameters of ``validate`` are applied from what is known; only the tables change."""
    raw = write_numbers(tmp_path / "raw", {f"{n}.json": {"numbers": [n]} for n in range(20)})
    let_settle(raw)
    root = numbers_folder(tmp_path / "w", raw)
    assert build(root).accepted == 20
    numbers_folder(root, raw, validate={"select": {"share": 0.5}})
    opened, _ = audited(root, raw)
    assert opened == []
    assert 0 < statistics(root)["books"]["excluded"] < 20


def test_lost_outputs_come_back(tmp_path):
    """An output that was deleted or edited is made again with the same bytes."""
    raw = write_numbers(tmp_path / "raw", {f"{n}.json": {"numbers": [n]} for n in range(4)})
    let_settle(raw)
    root = numbers_folder(tmp_path / "w", raw)
    build(root)
    before = outputs(root)
    (root / "data" / "quarantine.csv").unlink()
    (root / "data" / "statistics.json").write_text("{}")
    build(root)
    assert outputs(root) == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"id": "a"}, "two samples the id 'a'"),
        ({"labels": ["z"]}, r"b has labels outside the vocabulary: \['z'\]"),
        ({"split": "val"}, "b has the split 'val'"),
        ({"attributes": {"digest": "1"}}, "may not be called digest"),
    ],
)
def test_a_careless_layout_is_refused(tmp_path, content, said):
    """A layout of one's own that breaks the contract is refused by sample and reason; nothing is written."""
    raw = write_numbers(tmp_path / "raw", {"a.json": {"numbers": [1]}, "b.json": {"numbers": [2], **content}})
    root = numbers_folder(tmp_path / "w", raw)
    with pytest.raises(ConfigError, match=said):
        build(root)
    assert list(outputs(root)) == ["inventory.parquet"]


def test_a_layout_that_invents_files_is_refused(tmp_path, monkeypatch):
    """A unit with a file that the raw tree does not hold is refused by its name."""
    raw = write_numbers(tmp_path / "raw", {"a.json": {}, "b.json": {}})
    root = numbers_folder(tmp_path / "w", raw)
    files = (SourceFile("numbers", "b.json", 2), SourceFile("mask", "b.png", 2))
    units = [Unit("a.json", "sample", (SourceFile("numbers", "a.json", 2),)), Unit("b.json", "sample", files)]
    monkeypatch.setattr("numbers_layout.Numbers.group", lambda layout, listed: Grouping(units))
    with pytest.raises(ConfigError, match=r"unit b\.json has a file that is not in the raw tree"):
        build(root)


# Reproducing


def test_reproducing_refuses_another_manifest(tmp_path):
    """Under ``dvc repro``, raw files that no longer give the recorded manifest are refused, sample by sample."""
    raw = write_numbers(tmp_path / "raw", {f"{n}.json": {"numbers": [n]} for n in range(4)})
    root = numbers_folder(tmp_path / "w", raw)
    build(root)
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in outputs(root).items()}
    (root / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  validate:\n    cmd: x\n    deps:\n    - path: data/inventory.parquet\n"
        f"      md5: {md5['inventory.parquet']}\n    outs:\n    - path: data/manifest.parquet\n"
        f"      md5: {md5['manifest.parquet']}\n"
    )
    assert validate(job_in(root, reproduce=True)).accepted == 4
    (raw / "2.json").write_text('{"numbers": [7]}')
    shutil.rmtree(root / ".shardtrail")
    with pytest.raises(SourceChanged, match=r"samples that differ:\n  2\n"):
        validate(job_in(root, reproduce=True))
    (root / "data" / "manifest.parquet").unlink()
    with pytest.raises(SourceChanged, match="dvc pull"):
        validate(job_in(root, reproduce=True))
    assert not (root / "data" / "manifest.parquet").exists()
    assert build(root).accepted == 4


# Rules


def sample(name: str, **changes: object) -> Sample:
    values: dict[str, object] = {"files": (SourceFile("image", f"{name}.png", 3, name),), "labels": ("a",)}
    return Sample(name, **{**values, **changes})


def test_select_draws_a_stable_share():
    """A share is drawn by id and seed alone: more samples move nobody, and a larger share holds the smaller."""
    samples = [sample(f"s{number}") for number in range(500)]
    half = {s.id for s in select(samples, SelectParams(share=0.5), ("a",))[0]}
    more = {s.id for s in select([*samples[::-1], sample("new")], SelectParams(share=0.5), ("a",))[0]}
    larger = {s.id for s in select(samples, SelectParams(share=0.7), ("a",))[0]}
    other = {s.id for s in select(samples, SelectParams(share=0.5, seed=1), ("a",))[0]}
    assert 200 < len(half) < 300
    assert more - {"new"} == half
    assert half < larger
    assert other != half


def test_select_by_class_country_and_day():
    """Classes, countries and days select as documented, bounds included; the rest is excluded with the reason."""
    samples = [
        sample("x", labels=("a", "b"), attributes={"country": "Austria", "acquired": "2017-06-13"}),
        sample("y", labels=("b",), attributes={"country": "Ireland", "acquired": "2017-07-01"}),
        sample("z", labels=("c",), attributes={"country": "Austria"}),
    ]
    vocabulary = ("a", "b", "c")

    def kept(**params: object) -> list[str]:
        chosen, excluded = select(samples, SelectParams(**params), vocabulary)
        assert len(chosen) + len(excluded) == 3
        assert all(entry.excluded and entry.finding.reason == "not_selected" for entry in excluded)
        return [entry.id for entry in chosen]

    assert kept(classes=["a", "c"]) == ["x", "z"]
    assert kept(countries=["Ireland"]) == ["y"]
    assert kept(date_from="2017-06-13", date_to="2017-06-30") == ["x"]
    assert kept(date_from="2017-07-01") == ["y"]
    with pytest.raises(ConfigError, match="did you mean Pastures"):
        select(samples, SelectParams(classes=["Pasture"]), ("Pastures",))
    with pytest.raises(ConfigError, match="known: Austria, Ireland"):
        select(samples, SelectParams(countries=["Atlantis"]), vocabulary)
    with pytest.raises(ConfigError, match="day of acquisition"):
        select([sample("x")], SelectParams(date_from="2017-07-01"), vocabulary)


def test_splits_keep_their_shares():
    """Over many regions each split gets about its share, and a seed decides which."""
    keys = [f"r{number}" for number in range(4000)]
    splits = assign(keys, SplitParams())
    shares = {split: list(splits.values()).count(split) / len(keys) for split in ("train", "validation", "test")}
    assert shares == pytest.approx({"train": 0.8, "validation": 0.1, "test": 0.1}, abs=0.02)
    assert assign(keys, SplitParams(seed=1)) != splits
    assert assign(["33UUP", "29UPU", "34TEQ", "35VPK"], SplitParams()) == {
        "33UUP": "test",
        "29UPU": "validation",
        "34TEQ": "train",
        "35VPK": "train",
    }


@given(st.sets(st.text(max_size=4), min_size=3, max_size=60), st.text(max_size=4))
def test_a_new_region_moves_no_other(keys, new):
    """Once every split has a region of its own draw, another region changes nobody's split."""
    params = SplitParams(train=0.4, validation=0.3, test=0.3)
    before, after = assign(keys, params), assign(keys | {new}, params)
    assert set(before.values()) == set(after.values()) == {"train", "validation", "test"}
    moved = [key for key in keys if before[key] != after[key]]
    # While some split had to borrow a region, that one may go back and another may be lent.
    assert len(moved) <= 4
    if len(keys) >= 40:
        assert not moved


@pytest.mark.parametrize(
    ("samples", "said", "expected"),
    [
        (2, "too few", {"train"}),
        (3, "drawn by sample", {"train", "validation", "test"}),
        (30, "drawn by sample", {"train", "validation", "test"}),
    ],
)
def test_sets_with_one_region(samples, said, expected):
    """With one region the draw is by sample, with fewer samples than splits all are train; both are said."""
    lines: list[str] = []
    drawn = draw_splits(
        [sample(f"s{n}", attributes={"region": "33UUP"}) for n in range(samples)], SplitParams(), lines.append
    )
    assert {entry.split for entry in drawn} == expected
    assert len(lines) == 1 and said in lines[0]


def test_official_splits_stay():
    """A sample that has a split keeps it, and a split with share 0 gets nobody."""
    params = SplitParams(train=0.9, validation=0.1, test=0)
    drawn = draw_splits([sample("x", split="test"), *(sample(f"s{n}") for n in range(50))], params)
    assert drawn[0].split == "test"
    assert {entry.split for entry in drawn[1:]} == {"train", "validation"}


def test_duplicates():
    """Of equal samples train's first stays: one in another split or with other labels goes, one beside it warns."""
    same = (SourceFile("image", "a.png", 3, "m"),)
    samples = [
        sample("t2", files=same, split="train"),
        sample("v1", files=same, split="validation"),
        sample("t1", files=same, split="train"),
        sample("t3", files=same, split="train", labels=("b",)),
        sample("other", split="test"),
    ]
    for order in range(5):
        random.Random(order).shuffle(samples)
        kept, rejected, warnings = drop_duplicates(samples)
        assert sorted(entry.id for entry in kept) == ["other", "t1", "t2"]
        assert sorted((entry.id, entry.finding.reason) for entry in rejected) == [
            ("t3", "label_conflict"),
            ("v1", "duplicate_across_splits"),
        ]
        assert [(name, finding.reason) for name, finding in warnings] == [("t2", "duplicate")]
        assert all("t1" in entry.finding.detail for entry in rejected)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70)), st.randoms())
def test_sums_are_exact(values, shuffler):
    """Integers and floats of any size add up without rounding, in whatever order they come."""
    expected = sum(map(Fraction, values), Fraction(0))
    shuffler.shuffle(values)
    total = ExactSum()
    for value in values:
        total.add(value)
    assert total.value == expected


def test_statistics_do_not_cancel():
    """A band with a tiny spread far from zero keeps its standard deviation."""
    base = 2**40
    unit = {"x": BandSums(2, 2 * base + 2, base**2 + (base + 2) ** 2, base, base + 2)}
    assert band_statistics([unit, unit], ["x"])["x"] == {
        "count": 4,
        "mean": base + 1.0,
        "std": 1.0,
        "min": base,
        "max": base + 2,
    }
