"""Record a build: DVC commit, then (where configured) git commit of the lock.

DVC is the notary: ``dvc.lock`` then names the md5 of every out beside the parameters that made it. A
result is recorded only if the parameters stored with it are those it was built with.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardtrail.config import load_config
from shardtrail.dataset import load_dataset
from shardtrail.errors import PipelineError, SourceChanged
from shardtrail.files import to_json, write_atomic
from shardtrail.folder import Folder
from shardtrail.git import commit, git, is_repository
from shardtrail.job import Job

DATA_STAGES = ("download", "validate", "shard", "hash")
MODEL_STAGES = ("train", "register")

_LOCK_PATIENCE_SECONDS = 600
_GIT_TRACKED = ("dvc.lock", "params.yaml", "metrics.json", "registration.json")


class RecordError(PipelineError, RuntimeError):
    """DVC or git could not record a build."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What ``record`` did.

    Attributes:
        dvc: whether ``dvc.lock`` holds the build (False: the folder is no DVC repository, or switched off).
        commit: the git commit that holds it; empty if none was made.
    """

    dvc: bool
    commit: str = ""


def record(job: Job, stages: Sequence[str]) -> Recorded:
    """Record the outs of ``stages`` as they lie on disk. Repeating it without a change runs nothing.

    Raises:
        SourceChanged: ``params.yaml`` was edited since the build began.
        RecordError: DVC or git failed; the text is theirs.
    """
    if not job.config.record.dvc or not is_dvc_folder(job.folder):
        return Recorded(dvc=False)
    with _alone(job.folder):
        return _record(job, stages)


@contextlib.contextmanager
def _alone(folder: Folder) -> Iterator[None]:
    """One recorder at a time. What a killed one left half-done is cleared away before the next begins."""
    folder.state.mkdir(parents=True, exist_ok=True)
    marker = folder.state / "recording"
    with (folder.state / "record.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if marker.exists():
            _clear_git_locks(folder, since=marker.stat().st_mtime)
        _restore_lock_file(folder)
        marker.touch()
        try:
            yield
        finally:
            marker.unlink()


_RECORDING_SECONDS = 900


def _clear_git_locks(folder: Folder, since: float) -> None:
    """Remove the locks of the git that was killed with our recorder, not those of a git that runs later."""
    if not is_repository(folder.root):
        return
    branch = git(folder.root, "symbolic-ref", "--quiet", "HEAD", check=False).stdout.strip()
    for name in ("index.lock", "HEAD.lock", *([f"{branch}.lock"] if branch else [])):
        path = folder.root / git(folder.root, "rev-parse", "--git-path", name).stdout.strip()
        with contextlib.suppress(FileNotFoundError):
            if since <= path.stat().st_mtime + 1 <= since + _RECORDING_SECONDS:
                path.unlink()


def _restore_lock_file(folder: Folder) -> None:
    """DVC writes ``dvc.lock`` in place: one cut short by a kill gives way to the one that git holds, or to none."""
    lock = folder.root / "dvc.lock"
    if lock.exists() and not _is_whole(lock):
        lock.unlink()
        git(folder.root, "checkout", "--quiet", "HEAD", "--", "dvc.lock", check=False)


def _is_whole(lock: Path) -> bool:
    """Whether every stage of a ``dvc.lock`` parses and has its command."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        values = YAML(typ="safe", pure=True).load(lock)
        return all("cmd" in stage for stage in values["stages"].values())
    except (YAMLError, TypeError, KeyError, AttributeError):
        return False


def _record(job: Job, stages: Sequence[str]) -> Recorded:
    _same_params(job)
    evidence = _evidence(job.folder, stages)
    note = job.folder.state / "recorded.json"
    known = _read_note(note)
    key = "+".join(stages)
    if known.get(key) != evidence:
        if "hash" in stages:
            from shardtrail.manifest import check_tables  # here, since pyarrow takes long to load

            check_tables(job.folder)
            _seed_digests(job)
        _run_dvc(job, ["commit", "--force", *stages])
        _same_params(job)
        known[key] = _evidence(job.folder, stages)
        write_atomic(note, to_json(known))
    commit = _commit_lock(job, stages) if job.config.record.git_commit else ""
    return Recorded(dvc=True, commit=commit)


