"""``python -m benchmarks.tables``: write the tables of README.md, and the figure on the project's first page, anew
from every result.json.

A table stands between ``<!-- NAME -->`` and ``<!-- end -->``, so that no figure is typed by hand.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contest import BUSY_PERCENT

HERE = Path(__file__).parent


def main() -> None:
    """Rewrite both pages."""
    for path, renew in ((HERE / "README.md", page), (HERE.parent / "README.md", first_page)):
        path.write_text(renew(path.read_text()))


def page(text: str) -> str:
    """The page with every block filled anew whose benchmark was run."""
    for folder, unit in (("write_shards", "patches"), ("jpeg", "photographs")):
        kept = HERE / folder / "result.json"
        if kept.exists():
            result = json.loads(kept.read_text())
            text = replaced(text, folder, [*_speed(result["rows"], unit), "", *_setting(result)])
            if "memory" in result:
                text = replaced(text, f"{folder} memory", _memory(result["memory"], unit))
    kept = HERE / "deep_check" / "result.json"
    if kept.exists():
        result = json.loads(kept.read_text())
        text = replaced(text, "deep_check", [*_checking(result), "", *_setting(result)])
    kept = HERE / "encodings" / "result.json"
    if kept.exists():
        result = json.loads(kept.read_text())
        text = replaced(text, "encodings", [*_encoded(result), "", *_setting(result)])
    kept = HERE / "orchestration" / "result.json"
    if kept.exists():
        result = json.loads(kept.read_text())
        text = replaced(text, "orchestration", [*_orchestrated(result), "", *_setting(result)])
    kept = HERE / "quiet_night" / "result.json"
    if kept.exists():
        result = json.loads(kept.read_text())
        text = replaced(text, "quiet_night", [*_nights(result), "", *_setting(result)])
    for name, table in (("plan", _planned), ("locality", _changed)):
        kept = HERE / name / "result.json"
        if kept.exists():
            result = json.loads(kept.read_text())
            text = replaced(text, name, [*table(result), "", *_setting(result)])
    return text


def first_page(text: str) -> str:
    """The project's README with its figure of writing anew, unless that was measured on a busy machine."""
    result = json.loads((HERE / "write_shards" / "result.json").read_text())
    if _busy(result):
        return text
    ours = next(row for row in result["rows"] if row["role"] == "ours")
    figure = f"{ours['per_second']:,.0f} pairs/s, {ours['ratio']['old']:.0f} times BigEarthNet's own way"
    text, count = re.subn(r"[\d,]+ pairs/s, [\d,]+ times BigEarthNet's own way", figure, text)
    if not count:
        raise SystemExit(f"README.md of the project has no figure of the form: {figure}")
    return text


def replaced(text: str, name: str, lines: Sequence[str]) -> str:
    """The page with the block of this name filled anew.

    Raises:
        SystemExit: the page has no such block.
    """
    block = re.compile(rf"(?<=<!-- {re.escape(name)} -->\n).*?(?=<!-- end -->)", re.DOTALL)
    if not block.search(text):
        raise SystemExit(f"README.md has no block between <!-- {name} --> and <!-- end -->")
    content = "\n".join(lines) + "\n"
    return block.sub(lambda _: content, text, count=1)


def _speed(rows: Sequence[Mapping[str, Any]], unit: str) -> list[str]:
    against = list(rows[0]["ratio"])
    titles = {"old": "to BigEarthNet's way", "best_peer": "to the best peer", "copy": "to copying"}
    head = ["writer", unit, f"{unit}/s", "slowest to fastest", *(titles[to] for to in against)]
    head += ["MiB, all processes", "largest process", "KiB a sample", "against damage"]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 2), "---"])]
    for row in sorted(rows, key=lambda row: -row["per_second"]):
        speeds = sorted(row["samples"] / seconds for seconds in row["seconds"])
        name = f"**{row['writer']}**" if row["role"] == "ours" else row["writer"]
        ratios = [f"{row['ratio'][to]:.1f}" if to == "old" else f"{row['ratio'][to]:.2f}" for to in against]
        cells = [name, f"{row['samples']:,}", f"{row['per_second']:,.0f}", f"{speeds[0]:,.0f} to {speeds[-1]:,.0f}"]
        cells += [*ratios, f"{row['peak_mib']:,}", f"{row['largest_mib']:,}", f"{row['bytes_per_sample'] / 1024:,.0f}"]
        lines.append(_line([*cells, row["checks"]]))
    return lines


def _memory(rows: Sequence[Mapping[str, Any]], unit: str) -> list[str]:
    head = [unit, "MiB, all processes", "largest process", "largest worker"]
    body = [[f"{row[key]:,}" for key in ("samples", "peak_mib", "largest_mib", "worker_mib")] for row in rows]
    return [_line(head), _line(["---:"] * len(head)), *map(_line, body)]


def _checking(result: Mapping[str, Any]) -> list[str]:
    speeds = {row["reader"]: row["gb_per_second"] for row in result["rows"]}
    lines = [_line(["reader", "GB/s", "slowest to fastest", "to md5sum", "notices"])]
    lines.append(_line(["---", "---:", "---:", "---:", "---"]))
    for row in result["rows"]:
        found = sorted(result["bytes"] / seconds / 1e9 for seconds in row["seconds"])
        name = f"**{row['reader']}**" if row["role"] == "ours" else row["reader"]
        ratio = row["gb_per_second"] / speeds["`md5sum`"]
        cells = [f"{row['gb_per_second']:.2f}", f"{found[0]:.2f} to {found[-1]:.2f}", f"{ratio:.2f}", row["notices"]]
        lines.append(_line([name, *cells]))
    return lines


