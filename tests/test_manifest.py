from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtrail.errors import ConfigError
from shardtrail.files import replacing
from shardtrail.folder import Folder
from shardtrail.manifest import (
    INVENTORY,
    PLAN,
    check_tables,
    manifest_schema,
    manifest_table,
    read_manifest,
    read_table,
    rows_digest,
    stored_digest,
    table_bytes,
    write_table,
)
from shardtrail.packed import pack_files
from shardtrail.samples import Feature, Sample, Schema, SourceFile

SCHEMA = Schema((Feature("B02", "uint16", (120, 120)),), ("note",), ("a", "b", "c"), "prefix")

rows = st.lists(
    st.fixed_dictionaries(
        {
            "text": st.text(),
            "number": st.integers(-(2**63), 2**63 - 1),
            "numbers": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
            "files": st.lists(
                st.fixed_dictionaries({"path": st.text(max_size=4), "size": st.integers(0, 9)}), max_size=3
            ),
        }
    ),
    max_size=6,
)
TYPES = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.int64()),
        ("numbers", pa.list_(pa.int32())),
        ("files", pa.list_(pa.struct([("path", pa.string()), ("size", pa.int64())]))),
    ]
)


def table_of(values: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(values, schema=TYPES)


def sample(name: str, **changes: object) -> Sample:
    values: dict[str, object] = {
        "files": (SourceFile("B02", f"raw/{name}.tif", 7, "0" * 32),),
        "labels": ("c", "a"),
        "split": "train",
        "attributes": {"region": "33UUP", "month": "2017-06", "acquired": "2017-06-13", "country": "Austria"},
        "texts": {"note": "hello"},
    }
    return Sample(name, **{**values, **changes})


@given(rows, st.integers(0, 6))
def test_digest_does_not_see_chunks(values, cut):
    """A table has one digest, however its rows lie in memory or in a Parquet file."""
    table = table_of(values)
    pieces = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    assert rows_digest(pieces) == rows_digest(table)
    buffer = pa.BufferReader(table_bytes(table))
    assert rows_digest(pq.read_table(buffer)) == rows_digest(table)


@given(rows, rows)
def test_digest_tells_tables_apart(one, other):
    """Two tables have the same digest only if they hold the same rows in the same order."""
    assert (rows_digest(table_of(one)) == rows_digest(table_of(other))) == (one == other)


def test_digest_is_pinned():
    """The digest of given rows never changes: other versions of shardtrail and pyarrow agree on it."""
    table = manifest_table([sample("one"), sample("two", labels=(), texts={"note": "ü"})], SCHEMA)
    assert rows_digest(table) == "62bd4902d2236a7a409706cf320de1f4fde5a4b832c8de742b17035dafb64caf"


def test_digest_sees_names_types_and_metadata():
    """Renaming a column, narrowing its type or another schema of records gives another digest."""
    table = pa.table({"a": pa.array([1, 2], pa.int64())})
    narrow = pa.table({"a": pa.array([1, 2], pa.int32())})
    tagged = table.replace_schema_metadata({"shardtrail.schema": "{}"})
    assert (
        len({rows_digest(table), rows_digest(narrow), rows_digest(tagged), rows_digest(table.rename_columns(["b"]))})
        == 4
    )


def test_unknown_values_are_refused():
    """A null has no place in a table of ours and is refused by its column."""
    with pytest.raises(ValueError, match="column a"):
        rows_digest(pa.table({"a": pa.array(["x", None])}))


def test_a_replaced_file_is_whole_or_the_old_one(tmp_path):
    """While it is written, and after a failure, the old content stands under the name and nothing else is left."""
    path = tmp_path / "new" / "file"
    with replacing(path) as file:
        file.write(b"old")
    with pytest.raises(RuntimeError, match="half"), replacing(path) as file:
        file.write(b"ne")
        file.flush()
        assert path.read_bytes() == b"old" and len(list(path.parent.iterdir())) == 2
        raise RuntimeError("half")
    assert path.read_bytes() == b"old" and list(path.parent.iterdir()) == [path]


def test_an_equal_table_is_not_written(tmp_path):
    """Writing rows that are there already leaves the file alone; other rows replace it and leave nothing behind."""
    path = tmp_path / "data" / "inventory.parquet"
    table = pa.table([["a", "b"], [1, 2], ["", ""]], schema=INVENTORY)
    assert write_table(path, table)
    before = path.stat()
    assert not write_table(path, pa.concat_tables([table.slice(0, 1), table.slice(1)]))
    assert path.stat() == before
    assert write_table(path, table.slice(1))
    assert read_table(path).to_pylist() == table.slice(1).to_pylist()
    assert stored_digest(path) == rows_digest(table.slice(1))
    assert [entry.name for entry in path.parent.iterdir()] == ["inventory.parquet"]


def test_bytes_do_not_depend_on_history(tmp_path):
    """The same rows give the same bytes, however they were put together and whatever was there before."""
    table = pa.table([["a", "b"], [1, 2], ["", ""]], schema=INVENTORY)
    path = tmp_path / "inventory.parquet"
    write_table(path, table.slice(1))
    write_table(path, pa.concat_tables([table.slice(0, 1), table.slice(1)]))
    assert path.read_bytes() == table_bytes(table)


def test_a_manifest_of_many_pieces_is_the_same_file(monkeypatch):
    """A manifest is made in pieces; digest and bytes of its file are those of one piece, whatever holds its files."""
    whole = manifest_table([sample(f"{n:03}") for n in range(40)], SCHEMA).combine_chunks()
    monkeypatch.setattr("shardtrail.manifest.ROW_GROUP", 16)
    packed = [sample(f"{n:03}", files=pack_files(sample(f"{n:03}").files)) for n in range(40)]
    pieces = manifest_table(packed, SCHEMA)
    assert pieces["sample_id"].num_chunks == 3 and rows_digest(pieces) == rows_digest(whole)
    assert table_bytes(pieces) == table_bytes(whole)


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_cut_file_names_the_stage(tmp_path, keep):
    """A truncated table is refused with the stage that makes it again, and replaced by the next writing."""
    path = tmp_path / "manifest.parquet"
    table = manifest_table([sample("one")], SCHEMA)
    write_table(path, table)
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    with pytest.raises(ConfigError, match="shardtrail run --until validate"):
        read_manifest(path)
    assert write_table(path, table)
    assert path.read_bytes() == whole


def test_a_flipped_bit_is_noticed(tmp_path):
    """Wherever a bit flips, the table is refused or holds its rows all the same; never other values."""
    path = tmp_path / "manifest.parquet"
    table = manifest_table([sample("one"), sample("two")], SCHEMA)
    write_table(path, table)
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 37):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            assert read_manifest(path).to_pylist() == table.to_pylist()
        except ConfigError as error:
            assert "shardtrail run --until validate" in str(error)
            refused += 1
    assert refused


