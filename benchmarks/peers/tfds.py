"""tensorflow-datasets: a GeneratorBasedBuilder; bands by ``encoding="bytes"``, since its default is lists of int64.

For more than one core its documentation offers Apache Beam, which is another program to run, and
``tfds build --num-processes``, which builds several configurations side by side. So each process builds one
configuration of half the samples; they stay two, since there is no step that merges them.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf  # noqa: F401  tensorflow-datasets would import it later, on the clock
import tensorflow_datasets as tfds

from benchmarks.peers.sample import Read, Row, Sample


def write(rows: Iterable[Row], read: Read, out: Path) -> int:
    """One configuration, named after the process's folder."""
    builder = Samples(list(rows), read, config=tfds.core.BuilderConfig(name=f"part{out.name}"), data_dir=out)
    builder.download_and_prepare()
    count: int = builder.info.splits["train"].num_examples
    return count


class Samples(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]  # the package is untyped
    """Any samples; what they hold is taken from the first one."""

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, rows: Sequence[Row], read: Read, **settings: Any) -> None:
        self._rows = rows
        self._read = read
        super().__init__(**settings)

    def _info(self) -> tfds.core.DatasetInfo:
        first = self._read(self._rows[0])
        features: dict[str, Any] = {
            "sample_id": tfds.features.Text(),
            "labels": tfds.features.Sequence(tfds.features.Text()),
        }
        for name, array in first.arrays.items():
            features[name] = tfds.features.Tensor(shape=array.shape, dtype=array.dtype, encoding="bytes")
        for name in first.images:
            features[name] = tfds.features.Image(encoding_format="jpeg")
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for row in self._rows:
            sample = self._read(row)
            yield sample.id, _example(sample)


def _example(sample: Sample) -> dict[str, Any]:
    images = {name: io.BytesIO(image) for name, image in sample.images.items()}
    return {"sample_id": sample.id, "labels": list(sample.labels), **sample.arrays, **images}
