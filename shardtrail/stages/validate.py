"""``validate``: every sample is accepted, quarantined or excluded, and the books balance.

What is wrong with the content is quarantined with path and reason. What is wrong with the machine
fails the stage by name, and nothing is written.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import itertools
import json
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardtrail.dataset import SPLITS, schema_to_json
from shardtrail.errors import ConfigError, InputRejected, SourceChanged, StageFailed
from shardtrail.files import canonical_json, file_md5, to_json, write_atomic
from shardtrail.folder import Folder
from shardtrail.job import Job
from shardtrail.layouts import Layout, get_layout
from shardtrail.manifest import manifest_table, read_table, rows_digest, stored_digest, write_table
from shardtrail.samples import Finding, Rejected, Report, Sample, Unit
from shardtrail.stages.recorded import recorded_table
from shardtrail.stages.scan_state import inventory_table, load_scan, read_state, save_scan
from shardtrail.stat_cache import GRAIN_NS, StatCache, check_rules, discard
from shardtrail.storage.local import Scan, scan
from shardtrail.validation.check import Failure, check_batch
from shardtrail.validation.duplicates import drop_duplicates
from shardtrail.validation.select import select
from shardtrail.validation.splits import draw_splits
from shardtrail.validation.statistics import band_statistics, class_statistics
from shardtrail.validation.units import Batches, ScannedUnits

_RULES = 1
"""Raised whenever the same reports may be sorted or counted otherwise: select, splits, duplicates, tables."""

_TASKS = 300  # batches a stage hands to its mapper at most
_SMALLEST_BATCH = 32
_NAMED = 20


@dataclass(frozen=True, slots=True)
class Books:
    """Samples seen = accepted + quarantined + excluded."""

    seen: int
    accepted: int
    quarantined: int
    excluded: int


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Every sample seen, sorted out.

    Attributes:
        accepted: sorted by id, each with a split.
        rejected: sorted by id.
        warnings: ``(sample id, finding)`` about accepted samples and, with no id, about the tree; sorted.
    """

    accepted: Sequence[Sample]
    rejected: Sequence[Rejected]
    warnings: Sequence[tuple[str, Finding]]

    @property
    def books(self) -> Books:
        """The counts."""
        excluded = sum(entry.excluded for entry in self.rejected)
        seen = len(self.accepted) + len(self.rejected)
        return Books(seen, len(self.accepted), len(self.rejected) - excluded, excluded)


def validate(job: Job) -> Books:
    """Check the samples whose files changed, sort all, write manifest, quarantine, warnings and statistics.

    Raises:
        ConfigError: a parameter does not fit the data, or there is no inventory.
        StageFailed: files could not be read or changed meanwhile; every unit is named.
        InputRejected: no sample is left, or more are quarantined than ``validate.max_bad_share`` allows.
        SourceChanged: under ``job.reproduce``, the manifest is not the recorded one.
    """
    began = time.time_ns()
    layout = get_layout(job.config, job.folder.root)
    inventory = stored_digest(job.folder.inventory)
    scanned = read_state(job.folder)
    known = scanned is not None and scanned.inventory == inventory
    books = _as_last_time(job, _key(job, layout, scanned.digest)) if scanned is not None and known else None
    if books is not None:
        if job.reproduce:
            _refuse_other(job, read_table(job.folder.manifest))
        job.progress.start("validate", 0, "patches")
        job.progress.finish(f"{_sentence(books)}; nothing changed")
        return books
    try:
        books, tree = _validate(job, layout, inventory, began)
    except sqlite3.DatabaseError as error:
        job.progress.say(f"{job.folder.stat_cache.name} is damaged ({error}): all raw files are read again")
        discard(job.folder.stat_cache)
        books, tree = _validate(job, layout, inventory, began)
    settled = not np.any(tree.late <= time.time_ns() + GRAIN_NS)
    _remember(job, _key(job, layout, tree.digest), tree.digest, settled, books)
    return books


@dataclass(frozen=True, slots=True)
class _Tree:
    """What is left of a scan, and of its units, once they were checked: a scan takes too much memory to be kept.

    Attributes:
        digest: of the scan.
        files: their number.
        late: int64, the times of change that could hide a later one, if checking goes on until then.
        broken: see ``Scan``.
        tables: see ``Grouping``, as ``ignored``.
    """

    digest: str
    files: int
    late: np.ndarray
    broken: Mapping[str, str]
    tables: Sequence[str]
    ignored: int


