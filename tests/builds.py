"""Building small working folders along the production path, here and in processes of their own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shardtrail.dataset import Dataset
from shardtrail.execution import local_mapper
from shardtrail.job import Job, open_job
from shardtrail.stages.download import download
from shardtrail.stages.hash import hash_shards
from shardtrail.stages.shard import Build, shard
from shardtrail.stages.validate import validate

SAMPLES = 24

PARAMS = """
source: {source}
layout: bigearthnet
validate:
  split: {{by: sample}}
shard:
  target_samples: {samples}
  encoding: {encoding}
"""


def new_folder(root: Path, source: Path, encoding: str = "raw", samples: int = 4) -> Job:
    """A working folder on ``source``, nothing built yet; units run in this process."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "params.yaml").write_text(PARAMS.format(source=source, encoding=encoding, samples=samples))
    return open_job(root)


def build_all(job: Job) -> tuple[Build, Dataset]:
    """download, validate, shard, hash."""
    download(job)
    validate(job)
    return shard(job), hash_shards(job)


def build_in_workers(job: Job, workers: int) -> Dataset:
    """``build_all`` with that many worker processes."""
    with local_mapper(workers) as mapper:
        return build_all(dataclasses.replace(job, mapper=mapper))[1]


def copied(job: Job, root: Path) -> Job:
    """A copy of a working folder, times kept; its raw data are the same folder."""
    shutil.copytree(job.folder.root, root, symlinks=True)
    return open_job(root)


def digests(folder: Path) -> dict[str, str]:
    """Relative path -> md5 of every file in a tree."""
    return {
        path.relative_to(folder).as_posix(): hashlib.md5(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Relative path -> inode and modification time of everything in a tree."""
    found = {path.relative_to(folder).as_posix(): path.lstat() for path in folder.rglob("*")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}


def leftovers(job: Job) -> list[str]:
    """Temporary files anywhere in a working folder."""
    return [path.name for path in job.folder.root.rglob("*.tmp")]


def in_process(
    script: str, *arguments: object, environment: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, with the repository importable."""
    with started(script, *arguments, environment=environment, cwd=cwd) as process:
        out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def started(
    script: str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    session: bool = False,
) -> subprocess.Popen[str]:
    """Start Python code in a process of its own, in a process group of its own if ``session``."""
    paths = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})},
        cwd=cwd,
        start_new_session=session,
    )


def receipts(job: Job) -> dict[str, dict[str, object]]:
    """Shard name -> its receipt as it stands in the file."""
    found = [json.loads(path.read_bytes()) for path in job.folder.receipts.glob("*.json")]
    return {receipt["shard"]: receipt for receipt in found}


def edit(path: Path, change: Callable[[bytearray], None], keep_time: bool = False) -> None:
    """Change a file's bytes in place."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def sources_of(job: Job, address: str) -> Sequence[Path]:
    """The raw files of the first sample of a shard."""
    import pyarrow.compute as pc

    from shardtrail.manifest import read_table

    plan = read_table(job.folder.plan)
    sample = plan.filter(pc.equal(plan["address"], address))["sample_id"][0]
    manifest = read_table(job.folder.manifest)
    files = manifest.filter(pc.equal(manifest["sample_id"], sample))["files"][0].as_py()
    return [job.raw / file["path"] for file in files]
