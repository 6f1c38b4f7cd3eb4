"""What can be known before anything runs: parameters, source, stages, disk space."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from shardtrail.errors import ConfigError, PipelineError
from shardtrail.job import Job
from shardtrail.layouts import get_layout
from shardtrail.layouts.bigearthnet_tables import find_list
from shardtrail.storage.local import scan
from shardtrail.storage.source import kind, materialise


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of ``shardtrail check``."""

    subject: str
    good: bool
    text: str


def check(job: Job) -> list[CheckResult]:
    """Check a working folder without running anything; for a Dask cluster, a file is there for a moment as its mark.

    Raises:
        ConfigError: the layout cannot be loaded.
    """
    results = [CheckResult("parameters", True, f"{job.folder.params} is sound (digest {job.config.digest()[:12]})")]
    get_layout(job.config, job.folder.root)
    results.append(_stages(job))
    results += _lists(job)
    source, raw_bytes = _source(job)
    results.append(source)
    if raw_bytes:
        results.append(_space(job, raw_bytes))
    results.append(_workers(job))
    return results


def _workers(job: Job) -> CheckResult:
    """The processes that units run in; a Dask cluster elsewhere is asked whether it can build here."""
    from shardtrail.execution import cores

    compute = job.config.compute
    if compute.executor == "process" or not compute.address:
        what = "processes of this machine" if compute.executor == "process" else "of a Dask cluster on this machine"
        return CheckResult("workers", True, f"{compute.workers or cores()} {what}")
    from shardtrail.execution.dask import members

    try:
        found = members(compute.address, job.folder, job.raw)
    except PipelineError as error:
        return CheckResult("workers", False, str(error))
    bad = [f"{member.host}: {'; '.join(member.faults)}" for member in found if member.faults]
    if bad:
        return CheckResult("workers", False, f"Dask at {compute.address}: {len(bad)} of {len(found)} " + "; ".join(bad))
    hosts = {member.host.rpartition(":")[0] for member in found}
    text = f"{len(found)} with {sum(member.threads for member in found)} threads on {len(hosts)} hosts"
    return CheckResult("workers", True, f"Dask at {compute.address}: {text}, all see the folders")


def _stages(job: Job) -> CheckResult:
    """DVC asks that every section a stage depends on stands in the file, even if all of it is default."""
    from ruamel.yaml import YAML

    stages = job.folder.root / "dvc.yaml"
    if not stages.exists():
        return CheckResult("stages", True, "no dvc.yaml: builds are not recorded; `shardtrail init .` makes one")
    yaml = YAML(typ="safe", pure=True)
    wanted = {name for stage in yaml.load(stages)["stages"].values() for name in stage.get("params", ())}
    missing = sorted(wanted - set(yaml.load(job.folder.params)))
    if missing:
        text = f"dvc.yaml needs {', '.join(missing)} in params.yaml; write the section with its defaults"
        return CheckResult("stages", False, text)
    return CheckResult("stages", True, "dvc.yaml and params.yaml fit each other")


def _lists(job: Job) -> list[CheckResult]:
    """The split and exclude lists that the parameters name."""
    params = job.config.bigearthnet
    names = (*params.splits, *params.exclude) if job.config.layout == "bigearthnet" else ()
    missing = []
    for name in names:
        try:
            find_list(name, (job.folder.root, job.raw))
        except ConfigError as error:
            missing.append(str(error))
    if missing:
        return [CheckResult("lists", False, "; ".join(missing))]
    return [CheckResult("lists", True, f"all {len(names)} are there")] if names else []


def _source(job: Job) -> tuple[CheckResult, int]:
    """Whether the source is there, and its bytes (0 where they cannot be known without fetching it)."""
    source = job.config.source
    try:
        match kind(source):
            case "http":
                from shardtrail.storage.http import shown

                return CheckResult("source", True, f"{shown(source)} (asked only when it is fetched)"), 0
            case "archive":
                return _archive(job)
        materialise(job)  # of a folder, this only looks at it
        found = scan(job.raw)
        grouping = get_layout(job.config, job.folder.root).group(zip(found.paths, found.size.tolist(), strict=True))
    except PipelineError as error:
        return CheckResult("source", False, str(error)), 0
    text = (
        f"{job.raw}: {len(found.paths):,} files, {found.bytes:,} bytes, "
        f"{len(grouping.units):,} units of {job.config.layout}"
    )
    return CheckResult("source", bool(grouping.units), text), found.bytes


def _archive(job: Job) -> tuple[CheckResult, int]:
    path = job.folder.root / Path(job.config.source).expanduser()
    if not path.is_file():
        return CheckResult("source", False, f"{path} is no file; set source in {job.folder.params}"), 0
    size = path.stat().st_size
    return CheckResult("source", True, f"{path}, {size:,} bytes as it is packed"), size


def _space(job: Job, raw_bytes: int) -> CheckResult:
    """Raw samples become shards of about their own size; the DVC cache links to them where the disk can."""
    place = job.folder.root
    if not os.access(place, os.W_OK):
        return CheckResult("disk", False, f"{place} cannot be written to")
    free = shutil.disk_usage(place).free
    made = sum(shard.stat().st_size for shard in job.folder.shards.glob("*.tfrecord"))
    need = max(raw_bytes - made, 0)
    if kind(job.config.source) == "archive":
        text = (
            f"{need:,} bytes and more: that is the archive as packed; its tree and its shards take their own size each"
        )
    else:
        text = f"about {need:,} bytes for the shards"
    there = f" beside the {made:,} of those there are" if made else ""
    return CheckResult("disk", free >= need, f"{text}{there}, {free:,} free on {place}")
