"""Where everything of a working folder lies. Any folder with a ``params.yaml`` is one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Folder:
    """Paths of one working folder; ``root`` is absolute."""

    root: Path

    @property
    def params(self) -> Path:
        return self.root / "params.yaml"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def downloads(self) -> Path:
        """Archives as fetched; part names until verified."""
        return self.data / "download"

    @property
    def unpacked(self) -> Path:
        """The raw tree of an archive source (a folder source is used where it lies)."""
        return self.data / "unpacked"

    @property
    def inventory(self) -> Path:
        return self.data / "inventory.parquet"

    @property
    def manifest(self) -> Path:
        return self.data / "manifest.parquet"

    @property
    def quarantine(self) -> Path:
        return self.data / "quarantine.csv"

    @property
    def warnings(self) -> Path:
        return self.data / "warnings.csv"

    @property
    def statistics(self) -> Path:
        return self.data / "statistics.json"

    @property
    def plan(self) -> Path:
        return self.data / "plan.parquet"

    @property
    def shards(self) -> Path:
        return self.data / "shards"

    @property
    def retired(self) -> Path:
        """Shards that no longer belong to the plan."""
        return self.data / "retired"

    @property
    def dataset(self) -> Path:
        return self.data / "dataset.json"

    @property
    def view(self) -> Path:
        return self.data / "view"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.json"

    @property
    def plots(self) -> Path:
        return self.root / "plots"

    @property
    def registration(self) -> Path:
        return self.root / "registration.json"

    @property
    def state(self) -> Path:
        """Receipts, stat cache, lease, checkpoints, logs: evidence, outside every DVC out."""
        return self.root / ".shardtrail"

    @property
    def receipts(self) -> Path:
        return self.state / "receipts"

    @property
    def stat_cache(self) -> Path:
        return self.state / "stat.sqlite"

    @property
    def checkpoints(self) -> Path:
        return self.state / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    def relative(self, path: Path) -> str:
        """``path`` as shown to the user: relative to the root where it lies inside."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)
