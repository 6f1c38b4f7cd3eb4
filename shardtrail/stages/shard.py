"""Stage ``shard``: manifest -> ``data/plan.parquet`` and ``data/shards/``; builds only what is missing."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardtrail.errors import ConfigError, StageFailed
from shardtrail.files import canonical_json, file_md5, to_json, write_atomic
from shardtrail.job import Job
from shardtrail.sharding.lease import lease
from shardtrail.sharding.receipts import is_done, read_receipt
from shardtrail.sharding.retire import retire, take_back
from shardtrail.sharding.stale import remove_stale

if TYPE_CHECKING:
    from shardtrail.sharding.entries import PlannedShard


@dataclass(frozen=True, slots=True)
class Build:
    """What one run of the stage did.

    Attributes:
        planned: shards of the plan.
        written: shards whose bytes were written.
        kept: shards that were there, vouched for by their receipts or read and found right.
        digest: of the plan.
    """

    planned: int
    written: int
    kept: int
    digest: str

    @property
    def complete(self) -> bool:
        """Whether every shard of the plan is there."""
        return self.planned == self.written + self.kept


@dataclass(frozen=True, slots=True)
class Status:
    """The plan against what is on disk; every planned shard is done, failed or missing. As printed with ``--json``.

    Attributes:
        planned, done: numbers of shards.
        failed: ``{"shard": address, "error": …}`` of shards whose last attempt failed.
        missing: addresses of shards that are not there, or not as recorded.
        samples: the books: seen, accepted, quarantined, excluded.
        digest: of ``data/dataset.json``; empty while there is none.
    """

    planned: int
    done: int
    failed: tuple[dict[str, str], ...]
    missing: tuple[str, ...]
    samples: dict[str, int]
    digest: str


def shard(job: Job, only: Sequence[str] = ()) -> Build:
    """Plan, compare the plan with the disk, and build what is missing.

    Shards that the plan does not name move to ``data/retired/``. A shard that is there without its receipt, as after
    ``dvc pull``, is checked to the last byte and kept if it is right.

    Args:
        only: addresses or names of the shards to build; all that are missing by default.

    Raises:
        ConfigError: there is no manifest, or ``only`` names an unknown shard.
        LeaseHeld: another process builds in this folder.
        StageFailed: shards failed, after all were tried; each is named.
    """
    from shardtrail.manifest import read_table
    from shardtrail.sharding.build import build_shards
    from shardtrail.sharding.entries import read_shards, recorded_shards, vouched_for

    folder = job.folder
    with lease(folder, job.progress.say):
        remove_stale(folder)
        digest = update_plan(job)
        shards = read_shards(folder.plan)
        wanted = _chosen(shards, only)
        names = {shard.name for shard in shards}
        take_back(folder, names)
        recorded = recorded_shards(folder)
        done = {shard.address for shard in shards if vouched_for(folder, shard, recorded)}
        missing = [shard for shard in wanted if shard.address not in done]
        built, failed = build_shards(job, read_table(folder.plan), missing) if missing else ({}, {})
        if missing:
            remove_stale(folder)  # of workers that died meanwhile: what lies beside the shards would be recorded too
        if len(done) + len(built) == len(shards):
            # Readers take dataset.json's shards until `hash` writes it anew. DVC, however, looks at the folder now.
            read = () if job.reproduce else recorded.values()
            retire(folder, names.union(one.file.removesuffix(".tfrecord") for one in read))
    if failed:
        again = " ".join(list(failed)[:5]) + (" …" if len(failed) > 5 else "")
        raise StageFailed(
            "shard",
            list(failed.items()),
            f"What was built is kept. Mend the cause and run again, or these alone: shardtrail run --only {again}",
        )
    written = sum(one.written for one in built.values())
    return Build(len(shards), written, len(done) + len(built) - written, digest)


def update_plan(job: Job) -> str:
    """Have ``data/plan.parquet`` be the plan of the manifest under the job's parameters; its digest.

    Where nothing that it depends on changed since it was made, neither manifest nor plan is read.

    Raises:
        ConfigError: there is no manifest, or it has no column to group by.
    """
    from shardtrail.manifest import stored_digest, write_table
    from shardtrail.planning import plan_manifest

    folder, params = job.folder, job.config.shard
    inputs = hashlib.sha256(
        canonical_json([stored_digest(folder.manifest), params.model_dump(mode="json"), _planning_code()])
    ).hexdigest()
    state = folder.state / "plan.json"
    with contextlib.suppress(ConfigError, OSError, ValueError, RecursionError):
        digest = stored_digest(folder.plan)
        if json.loads(state.read_bytes()) == {"inputs": inputs, "plan": digest, "md5": file_md5(folder.plan)}:
            return digest
    write_table(folder.plan, plan_manifest(folder.manifest, params))
    digest = stored_digest(folder.plan)
    write_atomic(state, to_json({"inputs": inputs, "plan": digest, "md5": file_md5(folder.plan)}))
    return digest


def status(job: Job) -> Status:
    """Compare plan and disk by stat alone: nothing is opened but tables and receipts."""
    from shardtrail.dataset import load_dataset
    from shardtrail.sharding.entries import read_shards, recorded_shards

    folder = job.folder
    books = {"seen": 0, "accepted": 0, "quarantined": 0, "excluded": 0}
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        books |= json.loads(folder.statistics.read_bytes())["books"]
    shards = read_shards(folder.plan) if folder.plan.exists() else []
    recorded = recorded_shards(folder)
    failed, missing = [], []
    for shard in shards:
        receipt = read_receipt(folder.receipts, shard.fingerprint)
        if is_done(receipt, folder.shards, shard.records):
            continue
        if receipt is not None and receipt.status == "failed":
            failed.append({"shard": shard.address, "error": receipt.error})
        elif not _has_size(folder.shards / f"{shard.name}.tfrecord", recorded.get(shard.fingerprint)):
            missing.append(shard.address)
    return Status(
        planned=len(shards),
        done=len(shards) - len(failed) - len(missing),
        failed=tuple(failed),
        missing=tuple(missing),
        samples=books,
        digest=load_dataset(folder.dataset).digest if folder.dataset.exists() else "",
    )


def _has_size(path: Path, recorded: Any) -> bool:
    """Whether a shard that has no receipt here lies there with its index and the size that dataset.json names."""
    try:
        return recorded is not None and path.stat().st_size == recorded.bytes and path.with_suffix(".index").exists()
    except OSError:
        return False


def _planning_code() -> str:
    """Digest of the code that decides a plan, so that an edit of it makes the plan again."""
    from shardtrail import planning
    from shardtrail.records import example

    sources = [*sorted(Path(planning.__path__[0]).glob("*.py")), Path(example.__file__)]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


def _chosen(shards: Sequence[PlannedShard], only: Sequence[str]) -> list[PlannedShard]:
    """The shards that ``only`` names by address, name or file; all if it names none."""
    if not only:
        return list(shards)
    by_name = {name: shard for shard in shards for name in (shard.address, shard.name)}
    chosen = {}
    unknown = []
    for name in only:
        shard = by_name.get(Path(name).name.removesuffix(".tfrecord"))
        if shard is None:
            near = difflib.get_close_matches(name, by_name, 3)
            unknown.append(f"{name}" + (f" (near: {', '.join(near)})" if near else ""))
        else:
            chosen[shard.address] = shard
    if unknown:
        raise ConfigError(f"the plan has no shard {'; '.join(unknown)}; list them with: shardtrail plan")
    return [shard for shard in shards if shard.address in chosen]
