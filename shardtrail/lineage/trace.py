"""Trace a model back to every raw file, or a sample, file or shard forward to the models that used it.

A tracking server is enough; in a working folder, its own plan and manifest tell of what was never recorded.

    trace = trace_model(folder, "shardtrail@candidate", "http://localhost:5000")
    write_json(trace, sys.stdout)
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import duckdb

from shardtrail.config import load_config
from shardtrail.dataset import Dataset, Shard, load_dataset
from shardtrail.errors import ConfigError, StoreUnavailable
from shardtrail.folder import Folder
from shardtrail.tracking.membership import database, holders, make_table, pack_experiments, packs, quoted
from shardtrail.tracking.registry import Version, all_versions, resolve_version
from shardtrail.tracking.runs import COMMIT_TAG, DATASET_TAG
from shardtrail.tracking.store import Store, open_store, store_exists

_LOCAL = "local"
"""Stands for the working folder's own tables where a pack's id is expected."""
_COLUMNS = "pack, fingerprint, md5, record, sample_id, digest, files"
_NO_ROWS = """
    '' AS pack, '' AS fingerprint, '' AS md5, 0 AS record, '' AS sample_id, '' AS digest,
    []::STRUCT(role VARCHAR, path VARCHAR, size BIGINT, md5 VARCHAR)[] AS files