def test_absent_and_foreign_files_are_refused(tmp_path):
    """No file, and a Parquet file of somebody else, are refused with what to run."""
    with pytest.raises(ConfigError, match="does not exist; make it again: shardtrail run --until download"):
        read_table(tmp_path / "inventory.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "plan.parquet")
    with pytest.raises(ConfigError, match=r"not written by shardtrail; .* --until shard"):
        read_table(tmp_path / "plan.parquet")
    with pytest.raises(ConfigError, match="not written by shardtrail"):
        stored_digest(tmp_path / "plan.parquet")


def test_manifest_columns(tmp_path):
    """A manifest has its columns in the documented order, labels as ascending indices, unknown attributes empty."""
    samples = [sample("one"), sample("two", attributes={"sensor": "A", "altitude": "3"})]
    write_table(tmp_path / "manifest.parquet", manifest_table(samples, SCHEMA))
    table = read_manifest(tmp_path / "manifest.parquet")
    assert table.column_names == [
        *("sample_id", "split", "labels", "digest", "bytes", "region", "month", "acquired"),
        *("altitude", "country", "sensor", "texts", "files"),
    ]
    one, two = table.to_pylist()
    assert one["labels"] == [0, 2]
    assert one["bytes"] == 2 * 120 * 120
    assert one["texts"] == ["hello"]
    assert one["files"] == [{"role": "B02", "path": "raw/one.tif", "size": 7, "md5": "0" * 32}]
    assert (two["region"], two["altitude"], one["altitude"]) == ("", "3", "")
    assert manifest_schema(table) == SCHEMA


def test_an_attribute_cannot_hide_a_column():
    """A layout whose samples have an attribute named like a fixed column is refused."""
    with pytest.raises(ConfigError, match="may not be called digest"):
        manifest_table([sample("one", attributes={"digest": "x"})], SCHEMA)


@pytest.mark.parametrize("victim", ["inventory", "manifest", "plan"])
def test_tables_are_checked_as_a_whole(tmp_path, victim):
    """Whole tables pass; damage to the rows of any, or its absence, is refused with the stage to run again."""
    folder = Folder(tmp_path)
    write_table(folder.inventory, pa.table([["a"] * 99, [1] * 99, [""] * 99], schema=INVENTORY))
    write_table(folder.manifest, manifest_table([sample(f"{n:03}") for n in range(99)], SCHEMA))
    write_table(folder.plan, pa.table([["a"] * 99] * 5 + [[0] * 99] + [["a"] * 99] * 2 + [[1] * 99], schema=PLAN))
    check_tables(folder)

    path = tmp_path / "data" / f"{victim}.parquet"
    content = bytearray(path.read_bytes())
    content[4:104] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="make it again: shardtrail run --until"):
        check_tables(folder)
    path.unlink()
    with pytest.raises(ConfigError, match=f"{victim}.parquet does not exist"):
        check_tables(folder)
