"""The model as files: the same weights give the same bytes, whenever and wherever they are written."""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from shardtrail.files import to_json, write_atomic

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment a zip can hold


def export_model(model: keras.Model, folder: Path, description: Mapping[str, Any]) -> None:
    """Write ``model.keras`` and ``model.json`` (the description and the model file's sha256) into ``folder``."""
    content = model_bytes(model)
    write_atomic(folder / "model.keras", content)
    digest = hashlib.sha256(content).hexdigest()
    write_atomic(folder / "model.json", to_json({"format": 1, "sha256": digest, **description}))


def model_bytes(model: keras.Model) -> bytes:
    """A model in Keras' own format (``.keras``), without the moment and the process it was written in."""
    with tempfile.TemporaryDirectory(prefix="shardtrail-") as scratch:
        path = Path(scratch) / "model.keras"
        model.save(path)
        with zipfile.ZipFile(path) as written:
            entries = {name: written.read(name) for name in sorted(written.namelist())}
    metadata = json.loads(entries["metadata.json"])
    entries["metadata.json"] = json.dumps({**metadata, "date_saved": "1980-01-01@00:00:00"}).encode()
    entries["config.json"] = json.dumps(_renumber(json.loads(entries["config.json"]), {})).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    return buffer.getvalue()


def _renumber(value: Any, numbers: dict[int, int]) -> Any:
    """Objects that several layers share are marked with their place in memory: count them instead."""
    if isinstance(value, dict):
        return {
            key: numbers.setdefault(inner, len(numbers)) if key == "shared_object_id" else _renumber(inner, numbers)
            for key, inner in value.items()
        }
    return [_renumber(inner, numbers) for inner in value] if isinstance(value, list) else value