def _validate(job: Job, layout: Layout, inventory: str, began: int) -> tuple[Books, _Tree]:
    folder = job.folder
    with StatCache(folder.stat_cache, say=job.progress.say) as cache:
        units, tree = _checked(job, layout, cache, inventory, began)
        verdicts = _sort_out(job, layout, cache.reports(units), tree)
        del units
        books = verdicts.books
        schema = dataclasses.replace(layout.schema(), decode=_decoding(job, layout))
        train = (key for sample in verdicts.accepted if sample.split == "train" for key in sample.units)
        bands = band_statistics(cache.sums(train), [feature.name for feature in schema.features])
    manifest = manifest_table(verdicts.accepted, schema)
    if job.reproduce:
        _refuse_other(job, manifest)
    write_atomic(folder.quarantine, quarantine_csv(verdicts.rejected))
    write_atomic(folder.warnings, findings_csv(verdicts.warnings))
    _stop_if_rejected(job, books, verdicts.rejected, tree.files)
    sizes = Counter(sample.split for sample in verdicts.accepted)
    statistics = {
        "books": dataclasses.asdict(books),
        "rejected": _reasons(verdicts.rejected),
        "splits": {split: sizes[split] for split in SPLITS},
        "bands": bands,
        "classes": class_statistics(verdicts.accepted, schema.vocabulary),
        "schema": schema_to_json(schema),
    }
    write_atomic(folder.statistics, to_json(statistics))
    write_table(folder.manifest, manifest)
    left = f"; {tree.ignored} files belong to no sample" if tree.ignored else ""
    job.progress.finish(f"{_sentence(books)}{left} -> {folder.relative(folder.manifest)}")
    return books, tree


# Units: what has to be read is read


def _checked(job: Job, layout: Layout, cache: StatCache, inventory: str, began: int) -> tuple[Sequence[Unit], _Tree]:
    """Every unit, after the cache came to know its report."""
    tree = _scan(job, inventory)
    grouping = layout.group(tree.listing())
    units = ScannedUnits(grouping.units, tree, layout.name)
    _check(job, layout, units, cache)
    stamps = np.concatenate([column[column >= began - GRAIN_NS] for column in (tree.mtime_ns, tree.ctime_ns)])
    return units.packed, _Tree(tree.digest, len(tree.paths), stamps, tree.broken, grouping.tables, grouping.ignored)


def _check(job: Job, layout: Layout, units: ScannedUnits, cache: StatCache) -> None:
    """Have every unit checked that the cache does not know as it is now; keep what comes."""
    signatures = dict(units.signatures(check_rules(layout)))
    todo = set(signatures if job.full else cache.outdated(signatures))
    job.progress.start("validate", len(todo), "patches")
    failures: list[tuple[str, str]] = []
    places = [place for place, unit in enumerate(units.packed) if unit.key in todo]
    size = max(_SMALLEST_BATCH, math.ceil(len(places) / _TASKS))
    batches = Batches(job.raw, layout, units, places, size)
    first = {batches.label(number): units.packed[places[number * size]].key for number in range(len(batches))}
    for outcome in job.mapper("validate", check_batch, batches):
        if outcome.value is None:
            failures.append((f"{outcome.label} (from {first[outcome.label]})", outcome.error))
            continue
        cache.save((result for result in outcome.value if not isinstance(result, Failure)), signatures)
        failures += [(result.unit, result.error) for result in outcome.value if isinstance(result, Failure)]
        job.progress.advance(len(outcome.value))
    if failures:
        raise StageFailed("validate", sorted(failures), "What could be read is kept. Mend this, then: shardtrail run")


# Samples: accepted, quarantined, excluded


def _sort_out(job: Job, layout: Layout, reports: Iterable[Report], tree: _Tree) -> Verdicts:
    params = job.config.validate_
    odd: dict[str, tuple[Finding, ...]] = {}

    def noting_warnings() -> Iterator[Report]:
        for report in reports:
            if report.warnings:
                odd[report.unit] = report.warnings
            yield report

    assembly = layout.assemble(noting_warnings(), job.raw, tree.tables)
    samples = sorted(assembly.samples, key=lambda sample: sample.id)
    _check_layout(layout, samples)
    samples, unselected = select(samples, params.select, layout.schema().vocabulary)
    samples = draw_splits(samples, params.split, job.progress.say)
    samples, doubles, alike = drop_duplicates(samples)
    warnings = [(sample.id, finding) for sample in samples for unit in sample.units for finding in odd.get(unit, ())]
    warnings += alike
    warnings += [("", Finding("broken_link", path, f"{what}; left aside")) for path, what in tree.broken.items()]
    return Verdicts(
        accepted=samples,
        rejected=sorted([*assembly.rejected, *unselected, *doubles], key=_order),
        warnings=sorted(warnings, key=lambda entry: (entry[0], entry[1].path, entry[1].reason, entry[1].detail)),
    )


