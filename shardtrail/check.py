"""What can be known before anything runs: parameters, source, stages, disk space."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from shardtrail.errors import PipelineError
from shardtrail.job import Job
from shardtrail.layouts import get_layout
from shardtrail.storage.source import is_archive


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of ``shardtrail check``."""

    subject: str
    good: bool
    text: str


def check(job: Job) -> list[CheckResult]:
    """Check a working folder without running or writing anything.

    Raises:
        ConfigError: the layout cannot be loaded.
    """
    results = [CheckResult("parameters", True, f"{job.folder.params} is sound (digest {job.config.digest()[:12]})")]
    get_layout(job.config)
    results.append(_stages(job))
    source, raw_bytes = _source(job)
    results.append(source)
    if raw_bytes:
        results.append(_space(job, raw_bytes))
    return results


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


def _source(job: Job) -> tuple[CheckResult, int]:
    """Whether the source is there, and its bytes (0 where they cannot be known without fetching it)."""
    source = job.config.source
    if source.startswith(("http://", "https://")):
        return CheckResult("source", True, f"{source} (asked only when it is fetched)"), 0
    path = Path(source).expanduser()
    path = path if path.is_absolute() else job.folder.root / path
    if is_archive(source):
        if not path.is_file():
            return CheckResult("source", False, f"{path} does not exist; set source in {job.folder.params}"), 0
        return CheckResult("source", True, f"{path}, {path.stat().st_size:,} bytes"), path.stat().st_size
    from shardtrail.storage.local import scan

    try:
        found = scan(job.raw)
        grouping = get_layout(job.config).group(zip(found.paths, found.size.tolist(), strict=True))
    except PipelineError as error:
        return CheckResult("source", False, str(error)), 0
    total = int(found.size.sum())
    text = (
        f"{job.raw}: {len(found.paths):,} files, {total:,} bytes, {len(grouping.units):,} units of {job.config.layout}"
    )
    return CheckResult("source", bool(grouping.units), text), total


def _space(job: Job, raw_bytes: int) -> CheckResult:
    """Raw samples become shards of about their own size; the DVC cache links to them where the disk can."""
    place = job.folder.root
    free = shutil.disk_usage(place).free
    need = raw_bytes
    writable = os.access(place, os.W_OK)
    text = f"about {need:,} bytes for the shards, {free:,} free on {place}"
    return CheckResult("disk", writable and free > need, text if writable else f"{place} cannot be written to")
