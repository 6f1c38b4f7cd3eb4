"""What every stage is given."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from shardtrail.config import Config, load_config
from shardtrail.execution import Mapper, serial_mapper
from shardtrail.folder import Folder
from shardtrail.progress import Progress, Silent


@dataclass(frozen=True)
class Job:
    """One build in one working folder.

    Attributes:
        folder: where everything lies.
        config: the parameters.
        mapper: runs the units of a stage.
        progress: told how far it is.
        full: hash every raw file, whatever its times say.
        reproduce: True under ``dvc repro``: news in the raw tree are refused, not taken in.
    """

    folder: Folder
    config: Config
    mapper: Mapper = serial_mapper
    progress: Progress = field(default_factory=Silent)
    full: bool = False
    reproduce: bool = False

    @property
    def raw(self) -> Path:
        """Root of the raw tree: the source folder itself, or where its archive was unpacked."""
        from shardtrail.storage.source import is_archive

        if is_archive(self.config.source):
            return self.folder.unpacked
        return (self.folder.root / Path(self.config.source).expanduser()).resolve()


def open_job(root: Path, *, mapper: Mapper = serial_mapper, progress: Progress | None = None) -> Job:
    """The job of a working folder, with the parameters of its ``params.yaml``."""
    folder = Folder(root.resolve())
    config = load_config(folder.params)
    if str(folder.root) not in sys.path:
        sys.path.append(str(folder.root))  # a layout or model of the user's own may lie beside its parameters
    return Job(folder, config, mapper, progress or Silent(), full=config.check_sources == "full")