def _order(entry: Rejected) -> tuple[str, str, str, str]:
    return (entry.id, entry.finding.path, entry.finding.reason, entry.finding.detail)


def _check_layout(layout: Layout, samples: Sequence[Sample]) -> None:
    """What a layout of one's own may get wrong; ``samples`` are sorted by id."""
    schema = layout.schema()
    for one, other in itertools.pairwise(samples):
        if one.id == other.id:
            raise ConfigError(f"layout {layout.name} gave two samples the id {one.id!r}; ids must be unique")
    for sample in samples:
        unknown = sorted(set(sample.labels) - set(schema.vocabulary))
        if unknown:
            raise ConfigError(f"layout {layout.name}: {sample.id} has labels outside the vocabulary: {unknown}")
        if sample.split not in ("", *SPLITS):
            raise ConfigError(f"layout {layout.name}: {sample.id} has the split {sample.split!r}; known: {SPLITS}")
        missing = sorted(set(schema.texts) - sample.texts.keys())
        if missing:
            raise ConfigError(f"layout {layout.name}: {sample.id} lacks the texts {missing}")


def _stop_if_rejected(job: Job, books: Books, rejected: Sequence[Rejected], files: int) -> None:
    where = job.folder.relative(job.folder.quarantine)
    reasons = "".join(
        f"\n  {reason}: {count}" for counts in _reasons(rejected).values() for reason, count in counts.items()
    )
    if not books.seen:
        raise InputRejected(
            f"validate: none of the {files} files under {job.raw} belongs to a sample of layout "
            f"{job.config.layout}; check `source` and `layout` in params.yaml"
        )
    if not books.accepted:
        raise InputRejected(f"validate: no sample is left ({_sentence(books)}):{reasons}\nEach one is named in {where}")
    limit = job.config.validate_.max_bad_share
    if limit is not None and books.quarantined > limit * books.seen:
        raise InputRejected(
            f"validate: {books.quarantined} of {books.seen} samples are quarantined "
            f"({books.quarantined / books.seen:.1%}, validate.max_bad_share allows {limit:.1%}):{reasons}\n"
            f"Each one is named in {where}; mend the raw data or raise validate.max_bad_share"
        )


def _reasons(rejected: Iterable[Rejected]) -> dict[str, dict[str, int]]:
    counts = {"quarantined": Counter[str](), "excluded": Counter[str]()}
    for entry in rejected:
        counts["excluded" if entry.excluded else "quarantined"][entry.finding.reason] += 1
    return {kind: dict(sorted(counter.items())) for kind, counter in counts.items()}


def _sentence(books: Books) -> str:
    return (
        f"{books.seen} samples seen = {books.accepted} accepted + {books.quarantined} quarantined "
        f"+ {books.excluded} excluded"
    )


def quarantine_csv(rejected: Iterable[Rejected]) -> bytes:
    """``data/quarantine.csv``: one row a quarantined sample; excluded ones are only counted."""
    return findings_csv((entry.id, entry.finding) for entry in rejected if not entry.excluded)


def findings_csv(findings: Iterable[tuple[str, Finding]]) -> bytes:
    """Rows of ``sample,path,reason,detail``, in the given order."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("sample", "path", "reason", "detail"))
    writer.writerows((sample, finding.path, finding.reason, finding.detail) for sample, finding in findings)
    return text.getvalue().encode()


# The last time: a run without news opens no raw file and writes nothing


def last_scan(folder: Folder) -> str:
    """Digest of the scan that was last validated to the end, if no stat in it is racy; else empty."""
    state = _state(folder)
    return str(state["scan"]) if state.get("settled") else ""


def is_current(job: Job) -> bool:
    """Whether the manifest was made with the job's parameters, of the tree as it was last scanned."""
    state = _state(job.folder)
    return bool(state) and state["key"] == _key(job, get_layout(job.config, job.folder.root), state["scan"])