"""
_ROWS_A_FETCH = 1024
_SHARD_NAME = re.compile(r"(?:train|validation|test)-([0-9a-f]{12})(?:\.tfrecord|\.index)?")
_VIEW_NAME = re.compile(r"((?:train|validation|test)-\d{5})-of-\d{5}(?:\.tfrecord)?")


@dataclass(frozen=True, slots=True)
class ModelTrace:
    """All inputs of a model version.

    Attributes:
        git_commit: HEAD of the working folder's repository when it was trained; empty without one.
        digest: of the dataset.
        params: the parameters that decide results, as in ``params.yaml``.
        environment: ``python``, ``platform`` and ``packages`` {name: version} it was trained with.
        shards: ``{shard, address, split, records, md5}`` of the whole dataset, in plan order.
        samples: ``{sample, digest, shard, record, split, files: [{path, digest}]}`` in plan order, streamed: can be
            gone through once. Weights come from ``split`` ``train``; the others were read to measure.
    """

    model: str
    version: int
    run_id: str
    git_commit: str
    digest: str
    params: Mapping[str, Any]
    environment: Mapping[str, Any]
    shards: tuple[Mapping[str, Any], ...]
    samples: Iterator[dict[str, Any]]


def trace_model(folder: Folder, name: str, uri: str = "") -> ModelTrace:
    """Every input of a model version, from the tracking server alone.

    Args:
        folder: where relative addresses start; may be empty if ``uri`` is given.
        name: ``model`` (its latest version), ``model/3`` or ``model@alias``.
        uri: the tracking server; empty: ``tracking.uri`` of ``params.yaml``.

    Raises:
        ConfigError: no such model or version, or it was not registered by shardtrail.
        StoreUnavailable: the server does not answer, or lacks a part of the record.
    """
    # Lives as long as the samples are read: the iterator holds it.
    scratch = TemporaryDirectory(prefix="shardtrail-")
    with open_store(_uri(folder, uri), folder.root, existing=True) as store:
        version = resolve_version(store, name)
        digest = version.tags.get(DATASET_TAG, "")
        if not version.run_id or not digest:
            raise ConfigError(
                f"model {version.name}/{version.number} was not registered by shardtrail: it names no "
                f"{'run' if not version.run_id else 'dataset'}, so its inputs are not known"
            )
        into = Path(scratch.name)
        dataset, held = _recorded(store, digest, into)
        missing = sorted({shard.fingerprint for shard in dataset.shards} - held.keys())
        if missing:
            raise StoreUnavailable(f"the record of dataset {digest[:12]} lacks shard {missing[0][:12]}")
        needed = sorted({held[shard.fingerprint] for shard in dataset.shards})
        tables = {pack: store.fetch(pack, "membership.parquet", into / pack) for pack in needed}
        connection = _member_database(tables, into)
        _place(connection, dataset, held)
        return ModelTrace(
            model=version.name,
            version=version.number,
            run_id=version.run_id,
            git_commit=version.tags.get(COMMIT_TAG, ""),
            digest=digest,
            params=_json(store.fetch(version.run_id, "params.json", into / "run")),
            environment=_json(store.fetch(version.run_id, "environment.json", into / "run")),
            shards=tuple(_shard_entry(shard) for shard in dataset.shards),
            samples=_samples(connection, scratch),
        )


def trace_sample(folder: Folder, name: str, uri: str = "") -> dict[str, Any]:
    """Where a sample went: ``shards`` that hold or held it, ``models`` whose dataset has one of them, its ``files``.

    ``samples`` says in which record of which shard it lies; a sample whose files changed has several digests.

    Raises:
        ConfigError: no such sample; the text names near ones.
        StoreUnavailable: the tracking server does not answer.
    """
    with _lineage(folder, uri) as lineage:
        rows = lineage.members("sample_id = ?", [name])
        if not rows:
            raise ConfigError(f"no sample {name!r}{lineage.near('sample_id', name)}")
        return {"sample": name, **lineage.answer(rows)}


def trace_file(folder: Folder, name: str, uri: str = "") -> dict[str, Any]:
    """Where a raw file went; the keys are those of ``trace_sample``, with every sample that has the file.

    Args:
        name: a file on disk, found by its content; or its path relative to the raw root, or the end of that path,
            or a longer path that ends with it.

    Raises:
        ConfigError: no such file; the text names near ones.
        StoreUnavailable: the tracking server does not answer.
    """
    path = folder.root / name
    content = _md5(path) if path.is_file() else ""
    with _lineage(folder, uri) as lineage:
        where = "len(list_filter(files, lambda f: {})) > 0"
        fits: list[tuple[str, list[str]]] = [
            (
                "f.path = ? OR ends_with(f.path, '/' || ?) OR ends_with(?, '/' || f.path)",
                [name, name, path.as_posix()],
            )
        ]
        if content:
            fits.insert(0, ("f.md5 = ?", [content]))
        for condition, values in fits:
            rows = lineage.members(where.format(condition), values)
            if rows:
                chosen = lineage.files_of(rows, condition, values)
                return {"file": name, **lineage.answer(rows), "files": chosen}
        raise ConfigError(f"no raw file {name!r}{lineage.near_file(name)}")


def trace_shard(folder: Folder, name: str, uri: str = "") -> dict[str, Any]:
    """What a shard holds (``samples``, ``files``) and the ``models`` whose dataset has it.

    Args:
        name: its address (``train-00017``, in the folder's dataset or else the one recorded last), its name, its
            file, or its fingerprint.

    Raises:
        ConfigError: no such shard; the text names near ones.
        StoreUnavailable: the tracking server does not answer.
    """
    with _lineage(folder, uri) as lineage:
        fingerprint = lineage.fingerprint(Path(name).name)
        rows = lineage.members("starts_with(fingerprint, ?)", [fingerprint]) if fingerprint else []
        if not rows:
            raise ConfigError(f"no shard {name!r}{lineage.near_shard(name)}")
        return {"shard": name, **lineage.answer(rows)}


def write_json(trace: ModelTrace, file: IO[str]) -> None:
    """Write one JSON object, sample by sample: memory does not grow with the dataset."""
    file.write("{\n")
    for field in dataclasses.fields(trace)[:-1]:
        value = getattr(trace, field.name)
        file.write(f" {json.dumps(field.name)}: {json.dumps(value, ensure_ascii=False)},\n")
    file.write(' "samples": [')
    separator = "\n"
    for sample in trace.samples:
        file.write(f"{separator}  {json.dumps(sample, ensure_ascii=False)}")
        separator = ",\n"
    file.write("\n ]\n}\n")


@dataclass(frozen=True, slots=True)
class _Row:
    """One record of a shard, from whichever pack or folder holds it."""

    pack: str
    fingerprint: str
    md5: str
    record: int
    sample: str
    digest: str
    files: list[Mapping[str, Any]]


@dataclass(frozen=True)
class _Lineage:
    """All packs of a tracking server and the tables of a working folder, as one table ``member``."""

    connection: duckdb.DuckDBPyConnection
    store: Store | None
    scratch: Path
    pack_ids: tuple[str, ...]
    local: Dataset | None

    def members(self, where: str, values: list[str]) -> list[_Row]:
        """Matching records, each once, recorded ones before local ones."""
        found = self.connection.execute(
            f"SELECT {_COLUMNS} FROM member WHERE {where} ORDER BY fingerprint, record, pack = '{_LOCAL}'",
            values,
        ).fetchall()
        once: dict[tuple[str, int], _Row] = {}
        for row in found:
            once.setdefault((row[1], row[3]), _Row(*row))
        return list(once.values())

    def answer(self, rows: Iterable[_Row]) -> dict[str, Any]:
        """``shards``, ``models``, ``samples`` and ``files`` of some records."""
        rows = list(rows)
        shards = {fingerprint: _shard_entry(shard) for fingerprint, shard in self._placed(rows).items()}
        files = {
            (file["path"], file["md5"]): {"path": file["path"], "digest": file["md5"], "sample": row.sample}
            for row in rows
            for file in row.files
        }
        samples = (
            {
                "sample": row.sample,
                "digest": row.digest,
                "shard": shards[row.fingerprint]["shard"],
                "record": row.record,
            }
            for row in rows
        )
        return {
            "shards": sorted(shards.values(), key=lambda shard: str(shard["shard"])),
            "models": self._models(shards.keys()),
            "samples": sorted(samples, key=lambda sample: (sample["shard"], sample["record"])),
            "files": [files[key] for key in sorted(files)],
        }

    def files_of(self, rows: Iterable[_Row], condition: str, values: list[str]) -> list[dict[str, Any]]:
        """Only those files of ``rows`` that fulfil ``condition`` on ``f``."""
        samples = [row.sample for row in rows]
        found = self.connection.execute(
            f"SELECT DISTINCT f.path, f.md5, sample_id FROM (SELECT sample_id, unnest(files) AS f FROM member "
            f"WHERE list_contains(?, sample_id)) WHERE {condition} ORDER BY ALL",
            [samples, *values],
        ).fetchall()
        return [{"path": path, "digest": md5, "sample": sample} for path, md5, sample in found]

    def fingerprint(self, name: str) -> str:
        """The fingerprint, or its beginning, that a shard's address, name, file or fingerprint means."""
        if re.fullmatch(r"[0-9a-f]{12,64}", name):
            return name
        named = _SHARD_NAME.fullmatch(name)
        if named:
            return named[1]
        viewed = _VIEW_NAME.fullmatch(name)
        address = viewed[1] if viewed else name
        latest = self._latest()
        return next((s.fingerprint for s in latest.shards if s.address == address), "") if latest else ""

    def near(self, column: str, name: str) -> str:
        """Names most like ``name``, as the end of a message."""
        found = self.connection.execute(
            f"SELECT {column} FROM (SELECT DISTINCT {column} FROM member) "
            f"ORDER BY jaro_winkler_similarity({column}, ?) DESC, {column} LIMIT 3",
            [name],
        ).fetchall()
        return _near([row[0] for row in found])

    def near_file(self, name: str) -> str:
        """Paths whose last part is most like that of ``name``."""
        found = self.connection.execute(
            "SELECT path FROM (SELECT DISTINCT unnest(files).path AS path FROM member) "
            "ORDER BY jaro_winkler_similarity(parse_filename(path), ?) DESC, path LIMIT 3",
            [Path(name).name],
        ).fetchall()
        return _near([row[0] for row in found])

    def near_shard(self, name: str) -> str:
        """Addresses and names of the latest dataset that are like ``name``."""
        import difflib

        latest = self._latest()
        known = [text for shard in latest.shards for text in (shard.address, _stem(shard))] if latest else []
        return _near(difflib.get_close_matches(Path(name).name, known, 3, cutoff=0) if known else [])

    def _latest(self) -> Dataset | None:
        """The folder's dataset, or else the one recorded last."""
        return self.local or (self._dataset(self.pack_ids[0]) if self.pack_ids else None)

    def _dataset(self, pack: str) -> Dataset:
        if self.store is None or pack == _LOCAL:
            assert self.local is not None
            return self.local
        return load_dataset(self.store.fetch(pack, "dataset.json", self.scratch / pack))

    def _placed(self, rows: list[_Row]) -> dict[str, Shard]:
        """fingerprint -> the shard, as the latest dataset has it, or else the one that first held it."""
        known: dict[str, Shard] = {}
        for pack in sorted({row.pack for row in rows}):
            known |= {shard.fingerprint: shard for shard in self._dataset(pack).shards}
        latest = self._latest()
        known |= {shard.fingerprint: shard for shard in latest.shards} if latest else {}
        return {row.fingerprint: known[row.fingerprint] for row in rows}

    def _models(self, fingerprints: Set[str]) -> list[dict[str, Any]]:
        """Model versions whose dataset has one of these shards, with the splits they had it in."""
        if self.store is None:
            return []
        used: dict[str, list[Version]] = {}
        for version in all_versions(self.store):
            used.setdefault(version.tags.get(DATASET_TAG, ""), []).append(version)
        used.pop("", None)
        experiments = pack_experiments(self.store)
        models = []
        for digest, versions in used.items():
            recorded = packs(self.store, experiments, digest)
            if not recorded:
                continue
            dataset = self._dataset(recorded[0].info.run_id)
            splits = {shard.split for shard in dataset.shards if shard.fingerprint in fingerprints}
            for version in versions if splits else ():
                models.append(
                    {
                        "model": version.name,
                        "version": version.number,
                        "run_id": version.run_id,
                        "digest": digest,
                        "splits": sorted(splits),
                    }
                )
        return sorted(models, key=lambda model: (model["model"], model["version"]))


@contextmanager
def _lineage(folder: Folder, uri: str) -> Iterator[_Lineage]:
    """Everything known of records: from the tracking server and from the working folder, or one of them."""
    local = load_dataset(folder.dataset) if folder.dataset.exists() and folder.plan.exists() else None
    address = _uri(folder, uri)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="shardtrail-")))
        store: Store | None = None
        tables: dict[str, Path] = {}
        if local is None or store_exists(address, folder.root):
            store = stack.enter_context(open_store(address, folder.root, existing=True))
            for run in packs(store, pack_experiments(store)):
                pack = str(run.info.run_id)
                tables[pack] = store.fetch(pack, "membership.parquet", scratch / pack)
        connection = stack.enter_context(_member_database(tables, scratch))
        if local is not None:
            _add_local(connection, folder, local)
        yield _Lineage(connection, store, scratch, tuple(tables), local)


