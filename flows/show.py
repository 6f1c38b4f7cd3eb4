"""What the commands print. The figures come from the library; here they only get a form."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.console import err, out, size, table
from shardtrail.dataset import load_dataset
from shardtrail.folder import Folder
from shardtrail.job import Job


def _json(value: Any) -> None:
    json.dump(value, sys.stdout, ensure_ascii=False, indent=1)
    sys.stdout.write("\n")


def status(job: Job, as_json: bool) -> None:
    """The plan against the disk."""
    from shardtrail.stages.shard import status as compare

    found = compare(job)
    if as_json:
        _json(dataclasses.asdict(found))
        return
    books(found.samples)
    out.print(f"shards   {found.done:,} of {found.planned:,} done")
    table([{"failed": fault["shard"], "error": fault["error"]} for fault in found.failed])
    if found.missing:
        shown = ", ".join(found.missing[:10]) + (
            f" and {len(found.missing) - 10} more" if len(found.missing) > 10 else ""
        )
        out.print(f"missing  {shown}; make them: shardtrail run --until hash")
    out.print(f"digest   {found.digest or 'none yet'}")


def books(samples: dict[str, int]) -> None:
    """Seen = accepted + quarantined + excluded."""
    figures = " + ".join(f"{samples.get(key, 0):,} {key}" for key in ("accepted", "quarantined", "excluded"))
    out.print(f"samples  {samples.get('seen', 0):,} seen = {figures}")


def verify(job: Job, deep: bool, repair: bool, as_json: bool) -> bool:
    """Verify, and repair if asked; True if no fault remains."""
    from shardtrail.record import renew_cached
    from shardtrail.sharding.verify import repair as mend
    from shardtrail.sharding.verify import verify as examine

    found = examine(job, deep=deep)
    repaired: tuple[str, ...] = ()
    if repair and found.faults:
        repaired = mend(job, found)
        renew_cached(job, repaired)
    remaining = examine(job, deep=deep).faults if repaired else found.faults
    if as_json:
        _json(
            {
                "shards": found.shards,
                "records": found.records,
                "faults": [dataclasses.asdict(fault) for fault in found.faults],
                "repaired": list(repaired),
            }
        )
        return not remaining
    table([{key: "" if value is None else value for key, value in dataclasses.asdict(f).items()} for f in found.faults])
    kind = "every byte read" if deep else "sizes and receipts; --deep reads every byte"
    out.print(f"{found.shards:,} shards, {found.records:,} records, {len(found.faults):,} faults ({kind})")
    if repaired:
        out.print(f"repaired {', '.join(repaired)}")
    elif found.faults:
        out.print("rebuild the faulty shards alone: shardtrail verify --deep --repair")
    return not remaining


_GROUPS = 40
"""Rows of the plan's table: beyond them it is a list for machines."""


def plan(job: Job, as_json: bool) -> None:
    """The plan as a table and a picture, what it would cost, and what new samples would."""
    from shardtrail.planning.preview import preview
    from shardtrail.stages.validate import is_current

    found = preview(job)
    if not is_current(job):
        err.print("[yellow]![/] the manifest is of other parameters; first: shardtrail run --until validate")
    if as_json:
        _json(dataclasses.asdict(found))
        return
    grouped = len(found.summary.groups) > len(found.summary.splits)
    rows = found.summary.groups if grouped else found.summary.splits
    table(
        [
            {
                "split": row.split,
                **({"group": row.group} if grouped else {}),
                "shards": row.shards,
                "samples": row.samples,
                "size": size(row.bytes),
                "smallest": size(row.smallest),
                "median": size(row.median),
                "largest": size(row.largest),
            }
            for row in rows[:_GROUPS]
        ]
    )
    if len(rows) > _GROUPS:
        out.print(f"and {len(rows) - _GROUPS:,} more groups; all of them: shardtrail plan --json")
    _histogram(found.sizes)
    change = found.change
    out.print(
        f"to write: {len(change.written):,} of {len(found.sizes):,} shards, {change.samples:,} samples, "
        f"{size(change.bytes)}; {change.kept + len(change.found):,} kept, {len(change.dropped):,} no longer named"
    )
    for growth in found.growth:
        out.print(
            f"{growth.what} would rewrite {growth.shards:,} of {growth.of_shards:,} shards, {size(growth.bytes)} "
            f"({growth.draws} {'draws' if growth.draws > 1 else 'draw'} of made-up ids)"
        )
    for warning in found.summary.warnings:
        out.print(f"[yellow]![/] {warning}")


def _histogram(sizes: Sequence[int], bins: int = 8) -> None:
    """Shard sizes as bars, one a bin."""
    if len(sizes) < 2 or min(sizes) == max(sizes):
        return
    low, high = min(sizes), max(sizes)
    counts = [0] * bins
    for value in sizes:
        counts[min(int((value - low) / (high - low) * bins), bins - 1)] += 1
    out.print("\nshards by size")
    for number, count in enumerate(counts):
        edge = low + (high - low) * number / bins
        out.print(f"{size(edge):>10} {'█' * round(40 * count / max(counts)):40} {count:,}")
    out.print()


