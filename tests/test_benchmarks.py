"""The benchmarks' page and arithmetic; speed itself is never tested."""

import json
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.contest import COPY, Contestant, Run, summarise
from benchmarks.measure import Measured
from benchmarks.peers.sample import Row, read_list, write_list

ROOT = Path(__file__).parents[1]


def test_pages_are_what_was_measured():
    """Every table, and the first page's figure, is what the kept results give, so that none drifts."""
    page, first_page = (ROOT / "benchmarks" / "README.md").read_text(), (ROOT / "README.md").read_text()

    assert tables.page(page) == page
    assert tables.first_page(first_page) == first_page


def test_busy_machine_is_named(tmp_path, monkeypatch):
    """Figures of a machine that did other work are called noise, and stay off the first page."""
    result = json.loads((ROOT / "benchmarks" / "write_shards" / "result.json").read_text())
    result["machine"]["busy_percent"] = 97
    (tmp_path / "write_shards").mkdir()
    (tmp_path / "write_shards" / "result.json").write_text(json.dumps(result))
    monkeypatch.setattr(tables, "HERE", tmp_path)
    page = "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in ("write_shards", "write_shards memory"))
    first_page = "1 pairs/s, 1 times BigEarthNet's own way"

    assert "**Other work took 97 % of the machine: noise.**" in tables.page(page)
    assert tables.first_page(first_page) == first_page


def test_page_without_a_block_is_refused():
    """A table that has no place on the page is an error, not lost without a word."""
    with pytest.raises(SystemExit, match="no block between <!-- jpeg -->"):
        tables.replaced("# Benchmarks\n", "jpeg", ["|1|"])


def test_summary_is_of_medians():
    """A row's speed is that of the median round; ratios are to the slow way, to the fastest peer and to copying."""
    names = {"ours": "ours", "slow": "old", "quick": "peer", "quicker": "peer", COPY: "floor"}
    contestants = [
        Contestant(name, "m", (), 100, "none", role, rows={name: ("shard", "hash")} if name == "ours" else {})
        for name, role in names.items()
    ]
    runs = {
        "ours": [_run(shard=1.0, hash=1.0), _run(shard=0.5, hash=0.5), _run(shard=9, hash=9)],
        "slow": [_run(seconds=50)],
        "quick": [_run(seconds=5)],
        "quicker": [_run(seconds=4)],
        COPY: [_run(seconds=1)],
    }

    ours = summarise(contestants, runs)[0]

    assert ours["per_second"] == 50
    assert ours["ratio"] == {"old": 25, "best_peer": 2, "copy": 0.5}
    assert ours["bytes_per_sample"] == 7


def test_parts_of_a_list_are_the_list(tmp_path):
    """The processes of a writer share its list without loss or overlap."""
    rows = [Row(str(number), ["a"], {"image": f"/raw/{number}"}) for number in range(5)]
    write_list(tmp_path / "list", rows)

    parts = [read_list(tmp_path / "list", part, 2) for part in range(2)]

    assert [row.id for row in parts[0]] == ["0", "2", "4"]
    assert sorted(parts[0] + parts[1], key=lambda row: row.id) == rows


def _run(**printed: float) -> Run:
    return Run(printed, Measured(1.0, 3.0, 2.0, 1.0, json.dumps(printed)), 700)