def renew_cached(job: Job, shards: Sequence[str]) -> int:
    """Replace damaged copies of these shards in DVC's cache by the sound ones of the working folder.

    With a cache of hard links, damage to a shard is damage to its cached copy, which DVC would hand out again.

    Args:
        job: its shards were verified.
        shards: addresses.

    Returns:
        How many cached files were replaced.
    """
    if not shards or not is_dvc_folder(job.folder):
        return 0
    cache = Path(_run_dvc(job, ["cache", "dir"]).strip())
    renewed = 0
    for shard in load_dataset(job.folder.dataset).shards:
        if shard.address not in shards:
            continue
        for name in (shard.file, shard.index):
            sound = job.folder.shards / name
            md5 = _md5(sound)
            cached = job.folder.root / cache / "files" / "md5" / md5[:2] / md5[2:]
            if cached.exists() and _md5(cached) != md5:
                replacement = cached.with_name(f"{cached.name}.{os.getpid()}.tmp")
                replacement.unlink(missing_ok=True)
                try:
                    os.link(sound, replacement)
                except OSError:  # the cache is on another disk
                    shutil.copy2(sound, replacement)
                os.replace(replacement, cached)
                renewed += 1
    return renewed


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def is_dvc_folder(folder: Folder) -> bool:
    """Whether the working folder has stages and lies in a DVC repository."""
    if not (folder.root / "dvc.yaml").exists():
        return False
    return any((parent / ".dvc" / "config").exists() for parent in (folder.root, *folder.root.parents))


def _same_params(job: Job) -> None:
    """The lock stores the file's parameters, so they must still be those of the build."""
    if load_config(job.folder.params) != job.config:
        raise SourceChanged(
            f"{job.folder.params} was edited while the build ran, so its result cannot be recorded with these "
            "parameters; run again (what is done is kept)"
        )


def _evidence(folder: Folder, stages: Sequence[str]) -> dict[str, str]:
    """Cheap proof that nothing changed since the last record: digests of the small files, stats of the others."""
    paths = [folder.params, folder.root / "dvc.yaml", folder.root / "dvc.lock"]
    if "hash" in stages:
        paths += [folder.inventory, folder.manifest, folder.quarantine, folder.warnings, folder.statistics]
        paths += [folder.plan, folder.dataset]
    if "train" in stages:
        paths += [*sorted(folder.models.rglob("*")), *sorted(folder.plots.rglob("*"))]
        paths += [folder.metrics, folder.registration]
    result = {}
    for path in paths:
        if not path.exists():
            result[folder.relative(path)] = "absent"
        elif path.name in ("dvc.lock", "dvc.yaml", "params.yaml"):
            result[folder.relative(path)] = _md5(path)
        elif path.is_file():
            stat = path.stat()
            result[folder.relative(path)] = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
    return result


def _read_note(path: Path) -> dict[str, Mapping[str, str]]:
    try:
        known = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _seed_digests(job: Job) -> None:
    """Hand DVC the md5 of every shard that the writer computed, so that it does not read them all again.

    The interface is DVC's own and may go: then DVC reads the shards itself.
    """
    dataset = load_dataset(job.folder.dataset)
    digests = {str(job.folder.shards / shard.file): shard.md5 for shard in dataset.shards}
    try:
        from dvc.fs import LocalFileSystem
        from dvc.repo import Repo
        from dvc_data.hashfile.hash_info import HashInfo

        with Repo(str(job.folder.root)) as repo:
            entries = [(path, HashInfo("md5", md5), None) for path, md5 in digests.items()]
            repo.state.save_many(entries, LocalFileSystem())
    except (ImportError, AttributeError, TypeError):
        return


def _run_dvc(job: Job, arguments: Sequence[str]) -> str:
    """The output of one DVC command; waits for others that hold its lock."""
    command = [sys.executable, "-m", "dvc", *arguments]
    environment = os.environ | {"DVC_NO_ANALYTICS": "1", "PATH": _path_with_python()}
    deadline = time.monotonic() + _LOCK_PATIENCE_SECONDS
    while True:
        answer = subprocess.run(
            command,
            cwd=job.folder.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode == 0:
            return answer.stdout
        text = (answer.stderr.strip() or answer.stdout.strip())[-2000:]
        if "Unable to acquire lock" not in text or time.monotonic() > deadline:
            raise RecordError(f"dvc {' '.join(arguments)} failed in {job.folder.root}:\n{text}")
        job.progress.say("waiting for another DVC command to finish")
        time.sleep(2)


def _path_with_python() -> str:
    """PATH that finds this environment's ``python`` first, as the stages' commands need it."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _commit_lock(job: Job, stages: Sequence[str]) -> str:
    """Commit the lock (and what stands beside it in git) if it changed; return HEAD."""
    root = job.folder.root
    if not is_repository(root):
        raise RecordError(f"record.git_commit is on but {root} lies in no git repository; run: git init {root}")
    paths = [name for name in _GIT_TRACKED if (root / name).exists()]
    digest = load_dataset(job.folder.dataset).digest[:12]
    return commit(root, f"Build dataset {digest}" if "hash" in stages else f"Train on dataset {digest}", paths)
