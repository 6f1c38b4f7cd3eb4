"""Layouts: how a raw tree becomes samples. ``get_layout`` finds one by the name in params.yaml.

A layout of your own is any importable callable that takes the options mapping (section
``custom`` of params.yaml) and returns an object with the methods of ``Layout``:

    layout: mypackage.mymodule:MyLayout

Shards are built again when anything that decides their bytes changes: the raw files, the section ``custom``, or
the code of ``decode``. Of the last, the layout itself has to tell, by its ``decode_version`` (any JSON value);
without one, ``check_version`` stands for both.

Images need not be decoded: declared with a ``format``, as in ``Feature("image", "uint8", (None, None, 3),
format="jpeg")``, they are kept byte for byte, and ``decode`` gives the file's bytes. Whether they are whole is for
``check`` to say.

A layout whose ``decode`` reads some of a sample's files only may say which by a set ``decode_roles``. While shards are
written the others are not read where their stats vouch for them, and ``decode`` gets ``b""`` for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from shardtrail.samples import Rejected, Report, Sample, Schema, SourceFile, Unit

if TYPE_CHECKING:
    from shardtrail.config import Config


@dataclass(frozen=True, slots=True)
class Grouping:
    """A raw tree cut into units.

    Attributes:
        units: sorted by key.
        tables: files read as a whole while assembling (split lists, label tables), relative paths.
        ignored: litter (hidden files, ``Thumbs.db``): number of files left aside.
    """

    units: Sequence[Unit]
    tables: tuple[str, ...] = ()
    ignored: int = 0


@dataclass(frozen=True, slots=True)
class Assembly:
    """Every sample seen, as usable or rejected: each candidate is in exactly one of the two."""

    samples: Sequence[Sample]
    rejected: Sequence[Rejected]


@runtime_checkable
class Layout(Protocol):
    """What the stages ask of a layout. Instances must pickle: ``check`` and ``decode`` run in workers."""

    name: str
    check_version: int
    """Raised whenever ``check`` may answer otherwise for the same bytes; old verdicts are then dropped."""

    def group(self, files: Iterable[tuple[str, int]]) -> Grouping:
        """Cut the tree into units, from ``(relative POSIX path, size)`` alone, sorted by path."""
        ...

    def check(self, unit: Unit, contents: Mapping[str, bytes]) -> Report:
        """Decode everything of one unit, completely.

        Args:
            unit: its files carry md5 and size.
            contents: bytes of each file by its relative path.

        Never raises for what is wrong with the content: that is a fault in the report.
        """
        ...

    def assemble(self, reports: Iterable[Report], raw: Path, tables: Sequence[str]) -> Assembly:
        """Join reports to samples: partners, labels, official splits, attributes. Reads no pixel."""
        ...

    def schema(self) -> Schema:
        """Arrays, strings and vocabulary of a record; valid after ``assemble``."""
        ...

    def decode(self, files: Sequence[SourceFile], contents: Sequence[bytes]) -> Mapping[str, np.ndarray | bytes]:
        """Decode one sample's files, in the order of its manifest row, to arrays by feature name.

        Of an image that is kept encoded (see ``Feature``), its bytes.
        """
        ...


def get_layout(config: Config, root: Path = Path()) -> Layout:
    """The layout that ``config.layout`` names; ``root`` is the working folder, where its lists may lie.

    Raises:
        ConfigError: no such layout, or the user's function cannot be imported.
    """
    from shardtrail.errors import ConfigError

    if config.layout == "bigearthnet":
        from shardtrail.layouts.bigearthnet import BigEarthNet

        return BigEarthNet(config.bigearthnet, root)
    module, _, name = config.layout.partition(":")
    if not name:
        raise ConfigError(
            f"layout: no layout is called {config.layout!r}; known: bigearthnet, or your own as package.module:name"
        )
    import importlib

    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"layout: {config.layout} cannot be imported: {error}") from error
    layout: Layout = factory(config.custom)
    return layout
