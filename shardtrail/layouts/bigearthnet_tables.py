"""The lists and tables that come with BigEarthNet: v1's split and exclude lists, v2's metadata tables.

v1's lists are plain text, one patch name a line, no header, with CRLF or LF; they name Sentinel-2 patches.
v2's tables are Parquet files with one row a patch, labels and split included.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Final

from shardtrail.errors import ConfigError, SourceError
from shardtrail.layouts.bigearthnet_patch import S2_NAME

if TYPE_CHECKING:
    import pyarrow as pa

METADATA_TABLES: Final = frozenset(
    {"metadata.parquet", "metadata_for_patches_with_snow_cloud_or_shadow.parquet"},
)
"""The names under which v2 publishes its tables."""

_SPLITS: Final = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}


@dataclass(frozen=True, slots=True)
class Row:
    """What v2's tables say about one patch.

    Attributes:
        patch: its Sentinel-2 name.
        labels: names of the 19-class nomenclature.
        split: ``train``, ``validation`` or ``test``.
        country: English name.
        s1_name: its Sentinel-1 partner.
        v1_name: the Sentinel-2 name that v1 gave it.
        table: how the table is called in findings.
    """

    patch: str
    labels: tuple[str, ...]
    split: str
    country: str
    s1_name: str
    v1_name: str
    table: str


def find_list(name: str, folders: Iterable[Path]) -> Path:
    """The file that a parameter names, in the first folder that has it.

    Raises:
        ConfigError: in none of them.
    """
    places = [folder / Path(name).expanduser() for folder in folders]
    for place in places:
        if place.is_file():
            return place
    raise ConfigError(f"bigearthnet: the list {name} is not there; looked at {' and '.join(map(str, places))}")


def read_names(path: Path) -> list[str]:
    """Sentinel-2 patch names of a list: the first column of a text file without header, or a v2 table's names.

    A v2 table gives both of a patch's names, v2's and v1's.

    Raises:
        ConfigError: a line that is no patch name, or text that is not UTF-8.
    """
    if path.suffix == ".parquet":
        return [name for name, _ in _read_table_splits(path)]
    names = []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"bigearthnet: {path} is not UTF-8 text: {error}") from error
    for number, line in enumerate(lines, 1):
        name = line.partition(",")[0].strip().strip('"')
        if not name:
            continue
        if not S2_NAME.fullmatch(name):
            raise ConfigError(
                f"bigearthnet: {path}, line {number}: {name!r} is not the name of a Sentinel-2 patch; "
                "a list has one name a line and no header"
            )
        names.append(name)
    return names


def read_splits(paths: Sequence[Path]) -> dict[str, str]:
    """Split by patch name, from lists named after their split or v2 tables with a column ``split``.

    Raises:
        ConfigError: a list with another name, or a patch in two splits.
    """
    splits: dict[str, str] = {}
    for path in paths:
        for name, split in _list_splits(path):
            if splits.setdefault(name, split) != split:
                raise ConfigError(
                    f"bigearthnet.splits: {name} is in {splits[name]} and, by {path}, in {split}; "
                    "a patch belongs to one split"
                )
    return splits


def _list_splits(path: Path) -> list[tuple[str, str]]:
    if path.suffix == ".parquet":
        return _read_table_splits(path)
    if path.stem not in _SPLITS:
        raise ConfigError(
            f"bigearthnet.splits: {path} does not tell its split by its name; "
            "name it train, val, validation or test, with .csv or .txt"
        )
    return [(name, _SPLITS[path.stem]) for name in read_names(path)]


def _read_table_splits(path: Path) -> list[tuple[str, str]]:
    table = _read_table(path, ["patch_id", "s2v1_name", "split"])
    splits = [_table_split(path, split) for split in table["split"].to_pylist()]
    return [
        (name, split)
        for column in ("patch_id", "s2v1_name")
        for name, split in zip(table[column].to_pylist(), splits, strict=True)
        if name
    ]


def read_rows(tables: Mapping[Path, str], s2_names: Collection[str], s1_names: Collection[str]) -> dict[str, Row]:
    """Rows of v2's tables by Sentinel-2 name: those of the given Sentinel-2 or Sentinel-1 patches only.

    Args:
        tables: each with how it is called in findings.
        s2_names: patches wanted.
        s1_names: patches wanted through their partner.

    Raises:
        SourceError: a file that is not such a table.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pc.field("patch_id").isin(pa.array(list(s2_names), pa.string()))
    wanted |= pc.field("s1_name").isin(pa.array(list(s1_names), pa.string()))
    rows = {}
    for path, called in tables.items():
        columns = ["patch_id", "labels", "split", "country", "s1_name", "s2v1_name"]
        for values in _read_table(path, columns, wanted).to_pylist():
            rows[values["patch_id"]] = Row(
                patch=values["patch_id"],
                labels=tuple(intern(label) for label in values["labels"] or ()),
                split=_table_split(path, values["split"]),
                country=intern(values["country"] or ""),
                s1_name=values["s1_name"] or "",
                v1_name=values["s2v1_name"] or "",
                table=called,
            )
    return rows


def _read_table(path: Path, columns: list[str], wanted: object = None) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path, columns=columns, filters=wanted).select(columns)
    except (pa.ArrowException, KeyError) as error:
        raise SourceError(
            f"{path} is not one of BigEarthNet v2's tables with the columns {', '.join(columns)}: {error}"
        ) from error


def _table_split(path: Path, split: str | None) -> str:
    if split not in _SPLITS:
        raise SourceError(f"{path}: split {split!r} is unknown; known: {', '.join(_SPLITS)}")
    return _SPLITS[split]