def _member_database(tables: Mapping[str, Path], scratch: Path) -> duckdb.DuckDBPyConnection:
    """DuckDB with the packs' rows as the view ``member``: the columns of a pack, and ``pack``."""
    connection = database(scratch)
    filenames = [str(path) for path in tables.values()]
    make_table(connection, "pack", pack=("VARCHAR", list(tables)), filename=("VARCHAR", filenames))
    rows = f"read_parquet([{', '.join(quoted(path) for path in tables.values())}], filename=true)"
    connection.execute(
        f"CREATE VIEW member AS SELECT {_COLUMNS} FROM {rows} JOIN pack USING (filename)"
        if tables
        else f"CREATE VIEW member AS SELECT {_COLUMNS} FROM (SELECT {_NO_ROWS}) WHERE false"
    )
    return connection


def _add_local(connection: duckdb.DuckDBPyConnection, folder: Folder, dataset: Dataset) -> None:
    """Have ``member`` hold the working folder's own records too."""
    make_table(
        connection,
        "local_shard",
        fingerprint=("VARCHAR", [shard.fingerprint for shard in dataset.shards]),
        md5=("VARCHAR", [shard.md5 for shard in dataset.shards]),
    )
    connection.execute("ALTER VIEW member RENAME TO recorded")
    connection.execute(
        f"""
        CREATE VIEW member AS
        SELECT {_COLUMNS} FROM recorded
        UNION ALL
        SELECT '{_LOCAL}', fingerprint, md5, record, sample_id, plan.digest, files
        FROM read_parquet({quoted(folder.plan)}) AS plan
        JOIN local_shard USING (fingerprint)
        JOIN read_parquet({quoted(folder.manifest)}) AS manifest USING (sample_id)
        WHERE plan.digest = manifest.digest
        """
    )


