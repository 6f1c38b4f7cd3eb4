"""What decides a run, as a key; and the record of a finished one. Without TensorFlow."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from shardtrail.config import TrainParams
from shardtrail.dataset import Dataset
from shardtrail.files import canonical_json, to_json, write_atomic
from shardtrail.folder import Folder

_CODE = ("reading", "models", "training")
_LIBRARIES = ("tensorflow", "keras")


@dataclass(frozen=True, slots=True)
class RunKey:
    """Names a run.

    Attributes:
        work: digest of dataset, parameters, code and library versions: of all that decides the weights.
        place: strategy and replicas, which do not (up to two replicas).
    """

    work: str
    place: str

    def __str__(self) -> str:
        return f"{self.work}-{self.place}"

    def checkpoint(self, folder: Folder) -> Path:
        """Where the run's checkpoint lies."""
        return folder.checkpoints / f"{self}.npz"

    def finished(self, folder: Folder) -> Path:
        """Where it is noted that the run is finished."""
        return folder.checkpoints / f"{self}.json"

    def resumable(self, folder: Folder) -> Path | None:
        """The checkpoint to begin from: the run's own, else the latest of the same work begun in another place."""
        own = self.checkpoint(folder)
        if own.exists():
            return own
        others = folder.checkpoints.glob(f"{self.work}-*.npz")
        unfinished = [path for path in others if not path.with_suffix(".json").exists()]
        return max(unfinished, key=lambda path: path.stat().st_mtime_ns, default=None)


def run_key(dataset: Dataset, params: TrainParams) -> RunKey:
    """The key of a run: it changes with everything that may change the weights."""
    decisive = params.model_dump(mode="json", exclude={"strategy", "replicas", "checkpoint_steps"})
    content = {
        "dataset": dataset.digest,
        "statistics": {name: dict(values) for name, values in dataset.bands.items()},
        "train": decisive,
        "code": _code_digest(params.model),
        "versions": {name: version(name) for name in _LIBRARIES},
    }
    replicas = params.replicas if params.strategy == "mirrored" else 1
    return RunKey(hashlib.sha256(canonical_json(content)).hexdigest()[:16], f"{params.strategy}-{replicas}")


def note_finished(key: RunKey, folder: Folder, run_id: str, outputs: Iterable[Path]) -> None:
    """Record that a run is finished, with the digests of its outputs."""
    digests = {folder.relative(path): _sha256(path) for path in outputs}
    write_atomic(key.finished(folder), to_json({"run_id": run_id, "outputs": digests}))


def finished_run(key: RunKey, folder: Folder, model: Path) -> str | None:
    """The id of the finished run of a key, if all its outputs, the file ``model`` among them, are as it left them."""
    try:
        noted = json.loads(key.finished(folder).read_bytes())
        outputs: Mapping[str, str] = noted["outputs"]
        if folder.relative(model) not in outputs:
            return None
        if any(_sha256(folder.root / path) != digest for path, digest in outputs.items()):
            return None
        return str(noted["run_id"])
    except (OSError, ValueError, KeyError):
        return None


def _code_digest(model: str) -> str:
    """sha256 over the sources that training runs: ours, and the file of a model of the user's own."""
    package = Path(__file__).parents[1]
    sources = sorted(path for part in _CODE for path in (package / part).glob("*.py"))
    if ":" in model:
        spec = importlib.util.find_spec(model.partition(":")[0])
        if spec is not None and spec.origin:
            sources.append(Path(spec.origin))
    digest = hashlib.sha256()
    for path in sources:
        digest.update(f"{path.name}\t{_sha256(path)}\n".encode())
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