def trace(root: Path, kind: str, name: str, uri: str, as_json: bool) -> None:
    """A model's inputs, or where a sample, file or shard went."""
    from shardtrail.lineage import trace as lineage

    folder = Folder(root.resolve())
    if kind == "model":
        found = lineage.trace_model(folder, name, uri)
        if as_json:
            lineage.write_json(found, sys.stdout)
            return
        out.print(
            f"model {found.model}/{found.version}  run {found.run_id}  commit {found.git_commit or 'none'}\n"
            f"dataset {found.digest}  {len(found.shards):,} shards",
            highlight=False,
        )
        rows = []
        for number, sample in enumerate(found.samples):
            if number < 10:
                rows.append({"sample": sample["sample"], "shard": sample["shard"], "record": sample["record"]})
        table(rows)
        out.print(f"{number + 1:,} samples; every raw file with its digest: --json")
        return
    answer = {"sample": lineage.trace_sample, "file": lineage.trace_file, "shard": lineage.trace_shard}[kind](
        folder, name, uri
    )
    if as_json:
        _json(answer)
        return
    for key in ("shards", "models", "files"):
        out.print(f"[bold]{key}[/]")
        table(answer[key])


def inspect(folder: Folder, shard: str, record: int | None, as_json: bool) -> None:
    """A shard or one of its records."""
    from shardtrail.inspect import inspect_record, inspect_shard

    found = inspect_shard(folder, shard) if record is None else inspect_record(folder, shard, record)
    if as_json:
        _json(found)
        return
    for key, value in found.items():
        if isinstance(value, dict):
            value = f"{value['dtype']} {value['shape']}  {value['min']} to {value['max']}, mean {value['mean']}"
        if isinstance(value, list):
            value = "\n".join(map(str, value)).replace("\n", "\n" + " " * 26)
        out.print(f"{key:25} {value}", markup=False)


def export(job: Job, target: Path, splits: Sequence[str], compressed: bool, as_json: bool) -> None:
    """Export, and say what was written."""
    from shardtrail.sharding.export import SUMS
    from shardtrail.sharding.export import export as copy

    done = copy(job, target, splits, compressed)
    if as_json:
        _json({"folder": str(target), **dataclasses.asdict(done)})
        return
    there = f"{done.files - done.written:,} were there, " if done.written < done.files else ""
    out.print(f"{done.files:,} shards, {done.bytes:,} bytes, {there}checked; check them there: md5sum -c {SUMS}")


def gc(job: Job, keep: float, dry_run: bool, as_json: bool) -> None:
    """Remove left-overs, and say what went or would go."""
    from shardtrail.gc import collect

    found = collect(job, keep, dry_run)
    if as_json:
        _json({"dry_run": dry_run, "keep_days": keep, "collected": [dataclasses.asdict(one) for one in found]})
        return
    table(
        [
            {
                "left over": one.kind,
                "would go" if dry_run else "removed": f"{one.files:,} ({size(one.bytes)})",
                "spared, younger": f"{one.kept:,} ({size(one.kept_bytes)})",
            }
            for one in found
        ]
    )
    linked = sum(one.bytes - one.freed for one in found)
    out.print(f"{'would free' if dry_run else 'freed'} {size(sum(one.freed for one in found))}")
    if linked:
        out.print(f"{size(linked)} more stay on the disk: links in DVC's cache (see dvc gc) or of a training that runs")


def summary(job: Job, registered: str, seconds: float) -> None:
    """What a run came to and where it lies; ``registered`` is the model as ``name/version``."""
    folder = job.folder
    if folder.dataset.exists():
        dataset = load_dataset(folder.dataset)
        rows = dataset.splits.items()
        table([{"split": name, **{key: row[key] for key in ("shards", "records", "bytes")}} for name, row in rows])
        books(dict(dataset.samples))
        _reasons(job, dataset.samples["seen"])
        out.print(f"dataset  {dataset.digest}  {folder.relative(folder.dataset)}")
    if registered:
        _scores(json.loads(folder.metrics.read_bytes()))
        _registered(job, registered)
    err.print(f"done in {seconds:.0f} s")


def _reasons(job: Job, seen: int) -> None:
    """Why samples were left out, and what to do about the reason that a default may have caused."""
    rejected = json.loads(job.folder.statistics.read_bytes())["rejected"]
    for kind, counts in rejected.items():
        if counts:
            named = ", ".join(f"{reason} {count:,}" for reason, count in counts.items())
            place = f" ({job.folder.relative(job.folder.quarantine)})" if kind == "quarantined" else ""
            out.print(f"         {kind}: {named}{place}")
    alone = rejected["quarantined"].get("missing_partner", 0)
    if alone > 0.1 * seen and job.config.bigearthnet.sensors == "auto":
        out.print("         to use Sentinel-2 alone: shardtrail run --set bigearthnet.sensors=s2")


def _scores(metrics: dict[str, float]) -> None:
    """Each score beside that of the best constant prediction."""
    rows = []
    for key, value in metrics.items():
        split, _, name = key.partition("/")
        constant = metrics.get(f"{key}_constant")
        if constant is not None:
            row = {"split": split, "score": name.replace("_", " "), "model": f"{value:.3f}"}
            rows.append(row | {"constant predictor": f"{constant:.3f}"})
    table(rows)


def _registered(job: Job, registered: str) -> None:
    place = "" if job.folder.root == Path.cwd() else f" -C {job.folder.root}"
    out.print(
        f"model    {registered}  {job.folder.relative(job.folder.models)}/  {job.folder.relative(job.folder.plots)}/\n"
        f"trace    shardtrail{place} trace model {registered} --json\n"
        f"pages    shardtrail{place} ui prefect    shardtrail{place} ui mlflow",
        markup=False,
    )
