"""Which sample and which raw files lie in which record, kept on the tracking server.

Each recorded dataset is one run, a *pack*, of the experiment ``<tracking.experiment>-datasets``:

    dataset.json         the dataset
    membership.parquet   rows of the shards that no earlier pack holds
    shards.json          {"format": 1, "shards": {fingerprint: id of the pack that holds its rows}}

so that each distinct shard is stored once, and a night costs what changed. A pack counts only when its run is
FINISHED. Columns of ``membership.parquet``, in the order of the manifest: ``fingerprint`` [string],
``md5`` [string, of the shard's file], ``record`` [int32], ``sample_id`` [string], ``digest`` [string, of the
sample], ``files`` [list<struct<role, path: string, size: int64, md5: string>>].
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb

from shardtrail.dataset import Dataset, Shard
from shardtrail.errors import SourceChanged
from shardtrail.files import to_json
from shardtrail.folder import Folder
from shardtrail.job import Job
from shardtrail.tracking.attempts import attempt
from shardtrail.tracking.store import Store, open_store

SUFFIX = "-datasets"
"""What the name of an experiment that holds packs ends with."""
PACK_KIND = "dataset"

_ROWS_A_GROUP = 8192  # keeps a row group of 14 files a sample near 10 MiB


def record_membership(job: Job, dataset: Dataset) -> str:
    """Have the tracking server know every sample and raw file of ``dataset``; a second call does nothing.

    Returns:
        Id of the pack.

    Raises:
        SourceChanged: plan and manifest are not those the dataset was built of.
        StoreUnavailable: the tracking server does not answer.
    """
    with open_store(job.config.tracking.uri, job.folder.root, say=job.progress.say) as store:
        return ensure_membership(store, job, dataset)


def ensure_membership(store: Store, job: Job, dataset: Dataset) -> str:
    """``record_membership`` over an open connection."""
    experiment = store.experiment(job.config.tracking.experiment + SUFFIX)
    recorded = packs(store, [experiment], dataset.digest)
    if recorded:
        return str(recorded[0].info.run_id)
    name = f"dataset {dataset.digest[:8]}"
    with attempt(store, job.folder.state, experiment, f"dataset {dataset.digest}", name) as run_id:
        _record(store, job.folder, dataset, experiment, run_id)
    return run_id


def packs(store: Store, experiments: list[str], digest: str = "") -> list[Any]:
    """Runs of the finished packs, latest first; with ``digest`` those of one dataset."""
    where = f"tags.`shardtrail.kind` = '{PACK_KIND}' AND attributes.status = 'FINISHED'"
    if digest:
        where += f" AND tags.`shardtrail.dataset.digest` = '{digest}'"
    return store.runs(experiments, where, "attributes.end_time DESC")


def pack_experiments(store: Store) -> list[str]:
    """Ids of all experiments that hold packs."""
    found, token = [], None
    while True:
        page = store.client.search_experiments(filter_string=f"name LIKE '%{SUFFIX}'", page_token=token)
        found += [str(experiment.experiment_id) for experiment in page]
        token = page.token
        if not token:
            return found


def holders(store: Store, run_id: str, into: Path) -> dict[str, str]:
    """fingerprint -> id of the pack that holds its rows, for the shards of this pack and of all before it."""
    found: dict[str, str] = json.loads(store.fetch(run_id, "shards.json", into / run_id).read_bytes())["shards"]
    return found


def database(scratch: Path) -> duckdb.DuckDBPyConnection:
    """DuckDB with bounded memory that spills into ``scratch`` and loads nothing from elsewhere."""
    return duckdb.connect(
        config={
            "memory_limit": "1GB",
            "temp_directory": str(scratch / "spill"),
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )


def make_table(connection: duckdb.DuckDBPyConnection, name: str, **columns: tuple[str, Sequence[Any]]) -> None:
    """A table from whole columns, ``name=(SQL type, values)``: row by row, many shards would take minutes."""
    select = ", ".join(f"unnest(?::{kind}[]) AS {column}" for column, (kind, _) in columns.items())
    connection.execute(f"CREATE TABLE {name} AS SELECT {select}", [list(values) for _, values in columns.values()])


def quoted(path: Path) -> str:
    """A path as an SQL string."""
    return "'" + str(path).replace("'", "''") + "'"


def _record(store: Store, folder: Folder, dataset: Dataset, experiment: str, run_id: str) -> None:
    from mlflow.entities import RunTag

    tags = {"shardtrail.kind": PACK_KIND, "shardtrail.dataset.digest": dataset.digest}
    store.client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])
    with TemporaryDirectory(prefix="shardtrail-") as temporary:
        scratch = Path(temporary)
        held = _held(store, experiment, scratch)
        new = [shard for shard in dataset.shards if shard.fingerprint not in held]
        held |= {shard.fingerprint: run_id for shard in new}
        pack = scratch / "pack"
        pack.mkdir()
        _write_rows(folder, new, pack / "membership.parquet", scratch)
        (pack / "dataset.json").write_bytes(dataset.to_json())
        (pack / "shards.json").write_bytes(to_json({"format": 1, "shards": dict(sorted(held.items()))}))
        store.client.log_artifacts(run_id, str(pack))
    store.client.log_metric(run_id, "shards", len(dataset.shards))
    store.client.log_metric(run_id, "new_shards", len(new))


def _held(store: Store, experiment: str, scratch: Path) -> dict[str, str]:
    """What is stored already; packs that somebody deleted hold nothing, so their shards are stored anew."""
    finished = packs(store, [experiment])
    if not finished:
        return {}
    alive = {run.info.run_id for run in finished}
    known = holders(store, finished[0].info.run_id, scratch)
    return {fingerprint: pack for fingerprint, pack in known.items() if pack in alive}


def _write_rows(folder: Folder, shards: Sequence[Shard], target: Path, scratch: Path) -> None:
    """Join plan and manifest for ``shards`` and check that every record is there.

    The manifest, which holds the files, streams past a hash table of the plan's few columns; the optimizer may not
    turn that round, nor may the rows be sorted: either would take gigabytes.
    """
    with database(scratch) as connection:
        connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
        make_table(
            connection,
            "wanted",
            fingerprint=("VARCHAR", [shard.fingerprint for shard in shards]),
            md5=("VARCHAR", [shard.md5 for shard in shards]),
            records=("BIGINT", [shard.records for shard in shards]),
        )
        connection.execute(
            f"""
            COPY (
                SELECT fingerprint, md5, record, sample_id, digest, files
                FROM read_parquet({quoted(folder.manifest)})
                JOIN (
                    SELECT fingerprint, md5, record, sample_id, digest
                    FROM read_parquet({quoted(folder.plan)}) JOIN wanted USING (fingerprint)
                ) USING (sample_id, digest)
            ) TO {quoted(target)} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_ROWS_A_GROUP})
            """
        )
        differing = connection.execute(
            f"""
            SELECT fingerprint, any_value(records), count(rows.record)
            FROM wanted LEFT JOIN read_parquet({quoted(target)}) AS rows USING (fingerprint)
            GROUP BY fingerprint HAVING any_value(records) != count(rows.record) LIMIT 1
            """
        ).fetchone()
    if differing:
        fingerprint, expected, found = differing
        raise SourceChanged(
            f"data/plan.parquet and data/manifest.parquet give {found} of the {expected} records of the shard with "
            f"fingerprint {fingerprint[:12]}: they are not those data/dataset.json was built of. "
            "Build it again: shardtrail run --until hash"
        )