def _encoded(result: Mapping[str, Any]) -> list[str]:
    head = ["encoding", "KiB a sample", "to raw", "written a second of processor", "read a second of processor"]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    raw = next(row["bytes_per_sample"] for row in result["rows"] if row["encoding"] == "raw")
    for row in result["rows"]:
        name = "`export --gzip` of raw" if row["encoding"] == "gzip" else f"`{row['encoding']}`"
        cells = [f"{row['bytes_per_sample'] / 1024:,.0f}", f"{row['bytes_per_sample'] / raw:.2f}"]
        lines.append(_line([name, *cells, *(f"{row[f'{what}_per_second']:,}" for what in ("write", "read"))]))
    return [*lines, "", f"{result['samples']} {result['source']}, taken in turn for {result['records']:,} records."]


def _orchestrated(result: Mapping[str, Any]) -> list[str]:
    failed, killed = result["failed"], result["killed"]
    rows = [
        ("run ended as", failed["ended"].lower(), killed["ended"].lower()),
        ("shards missing then, of all", *(f"{one['missing']:,} of {result['shards']:,}" for one in (failed, killed))),
        (
            "of these named by the run's state, by `status`",
            f"{failed['named_by_state']}, {failed['named_by_status']}",
            "",
        ),
        ("task runs recorded, all stages", f"{failed['task_runs']:,}", ""),
        ("shards that the recorded task runs cover", f"{failed['shards_in_task_runs']:,}", ""),
        ("shards written by the retry", f"{failed['written_by_retry']:,}", f"{killed['written_by_retry']:,}"),
        ("shards written again by the retry", f"{failed['written_again']:,}", f"{killed['written_again']:,}"),
        ("digest as without Prefect", *("yes" if one["same_digest"] else "**no**" for one in (failed, killed))),
    ]
    alone, on_prefect = result["seconds_without"]["shard"], failed["shard_seconds"]
    return [
        _line(["", f"{result['failures']} raw files vanish", "killed in the middle"]),
        _line(["---", "---:", "---:"]),
        *map(_line, rows),
        "",
        f"The stage `shard` took {on_prefect:,.0f} s on Prefect and {alone:,.0f} s without.",
    ]


def _busy(result: Mapping[str, Any]) -> bool:
    return bool(result["machine"].get("busy_percent", 0) > BUSY_PERCENT)


def _nights(result: Mapping[str, Any]) -> list[str]:
    rows = {row["night"]: row for row in result["rows"]}
    find = statistics.median(rows["find"]["processor_seconds"])
    head = ["", "s of processor", "to `find`", "s by the clock", "MiB, largest process", "MiB, all processes"]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    for name, row in rows.items():
        processor, clock = (statistics.median(row[key]) for key in ("processor_seconds", "seconds"))
        cells = [f"{processor:,.1f}", f"{processor / find:.1f}", f"{clock:,.1f}"]
        lines.append(_line([name, *cells, f"{row['largest_mib']:,}", f"{row['peak_mib']:,}"]))
    opened = ", ".join(f"{kind} {count:,}" for kind, count in result["quiet"]["opened"].items())
    found = f"{result['samples']:,} samples, {result['files']:,} raw files, {result['shards']:,} shards."
    return [*lines, "", f"{found} Opened in a quiet night: {opened}."]


def _planned(result: Mapping[str, Any]) -> list[str]:
    head = ["samples", "", "group", "target", "shards", "seconds", "of the processor", "peak MiB"]
    lines = [_line(head), _line(["---", "---:", "---", *["---:"] * 5])]
    for row in result["rows"]:
        cells = [row["samples"], f"{row['rows']:,}", row["group"], f"{row['target']:,}", f"{row['shards']:,}"]
        lines.append(_line([*cells, f"{row['seconds']:,.1f}", f"{row['cpu_seconds']:,.1f}", f"{row['peak_mib']:,}"]))
    return lines


def _changed(result: Mapping[str, Any]) -> list[str]:
    quantiles = ("median", "mean", "p90", "p99", "max")
    head = ["group", "cut", "target", "change", "shards", *quantiles, "% of bytes, median", "p99", "max"]
    lines = [_line(head), _line(["---", "---", "---:", "---", *["---:"] * (len(head) - 4)])]
    for row in result["rows"]:
        cells = [row["group"], row["cut"], f"{row['target']:,}", row["change"], f"{row['of_shards']:,}"]
        cells += [f"{row['shards'][name]:.4g}" for name in quantiles]
        lines.append(_line([*cells, *(f"{row['percent_of_bytes'][name]:.2f}" for name in ("median", "p99", "max"))]))
    return lines


def _setting(result: Mapping[str, Any]) -> list[str]:
    """Machine and versions in two sentences, and a third if other work was running."""
    found = result["machine"]
    versions: dict[str, str] = {}
    for environment in result["versions"].values():
        for name, version in environment.items():
            versions.setdefault(name, version)
            if versions[name] != version:
                versions[f"{name} (mosaicml-streaming's)"] = version
    listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    noise = f"**Other work took {found['busy_percent']} % of the machine: noise.**" if _busy(result) else ""
    return [
        *([noise, ""] if noise else []),
        f"{found['date']}, commit {found['commit']}: {found['processor']}, {found['cores']} cores, "
        f"{found['memory_gib']} GiB, {found['disk']} ({found['disk_mib_per_second']} MiB/s with fsync), "
        f"Linux {found['kernel']}.",
        f"{listed}.",
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
