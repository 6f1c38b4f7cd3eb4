"""The tables that pass between stages: their Arrow schemas, how they are written, and their digest.

    write_table(folder.manifest, table)
    table = read_manifest(folder.manifest)
    schema = manifest_schema(table)

A table's digest is taken over its values, not over the file: a Parquet file's bytes also hold
the version of the library that wrote it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtrail.dataset import schema_from_json, schema_to_json
from shardtrail.errors import ConfigError
from shardtrail.files import canonical_json, replacing
from shardtrail.folder import Folder
from shardtrail.packed import columns as file_columns
from shardtrail.samples import Sample, Schema
from shardtrail.validation.duplicates import sample_digest

DIGEST_KEY = b"shardtrail.digest"
SCHEMA_KEY = b"shardtrail.schema"

FILE = pa.struct([("role", pa.string()), ("path", pa.string()), ("size", pa.int64()), ("md5", pa.string())])

INVENTORY = pa.schema([("path", pa.string()), ("size", pa.int64()), ("version", pa.string())])

PLAN = pa.schema(
    [
        ("address", pa.string()),
        ("shard", pa.string()),
        ("fingerprint", pa.string()),
        ("split", pa.string()),
        ("group", pa.string()),
        ("record", pa.int32()),
        ("sample_id", pa.string()),
        ("digest", pa.string()),
        ("bytes", pa.int64()),
    ]
)

ROW_GROUP = 65_536
"""Rows of a row group. Tables made in pieces have pieces of whole groups: their files are then those of one piece."""

ATTRIBUTES = ("region", "month", "acquired")
"""Attribute columns that every manifest has; further ones follow in name order."""

_BEFORE = (
    ("sample_id", pa.string()),
    ("split", pa.string()),
    ("labels", pa.list_(pa.int32())),
    ("digest", pa.string()),
    ("bytes", pa.int64()),
)
_AFTER = (("texts", pa.list_(pa.string())), ("files", pa.list_(FILE)))

_STAGES = {"inventory": "download", "manifest": "validate", "plan": "shard"}


def manifest_columns(schema: Schema, attributes: Sequence[str] = ()) -> pa.Schema:
    """The Arrow schema of a manifest whose samples have these further attributes.

    Raises:
        ConfigError: an attribute has the name of a column that every manifest has.
    """
    taken = {name for name, _ in (*_BEFORE, *_AFTER)} & set(attributes)
    if taken:
        raise ConfigError(f"layout: a sample's attribute may not be called {', '.join(sorted(taken))}; rename it")
    further = sorted(set(attributes) - set(ATTRIBUTES))
    columns = [*_BEFORE, *((name, pa.string()) for name in (*ATTRIBUTES, *further)), *_AFTER]
    return pa.schema(columns, metadata={SCHEMA_KEY: canonical_json(schema_to_json(schema))})


def manifest_schema(table: pa.Table) -> Schema:
    """What every record of the manifest's samples holds."""
    return schema_from_json(json.loads(table.schema.metadata[SCHEMA_KEY]))


def manifest_table(samples: Sequence[Sample], schema: Schema) -> pa.Table:
    """``data/manifest.parquet`` of samples sorted by id, each with a split and its files' md5."""
    attributes = {name for sample in samples for name in sample.attributes}
    columns = manifest_columns(schema, sorted(attributes))
    pieces = (samples[start : start + ROW_GROUP] for start in range(0, len(samples), ROW_GROUP))
    return pa.Table.from_batches([_manifest_rows(piece, schema, columns) for piece in pieces], columns)


def _manifest_rows(samples: Sequence[Sample], schema: Schema, columns: pa.Schema) -> pa.RecordBatch:
    places = {name: place for place, name in enumerate(schema.vocabulary)}
    roles, paths, sizes, md5s = (
        list(itertools.chain.from_iterable(values))
        for values in zip(*(file_columns(sample.files) for sample in samples), strict=True)
    )
    values: dict[str, pa.Array] = {
        "sample_id": _strings(sample.id for sample in samples),
        "split": _strings(sample.split for sample in samples),
        "labels": pa.array([sorted(places[name] for name in s.labels) for s in samples], pa.list_(pa.int32())),
        "digest": _strings(sample_digest(sample.files) for sample in samples),
        "bytes": pa.array(schema.payload_bytes(samples), pa.int64()),
        "texts": pa.array([[sample.texts[name] for name in schema.texts] for sample in samples], pa.list_(pa.string())),
        "files": pa.ListArray.from_arrays(
            pa.array(np.cumsum([0, *(len(sample.files) for sample in samples)]), pa.int32()),
            pa.StructArray.from_arrays(
                [_strings(roles), _strings(paths), pa.array(sizes, pa.int64()), _strings(md5s)], fields=list(FILE)
            ),
        ),
    }
    for name in columns.names:
        if name not in values:
            values[name] = _strings(sample.attributes.get(name, "") for sample in samples)
    return pa.RecordBatch.from_arrays([values[name] for name in columns.names], schema=columns)


def _strings(values: Iterable[str]) -> pa.Array:
    return pa.array(list(values), pa.string())


def write_table(path: Path, table: pa.Table) -> bool:
    """Write a table with its digest: temporary name, flush, fsync, rename. One that would not change is left alone.

    Returns:
        Whether the file was written.
    """
    digest = rows_digest(table)
    with contextlib.suppress(ConfigError):
        if stored_digest(path) == digest:
            read_table(path)  # the footer may be sound where the rows are not
            return False
    with replacing(path) as file:
        _write(table, digest, file)
    return True


def table_bytes(table: pa.Table) -> bytes:
    """The bytes of the file that ``write_table`` makes of a table."""
    buffer = io.BytesIO()
    _write(table, rows_digest(table), buffer)
    return buffer.getvalue()