def _recorded(store: Store, digest: str, into: Path) -> tuple[Dataset, dict[str, str]]:
    """A recorded dataset, and the pack that holds each shard's rows."""
    found = packs(store, pack_experiments(store), digest)
    if not found:
        raise StoreUnavailable(f"{store.address} has no record of dataset {digest[:12]}; was its run deleted?")
    pack = str(found[0].info.run_id)
    return load_dataset(store.fetch(pack, "dataset.json", into / pack)), holders(store, pack, into)


def _place(connection: duckdb.DuckDBPyConnection, dataset: Dataset, held: Mapping[str, str]) -> None:
    """Say where each shard stands in the plan and which pack's rows are its own; check that all are there."""
    shards = dataset.shards
    make_table(
        connection,
        "placed",
        position=("BIGINT", range(len(shards))),
        fingerprint=("VARCHAR", [shard.fingerprint for shard in shards]),
        pack=("VARCHAR", [held[shard.fingerprint] for shard in shards]),
        shard=("VARCHAR", [_stem(shard) for shard in shards]),
        split=("VARCHAR", [shard.split for shard in shards]),
        records=("BIGINT", [shard.records for shard in shards]),
    )
    differing = connection.execute(
        """
        SELECT shard, any_value(records), count(record) FROM placed LEFT JOIN member USING (fingerprint, pack)
        GROUP BY shard HAVING any_value(records) != count(record) LIMIT 1
        """
    ).fetchone()
    if differing:
        shard, expected, found = differing
        raise StoreUnavailable(f"the record of shard {shard} holds {found} of its {expected} samples")


