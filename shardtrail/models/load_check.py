"""Load a stored model in this process and run it on one real batch.

python -m shardtrail.models.load_check MODEL.keras FOLDER

prints one JSON line, ``{"samples": 8, "classes": 19}``, and ends with 0 if the outputs are finite and shaped as they
should be. Run in a process of its own, it proves that the file and ``shardtrail.models``, which registers our layers,
suffice.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import keras
import numpy as np

from shardtrail.config import load_config
from shardtrail.dataset import load_dataset
from shardtrail.errors import PipelineError, ShardError
from shardtrail.folder import Folder
from shardtrail.reading.pipeline import open_dataset

_SAMPLES = 8


def check_model(path: Path, root: Path) -> dict[str, int]:
    """Run a stored model on the first samples of a working folder's validation split (or another one it has).

    Args:
        path: a ``.keras`` file. It is loaded in safe mode: nothing in it is run or unpickled.
        root: a working folder with its shards.

    Returns:
        ``samples`` and ``classes`` of the outputs, which are [samples, classes] and finite.

    Raises:
        ShardError: they are not.
    """
    dataset = load_dataset(Folder(root).dataset)
    split = next(name for name in ("validation", "train", "test") if name in dataset.splits)
    _import_own_model(root)
    model = keras.saving.load_model(path, compile=False, safe_mode=True)
    batch = next(iter(open_dataset(root, split, batch_size=_SAMPLES, seed=None)))
    samples = int(np.count_nonzero(batch.weight))
    outputs = np.asarray(model({name: batch.bands[name][:samples] for name in model.input}, training=False))
    expected = (samples, len(dataset.schema.vocabulary))
    if outputs.shape != expected:
        raise ShardError(f"{path.name} gives outputs of shape {outputs.shape} for {split}, expected {expected}")
    bad = int(np.count_nonzero(~np.isfinite(outputs)))
    if bad:
        raise ShardError(f"{path.name} gives {bad} values that are not finite on the first samples of {split}")
    return {"samples": expected[0], "classes": expected[1]}


def _import_own_model(root: Path) -> None:
    """A model of the user's own may use layers that its module registers."""
    module, _, own = load_config(Folder(root).params).train.model.partition(":")
    if own:
        importlib.import_module(module)


if __name__ == "__main__":
    try:
        print(json.dumps(check_model(Path(sys.argv[1]), Path(sys.argv[2]).resolve())))
    except PipelineError as error:
        sys.exit(str(error))
