from __future__ import annotations

import sqlite3
import struct
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtrail.samples import BandSums, Finding, Report, SourceFile, Unit
from shardtrail.stat_cache import (
    GRAIN_NS,
    Checked,
    StatCache,
    check_rules,
    is_racy,
    report_to_json,
    signature,
    sums_to_json,
)

OLD = 1_500_000_000 * 10**9
NOW = 1_800_000_000 * 10**9
RULES = '["numbers", 1, {}]'


def unit_of(key: str = "a", stat: tuple[int, int, int, int] = (3, OLD, OLD, 7)) -> Unit:
    return Unit(key, "sample", (SourceFile("numbers", f"{key}.json", stat[0], stat=stat),))


def checked(unit: Unit, read_ns: int = NOW, **found: object) -> Checked:
    files = tuple(replace(file, md5="0" * 32) for file in unit.files)
    report = Report(unit.key, unit.kind, files, **found)
    stats = tuple((file.path, file.stat, file.md5) for file in files)
    return Checked(unit.key, report_to_json(report), sums_to_json(report.sums), stats, (read_ns, read_ns))


def stats_of(unit: Unit) -> bytes:
    return b"".join(struct.pack("<4q", *file.stat) for file in unit.files)


def signatures(*units: Unit) -> dict[str, str]:
    return {unit.key: signature(unit, RULES, stats_of(unit)) for unit in units}


def test_what_was_saved_is_known(tmp_path):
    """A unit that was saved is not outdated, and its report comes back as it was, from another process's view."""
    unit = unit_of()
    found = {
        "faults": (Finding("bad", "a.json", "a b"),),
        "warnings": (Finding("odd", "a.json", "c, d"),),
        "facts": {"labels": ["ü", "b"], "month": "2017-06"},
    }
    with StatCache(tmp_path / "stat.sqlite") as cache:
        cache.save([checked(unit, **found)], signatures(unit))
    with StatCache(tmp_path / "stat.sqlite") as cache:
        assert cache.outdated(signatures(unit)) == []
        files = (replace(unit.files[0], md5="0" * 32, stat=None),)
        assert list(cache.reports([unit])) == [Report("a", "sample", files, **found)]
        assert cache.digests(["a.json", "b.json"]) == {"a.json": (unit.files[0].stat, "0" * 32)}


numbers = st.one_of(st.integers(0, 2**80), st.floats(allow_nan=False, allow_infinity=False))


@given(st.dictionaries(st.text(max_size=3), st.builds(BandSums, st.integers(1, 9), *[numbers] * 4), max_size=3))
def test_sums_are_kept_exactly(sums):
    """Sums of bands, integers and floats, come back without the loss of a bit."""
    unit = unit_of()
    with tempfile.TemporaryDirectory() as folder, StatCache(Path(folder) / "stat.sqlite") as cache:
        cache.save([checked(unit, sums=sums)], signatures(unit))
        assert list(cache.sums(["a"])) == [sums]


@pytest.mark.parametrize(
    "changed",
    [
        unit_of(stat=(4, OLD, OLD, 7)),
        unit_of(stat=(3, OLD + 1, OLD, 7)),
        unit_of(stat=(3, OLD, OLD + 1, 7)),
        unit_of(stat=(3, OLD, OLD, 8)),
        replace(unit_of(), kind="other"),
        replace(unit_of(), files=()),
    ],
    ids=["size", "mtime", "ctime", "inode", "kind", "file removed"],
)
def test_a_change_of_any_stat_outdates(tmp_path, changed):
    """A unit is read again when the size, a time or the inode of a file differs, or the set of its files."""
    with StatCache(tmp_path / "stat.sqlite") as cache:
        cache.save([checked(unit_of())], signatures(unit_of()))
        assert cache.outdated(signatures(changed)) == ["a"]


def test_other_checks_outdate(tmp_path):
    """Raising a layout's check version, or other options of its checks, drops every old verdict."""

    class Layout:
        name, check_version = "numbers", 1

    before = check_rules(Layout())
    Layout.check_version = 2
    raised = check_rules(Layout())
    Layout.check_options = {"strict": True}
    assert (
        len({signature(unit_of(), rules, stats_of(unit_of())) for rules in (before, raised, check_rules(Layout()))})
        == 3
    )


@pytest.mark.parametrize("stamp", [NOW - GRAIN_NS, NOW, NOW + GRAIN_NS], ids=["just before", "at once", "just after"])
@pytest.mark.parametrize("place", [1, 2], ids=["mtime", "ctime"])
def test_a_racy_file_is_not_trusted(tmp_path, stamp, place):
    """A file stamped within the clock's grain of its reading is used now and read again next time."""
    stat = [3, OLD, OLD, 7]
    stat[place] = stamp
    unit = unit_of(stat=tuple(stat))
    with StatCache(tmp_path / "stat.sqlite") as cache:
        cache.save([checked(unit_of(), NOW)], signatures(unit_of()))  # as it was known before
        cache.save([checked(unit, NOW)], signatures(unit))
        assert len(list(cache.reports([unit]))) == 1
        assert cache.outdated(signatures(unit)) == ["a"]
        assert cache.digests(["a.json"]) == {}


def test_a_wrong_clock_is_not_racy_for_ever():
    """A time stamp far in the future does not make a file untrusted every night."""
    assert not is_racy((3, NOW + 10**18, OLD, 7), NOW, NOW)


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 100, None], ids=["empty", "text", "foreign"])
def test_a_foreign_file_is_replaced(tmp_path, content):
    """A cache file that is none is thrown away with a line said, and a new one works."""
    path = tmp_path / "stat.sqlite"
    if content is None:
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE files (name TEXT)")
        database.close()
    else:
        path.write_bytes(content)
    lines: list[str] = []
    with StatCache(path, say=lines.append) as cache:
        assert bool(lines) == (content != b"")
        cache.save([checked(unit_of())], signatures(unit_of()))
        assert cache.outdated(signatures(unit_of())) == []


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from test_stat_cache import StatCache, checked, signatures, unit_of
cache = StatCache(Path(sys.argv[2]))
cache.save([checked(unit_of("a"))], signatures(unit_of("a")))
cache.commit()
cache.save([checked(unit_of("b"))], signatures(unit_of("b")))
os.kill(os.getpid(), 9)
"""


def test_a_kill_loses_what_was_not_committed(tmp_path):
    """After kill -9 everything committed is known, and the cache works without repair."""
    path = tmp_path / "stat.sqlite"
    subprocess.run([sys.executable, "-c", KILLED, str(Path(__file__).parent), str(path)], check=False)
    with StatCache(path, say=pytest.fail) as cache:
        assert cache.outdated(signatures(unit_of("a"), unit_of("b"))) == ["b"]


def test_many_units_keep_their_order(tmp_path):
    """More units than one query holds come back in the order they were asked for."""
    units = [unit_of(f"u{number}") for number in range(1203)]
    with StatCache(tmp_path / "stat.sqlite") as cache:
        assert cache.outdated(signatures(*units)) == [unit.key for unit in units]
        cache.save([checked(unit) for unit in reversed(units)], signatures(*units))
        assert [report.unit for report in cache.reports(units)] == [unit.key for unit in units]
        assert cache.outdated(signatures(*units)) == []