def _samples(connection: duckdb.DuckDBPyConnection, scratch: TemporaryDirectory[str]) -> Iterator[dict[str, Any]]:
    """Every sample of the placed shards in plan order; memory is bounded, and ``scratch`` goes at the end."""
    with scratch, connection:
        found = connection.execute(
            """
            SELECT sample_id, digest, shard, record, split, files FROM placed JOIN member USING (fingerprint, pack)
            ORDER BY position, record
            """
        )
        while rows := found.fetchmany(_ROWS_A_FETCH):
            for sample, digest, shard, record, split, files in rows:
                yield {
                    "sample": sample,
                    "digest": digest,
                    "shard": shard,
                    "record": record,
                    "split": split,
                    "files": [{"path": file["path"], "digest": file["md5"]} for file in files],
                }


def _shard_entry(shard: Shard) -> dict[str, Any]:
    return {
        "shard": _stem(shard),
        "address": shard.address,
        "split": shard.split,
        "records": shard.records,
        "md5": shard.md5,
    }


def _stem(shard: Shard) -> str:
    return shard.file.removesuffix(".tfrecord")


def _near(names: list[str]) -> str:
    return f"; near names: {', '.join(names)}" if names else "; nothing is recorded yet"


def _uri(folder: Folder, uri: str) -> str:
    return uri or load_config(folder.params).tracking.uri


def _json(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_bytes())
    return values


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()