def _write(table: pa.Table, digest: str, file: IO[bytes]) -> None:
    # Every choice that a later default could change is spelt out, so that bytes stay the same.
    pq.write_table(
        table.replace_schema_metadata({**(table.schema.metadata or {}), DIGEST_KEY: digest.encode()}),
        file,
        row_group_size=ROW_GROUP,
        version="2.6",
        data_page_version="1.0",
        use_dictionary=False,
        compression="zstd",
        compression_level=3,
        write_statistics=True,
        write_page_checksum=True,
        store_schema=True,
    )


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table of ours, or some of its columns; a whole one is compared with its digest.

    Raises:
        ConfigError: absent, truncated, damaged or not one of ours; the text names the stage to run again.
    """
    # Not pq.read_table: it imports pyarrow.dataset and with it pandas, which takes a second.
    with _readable(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        table = file.read(columns)
        found = rows_digest(table) if columns is None else ""
    absent = [name for name in columns or () if name not in table.column_names]
    if absent:
        raise ConfigError(f"{path} has no column {', '.join(absent)}; {_again(path)}")
    expected = _digest_in(table.schema, path)
    if columns is None and found != expected:
        raise ConfigError(f"{path} was damaged or edited: its rows do not fit its digest; {_again(path)}")
    return table


def read_pieces(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read some columns of a table of ours, two row groups at a time.

    Raises:
        ConfigError: see ``read_table``.
    """
    with _readable(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        yield from file.iter_batches(2 * ROW_GROUP, columns=list(columns))


def read_manifest(path: Path) -> pa.Table:
    """Read ``data/manifest.parquet``; see ``read_table``."""
    return read_table(path)


def check_tables(folder: Folder) -> None:
    """Read inventory, manifest and plan as a whole, each against its digest: what is recorded must be readable.

    Raises:
        ConfigError: see ``read_table``.
    """
    for path in (folder.inventory, folder.manifest, folder.plan):
        read_table(path)


def stored_digest(path: Path) -> str:
    """The digest that a table's file carries, read from its footer alone.

    Raises:
        ConfigError: see ``read_table``.
    """
    with _readable(path):
        schema = pq.read_schema(path)
    return _digest_in(schema, path)


def _digest_in(schema: pa.Schema, path: Path) -> str:
    digest = (schema.metadata or {}).get(DIGEST_KEY)
    if digest is None:
        raise ConfigError(f"{path} was not written by shardtrail; {_again(path)}")
    return str(digest, "ascii", "replace")


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; {_again(path)}") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({str(error).splitlines()[0]}); {_again(path)}") from error


def _again(path: Path) -> str:
    stage = _STAGES.get(path.stem)
    return f"make it again: shardtrail run --until {stage}" if stage else "make it again: shardtrail run"


def rows_digest(table: pa.Table) -> str:
    """sha256 over column names, types, metadata and values, whatever the chunking or the file they came from.

    Each column is hashed as a whole: numbers as little-endian bytes, strings as lengths and UTF-8
    bytes, lists as lengths and values.

    Raises:
        ValueError: a value is null or a column has a type that no table of ours has.
    """
    hashes: dict[str, hashlib._Hash] = defaultdict(hashlib.sha256)
    types = [(field.name, _type_name(field.type)) for field in table.schema]
    for name, column in zip(table.column_names, table.columns, strict=True):
        for chunk in column.chunks:
            if len(chunk):
                _feed(hashes, name, chunk)
    metadata = {
        key.decode(): value.decode()
        for key, value in (table.schema.metadata or {}).items()
        if key.startswith(b"shardtrail.") and key != DIGEST_KEY
    }
    parts = {name: state.hexdigest() for name, state in hashes.items()}
    content = {"types": types, "rows": table.num_rows, "metadata": metadata, "values": parts}
    return hashlib.sha256(canonical_json(content)).hexdigest()


def _type_name(kind: pa.DataType) -> str:
    """A type as it is hashed; a list's inner field has no name, since Parquet readers differ in it."""
    if pa.types.is_list(kind):
        return f"list<{_type_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return "struct<" + ",".join(f"{field.name}:{_type_name(field.type)}" for field in kind) + ">"
    return str(kind)


def _feed(hashes: dict[str, hashlib._Hash], name: str, array: pa.Array) -> None:
    """Add one chunk of a column to its hashes; slices hash like copies."""
    if array.null_count:
        raise ValueError(f"column {name} holds a null; tables of ours write unknown strings as ''")
    if pa.types.is_struct(array.type):
        for field, child in zip(array.type, array.flatten(), strict=True):
            _feed(hashes, f"{name}.{field.name}", child)
    elif pa.types.is_list(array.type):
        hashes[f"{name}#"].update(_numbers(array.value_lengths()))
        _feed(hashes, f"{name}[]", array.flatten())
    elif pa.types.is_string(array.type):
        _, offsets_buffer, values = array.buffers()
        if not len(array):
            return
        offsets = np.frombuffer(offsets_buffer, "<i4")[array.offset : array.offset + len(array) + 1]
        hashes[f"{name}#"].update(np.diff(offsets).tobytes())
        if values is not None:
            hashes[name].update(memoryview(values)[offsets[0] : offsets[-1]])
    elif pa.types.is_integer(array.type):
        hashes[name].update(_numbers(array))
    else:
        raise ValueError(f"column {name} has the type {array.type}, which has no digest")


def _numbers(array: pa.Array) -> bytes:
    values = array.to_numpy(zero_copy_only=True)
    return bytes(values.astype(values.dtype.newbyteorder("<"), copy=False).data)