def _as_last_time(job: Job, key: str) -> Books | None:
    state = _state(job.folder)
    if not state and _state_file(job.folder).exists():
        job.progress.say(f"{_state_file(job.folder).name} is not as it was written: the tables are made again")
    if job.full or not state.get("settled") or state.get("key") != key:
        return None
    return Books(**state["books"]) if state["outs"] == _outs(job.folder) else None


def _remember(job: Job, key: str, scan_digest: str, settled: bool, books: Books) -> None:
    state = {
        "key": key,
        "scan": scan_digest,
        "settled": settled,
        "outs": _outs(job.folder),
        "books": dataclasses.asdict(books),
    }
    write_atomic(_state_file(job.folder), to_json({**state, "checksum": _checksum(state)}))


def _state_file(folder: Folder) -> Path:
    return folder.state / "validate.json"


def _state(folder: Folder) -> dict[str, Any]:
    try:
        values: dict[str, Any] = dict(json.loads(_state_file(folder).read_bytes()))
        return values if values.pop("checksum") == _checksum(values) else {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def _checksum(state: Mapping[str, Any]) -> str:
    """sha256 of all other keys: a state that was edited or cut is none."""
    return hashlib.sha256(canonical_json(state)).hexdigest()


def _outs(folder: Folder) -> dict[str, str]:
    """md5 of every output; empty where there is none."""
    outs = (folder.manifest, folder.quarantine, folder.warnings, folder.statistics)
    return {path.name: file_md5(path) for path in outs}


def _key(job: Job, layout: Layout, scan_digest: str) -> str:
    """Digest of everything that the outputs depend on: raw files, parameters, lists beside the tree, rules."""
    options: Mapping[str, Any] = (
        job.config.bigearthnet.model_dump(mode="json")
        if job.config.layout == "bigearthnet"
        else dict(job.config.custom)
    )
    named = [name for value in options.values() for name in (value if isinstance(value, list | tuple) else [value])]
    lists = {name: file_md5(job.folder.root / name) for name in named if isinstance(name, str)}
    content = {
        "rules": _RULES,
        "scan": scan_digest,
        "raw": str(job.raw),
        "layout": [job.config.layout, check_rules(layout), options, _decoding(job, layout)],
        "lists": lists,
        "validate": job.config.validate_.model_dump(mode="json"),
    }
    return hashlib.sha256(canonical_json(content)).hexdigest()


def _decoding(job: Job, layout: Layout) -> str:
    """What decides a layout's arrays beside the raw bytes; our own layout has no such option."""
    if job.config.layout == "bigearthnet":
        return ""
    rules = [job.config.layout, getattr(layout, "decode_version", layout.check_version), dict(job.config.custom)]
    return hashlib.sha256(canonical_json(rules)).hexdigest()[:16]


def _scan(job: Job, inventory: str) -> Scan:
    """The scan that the inventory was made of: the kept one, or the raw tree as it is where that is lost.

    Raises:
        SourceChanged: the raw tree is not the inventory's.
    """
    state = read_state(job.folder)
    if state is not None and state.inventory == inventory and (kept := load_scan(job.folder)):
        return kept
    tree = scan(job.raw)
    if rows_digest(inventory_table(tree)) != inventory:
        raise SourceChanged(
            f"{job.folder.relative(job.folder.inventory)} does not list the raw tree as it is now; "
            "list it again: shardtrail run --until download"
        )
    save_scan(job.folder, tree, inventory)
    return tree


def _refuse_other(job: Job, manifest: pa.Table) -> None:
    """Under ``dvc repro``, the same inputs and parameters must give the recorded manifest."""
    recorded = recorded_table(job.folder, "validate", job.folder.manifest)
    if recorded is None or recorded.holds(manifest, rows_digest(manifest)):
        return
    before = recorded.read()
    if before is None:
        named = ["(the recorded manifest is not at hand to name them; dvc pull fetches it)"]
    else:
        old = dict(zip(before["sample_id"].to_pylist(), before["digest"].to_pylist(), strict=True))
        new = dict(zip(manifest["sample_id"].to_pylist(), manifest["digest"].to_pylist(), strict=True))
        differing = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        named = [f"  {name}" for name in differing[:_NAMED]] or ["  (the same samples, otherwise split or labelled)"]
        named += [f"  and {len(differing) - _NAMED} more"] if len(differing) > _NAMED else []
    first = "the raw files no longer give the manifest recorded in dvc.lock; samples that differ:"
    raise SourceChanged("\n".join([first, *named, "Take the raw tree in as it is: shardtrail run"]))
