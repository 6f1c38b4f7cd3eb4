"""``data/view/``: the shards under the names that other tools expect, as relative links in plan order.

    tfds.builder_from_directory("data/view").as_dataset(split="train[:20%]")

The view is derived from dataset.json, tracked by nothing and remade as a whole.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from shardtrail.dataset import Dataset, Shard
from shardtrail.files import to_json
from shardtrail.folder import Folder
from shardtrail.samples import Feature


def make_view(folder: Folder, dataset: Dataset) -> bool:
    """Make ``data/view/`` anew if it is not what ``dataset`` gives.

    Returns:
        Whether it was remade.
    """
    links, files = view_links(folder, dataset), view_files(dataset)
    view = folder.view
    if _is_current(view, links, files):
        return False
    for stale in folder.data.glob(".view.*.tmp"):
        shutil.rmtree(stale)
    new, old = (folder.data / f".view.{os.getpid()}.{which}.tmp" for which in ("new", "old"))
    new.mkdir(parents=True)
    for name, target in links.items():
        (new / name).symlink_to(target)
    for name, content in files.items():
        (new / name).write_bytes(content)
    # Two renames, since a folder cannot replace one that is not empty; whoever dies between them leaves no view,
    # and the next run makes it.
    if view.exists():
        view.rename(old)
    new.rename(view)
    shutil.rmtree(old, ignore_errors=True)
    return True


def view_links(folder: Folder, dataset: Dataset) -> dict[str, str]:
    """Link name such as ``train-00003-of-00118.tfrecord`` -> relative path of its shard."""
    shards = os.path.relpath(folder.shards, folder.view)
    return {name: f"{shards}/{shard.file}" for name, shard in view_names(dataset).items()}


def view_names(dataset: Dataset) -> dict[str, Shard]:
    """The names by which other tools look for shards, such as ``train-00003-of-00118.tfrecord``."""
    return {
        f"{split}-{number:05}-of-{figures['shards']:05}.tfrecord": shard
        for split, figures in dataset.splits.items()
        for number, shard in enumerate(dataset.of_split(split))
    }


def view_files(dataset: Dataset) -> dict[str, bytes]:
    """What tensorflow-datasets reads beside shards under these names."""
    return {"features.json": to_json(_features(dataset)), "dataset_info.json": to_json(_info(dataset))}


def _is_current(view: Path, links: dict[str, str], files: dict[str, bytes]) -> bool:
    try:
        return (
            {path.name for path in view.iterdir()} == links.keys() | files.keys()
            and all(str((view / name).readlink()) == target for name, target in links.items())
            and all((view / name).read_bytes() == content for name, content in files.items())
        )
    except OSError:
        return False


def _info(dataset: Dataset) -> dict[str, Any]:
    """``dataset_info.json`` of tensorflow-datasets."""
    splits = [
        {
            "name": split,
            "shardLengths": [str(shard.records) for shard in dataset.of_split(split)],
            "numBytes": str(figures["bytes"]),
            "filepathTemplate": "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}",
        }
        for split, figures in dataset.splits.items()
    ]
    return {"name": "shardtrail", "version": "1.0.0", "fileFormat": "tfrecord", "splits": splits}


def _features(dataset: Dataset) -> dict[str, Any]:
    """``features.json`` of tensorflow-datasets."""
    schema = dataset.schema
    text = {"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}}
    features = {
        "sample_id": text,
        "labels": _sequence(_tensor(Feature("labels", "int64", ()), "none")),
        "label_names": _sequence(text),
        **dict.fromkeys(schema.texts, text),
        **{f.name: _array(f, dataset.encoding) for f in schema.features},
    }
    if dataset.encoding == "int64" and schema.label_prefix:
        multi_hot = Feature("multi_hot", "int64", (len(schema.vocabulary),))
        features[f"{schema.label_prefix}_labels"] = _sequence(text)
        features[f"{schema.label_prefix}_labels_multi_hot"] = _tensor(multi_hot, "none")
    return {
        "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
        "featuresDict": {"features": dict(sorted(features.items()))},
    }


def _array(feature: Feature, encoding: str) -> dict[str, Any]:
    itemsize = np.dtype(feature.dtype).itemsize
    if not feature.format and encoding == "zlib" and itemsize > 1:
        # It cannot join planes of bytes, and gives them as they are, the lowest first.
        return _tensor(Feature(feature.name, "uint8", (itemsize, *feature.shape)), "zlib")
    if not feature.format:
        return _tensor(feature, {"raw": "bytes", "zlib": "zlib", "int64": "none"}[encoding])
    image = {
        "shape": {"dimensions": ["-1" if size is None else str(size) for size in feature.shape]},
        "dtype": feature.dtype,
        # What it writes by; it reads every format that TensorFlow knows.
        "encodingFormat": "" if feature.format == "encoded" else feature.format,
    }
    return {"pythonClassName": "tensorflow_datasets.core.features.image_feature.Image", "image": image}


def _tensor(feature: Feature, encoding: str) -> dict[str, Any]:
    return {
        "pythonClassName": "tensorflow_datasets.core.features.tensor_feature.Tensor",
        "tensor": {
            "shape": {"dimensions": [str(size) for size in feature.shape]},
            "dtype": feature.dtype,
            "encoding": encoding,
        },
    }


def _sequence(feature: dict[str, Any]) -> dict[str, Any]:
    return {
        "pythonClassName": "tensorflow_datasets.core.features.sequence_feature.Sequence",
        "sequence": {"feature": feature, "length": "-1"},
    }
