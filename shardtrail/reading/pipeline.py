"""Shards -> batches, with tf.data as the executor of an order that ``order.py`` planned.

for batch in open_dataset(Path("."), "train", batch_size=64, seed=0, epoch=3):
    model(batch.bands), batch.labels, batch.weight
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import imagecodecs
import numpy as np
import tensorflow as tf

from shardtrail.dataset import Dataset, load_dataset
from shardtrail.errors import ConfigError
from shardtrail.execution import cores
from shardtrail.folder import Folder
from shardtrail.reading.files import ShardFiles, shard_files
from shardtrail.reading.order import Lane, plan_epoch
from shardtrail.records.compression import compress
from shardtrail.records.example import encode_example
from shardtrail.samples import Feature

_BUFFER = 1 << 20


class Batch(NamedTuple):
    """Some samples; the last ones may be padding.

    Attributes:
        bands: name -> [n, height, width] (the feature's shape) in the stored dtype. Encoded images come decoded, as
            [n, height, width, channels]; without a declared size as ``tf.RaggedTensor``.
        labels: [n, classes] float32, 1 where the sample has the class.
        weight: [n] float32, 1 for a sample, 0 for padding.
        sample_id: [n] string; empty for padding.
    """

    bands: Mapping[str, tf.Tensor]
    labels: tf.Tensor
    weight: tf.Tensor
    sample_id: tf.Tensor


@dataclass(frozen=True, slots=True)
class Parser:
    """Parses serialised records of one dataset.

    Attributes:
        features: the arrays to decode; the rest of a record is skipped.
        classes: length of the vocabulary.
        encoding: ``raw``, ``zlib`` or ``int64``.
    """

    features: tuple[Feature, ...]
    classes: int
    encoding: str

    def __call__(self, records: tf.Tensor) -> Batch:
        """Parse serialised records of any shape [...] to a ``Batch`` of [..., *feature's shape].

        Raises:
            ConfigError: ``records`` are not [n] and images have no declared size.
        """
        if records.shape.rank != 1:
            self.require_fixed_shapes()
        spec: dict[str, Any] = {feature.name: self._stored(feature) for feature in self.features}
        spec["labels"] = tf.io.VarLenFeature(tf.int64)
        spec["sample_id"] = tf.io.FixedLenFeature([], tf.string)
        parsed = tf.io.parse_example(tf.reshape(records, [-1]), spec)
        batch = Batch(
            bands={feature.name: self._decode(feature, parsed[feature.name]) for feature in self.features},
            labels=self._multi_hot(parsed["labels"]),
            weight=tf.cast(parsed["sample_id"] != "", tf.float32),
            sample_id=parsed["sample_id"],
        )
        reshaped: Batch = tf.nest.map_structure(lambda values: _reshaped(values, records), batch)
        return reshaped

    def require_fixed_shapes(self) -> None:
        """Raises:
        ConfigError: an image has no declared size, so that a batch is no tensor.
        """
        for feature in self.features:
            _ = feature.fixed_shape

    def padding(self) -> bytes:
        """A record of zeros without a sample id, so of weight 0."""
        stored = {feature.name: self._padding(feature) for feature in self.features}
        return encode_example({**stored, "labels": np.empty(0, np.int64), "sample_id": [b""]})

    def _padding(self, feature: Feature) -> Any:
        # An image without a declared size is one pixel. TensorFlow decodes a PNG in place of a JPEG, too.
        zeros = np.zeros([1 if length is None else length for length in feature.shape], feature.dtype)
        if feature.format:
            return [imagecodecs.png_encode(zeros)]
        if self.encoding == "zlib":
            return [compress(zeros)]
        return [zeros.tobytes()] if self.encoding == "raw" else zeros.ravel()

    def _stored(self, feature: Feature) -> tf.io.FixedLenFeature:
        if feature.format or self.encoding in ("raw", "zlib"):
            return tf.io.FixedLenFeature([], tf.string)
        kind = tf.float32 if np.dtype(feature.dtype).kind == "f" else tf.int64
        return tf.io.FixedLenFeature([int(np.prod(feature.fixed_shape))], kind)

    def _decode(self, feature: Feature, stored: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        if feature.format:
            return _decode_images(feature, stored)
        if self.encoding == "zlib":
            return _inflate(feature, stored)
        dtype = tf.as_dtype(feature.dtype)
        if self.encoding == "raw":
            stored = tf.io.decode_raw(stored, dtype, little_endian=True)
        return tf.reshape(tf.cast(stored, dtype), [-1, *feature.shape])

    def _multi_hot(self, labels: tf.SparseTensor) -> tf.Tensor:
        # Input runs on the CPU, where gather refuses a label that no class has; one_hot would drop it unseen. (An
        # assertion would do too, but counts as stateful, and a deterministic tf.data then parses one by one.)
        hot = tf.gather(tf.eye(self.classes), labels.values)
        counts = tf.math.unsorted_segment_sum(hot, labels.indices[:, 0], labels.dense_shape[0])
        return tf.minimum(counts, 1.0)


def _reshaped(values: tf.Tensor | tf.RaggedTensor, records: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
    """Values [n, ...] of ``n`` records in the records' own shape. Ragged ones have it: see ``Parser``."""
    if isinstance(values, tf.RaggedTensor):
        return values
    return tf.reshape(values, tf.concat([tf.shape(records), tf.constant(values.shape[1:].as_list(), tf.int32)], 0))


def _inflate(feature: Feature, contents: tf.Tensor) -> tf.Tensor:
    """Arrays [n] as ``records.compression`` stores them -> [n, *shape]."""
    itemsize = np.dtype(feature.dtype).itemsize
    unsigned = tf.as_dtype(f"uint{8 * itemsize}")
    planes = tf.io.decode_raw(tf.io.decode_compressed(contents, "ZLIB"), tf.uint8)
    planes = tf.reshape(planes, [tf.size(contents), itemsize, *feature.fixed_shape])
    # Sums of planes: transposing them takes three times as long.
    bits = tf.add_n([tf.cast(planes[:, place], unsigned) * 256**place for place in range(itemsize)])
    return tf.bitcast(bits, tf.as_dtype(feature.dtype))


def _decode_images(feature: Feature, contents: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
    """Encoded images [n] -> [n, height, width, channels], ragged where their size is not declared."""
    fixed = None not in feature.shape
    dtype = tf.as_dtype(feature.dtype)

    def decode(content: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        # One operation for every format, as in tensorflow-datasets; of an animation the first frame.
        pixels = tf.io.decode_image(content, feature.shape[2], dtype, expand_animations=False)
        pixels = tf.ensure_shape(pixels, feature.shape)
        return pixels if fixed else tf.RaggedTensor.from_tensor(pixels, ragged_rank=1)

    spec = tf.TensorSpec(feature.shape, dtype) if fixed else tf.RaggedTensorSpec(feature.shape, dtype, ragged_rank=1)
    return tf.map_fn(decode, contents, fn_output_signature=spec)


def make_parser(dataset: Dataset, bands: Sequence[str] | None = None) -> Parser:
    """A parser for some bands of a dataset (all, when none are named).

    Raises:
        ConfigError: a band is not in the dataset.
    """
    schema = dataset.schema
    missing = sorted(set(bands or ()) - {feature.name for feature in schema.features})
    if missing:
        held = ", ".join(feature.name for feature in schema.features)
        raise ConfigError(
            f"the model asks for {', '.join(missing)}, which data/dataset.json does not hold (it holds {held}); "
            "change train.model, or build a dataset with these bands"
        )
    features = tuple(f for f in schema.features if bands is None or f.name in bands)
    return Parser(features, len(schema.vocabulary), dataset.encoding)


def lane_records(files: ShardFiles, lane: Lane, start: int = 0) -> tf.data.Dataset:
    """Serialised records of one lane, from record ``start`` of it on."""

    begin, skip = lane.locate(start)

    def window(number: np.int64) -> tuple[Any, ...]:
        found = lane.read_window(int(number), skip if number == begin else 0)
        places = list(zip(found.shard.tolist(), found.first.tolist(), strict=True))
        paths = np.array([files.path(shard) for shard, _ in places], object)
        return paths, np.array([files.offset(*place) for place in places], np.int64), found.count, found.order

    def plan(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
        # Declared stateless, as it is: tf.data would otherwise read nothing ahead when it must be deterministic.
        kinds = [tf.string, tf.int64, tf.int64, tf.int64]
        planned = tf.numpy_function(window, [number], kinds, stateful=False)
        return tuple(tf.ensure_shape(values, [None]) for values in planned)

    def read(paths: tf.Tensor, offsets: tf.Tensor, counts: tf.Tensor, order: tf.Tensor) -> tf.data.Dataset:
        pieces = tf.data.Dataset.from_tensor_slices((paths, offsets, counts))
        # A whole piece at a time, so that pieces come end to end although they are read at once.
        records = pieces.interleave(_piece, lane.window, block_length=longest, num_parallel_calls=2, deterministic=True)
        return records.batch(longest * lane.window).map(lambda window: tf.gather(window, order)).unbatch()

    longest = int(lane.count.max(initial=1))
    return tf.data.Dataset.range(begin, lane.windows).map(plan).flat_map(read)


def global_batches(
    files: ShardFiles,
    lanes: Sequence[Lane],
    parser: Parser,
    *,
    micro_batch: int,
    steps: int,
    start: int = 0,
    replicas: int = 1,
) -> tf.data.Dataset:
    """Elements for consecutive replicas: each a ``Batch`` of [lanes / replicas, micro_batch, ...].

    Args:
        files: the shards that were planned.
        lanes: all lanes of an epoch, or those of one worker.
        parser: what to read of a record.
        micro_batch: samples of one micro-batch.
        steps: global batches of the epoch.
        start: step to begin with.
        replicas: how many share the lanes.

    Raises:
        ConfigError: images have no declared size, so they are no tensors of one shape.
    """
    parser.require_fixed_shapes()
    parts = [
        _padded(lane_records(files, lane, start * micro_batch), parser, micro_batch, steps - start) for lane in lanes
    ]
    shape = [replicas, len(lanes) // replicas, micro_batch]
    shares = tf.data.Dataset.zip(*parts).map(lambda *rows: tf.reshape(tf.stack(rows), shape)).unbatch()
    return _parsed(shares, parser, ahead=2 * replicas)


def plan_order_batches(files: ShardFiles, parser: Parser, size: int) -> tf.data.Dataset:
    """Every record once, in plan order, as ``Batch`` of ``size``, padded at the end."""
    records = tf.data.TFRecordDataset([files.path(i) for i in range(len(files.shards))], buffer_size=_BUFFER)
    return _parsed(_padded(records, parser, size, -(-sum(files.records) // size)), parser)


def open_dataset(
    root: Path,
    split: str = "train",
    *,
    batch_size: int = 32,
    seed: int | None = 0,
    epoch: int = 0,
    start: int = 0,
    bands: Sequence[str] | None = None,
) -> tf.data.Dataset:
    """One epoch of a split of a working folder, as ``Batch`` of ``batch_size``, padded at the end.

    Args:
        root: a folder with ``data/dataset.json`` and ``data/shards``.
        split: ``train``, ``validation`` or ``test``.
        batch_size: samples of a batch.
        seed: of the order; None reads in plan order.
        epoch: number of the epoch; each has another order.
        start: batch to begin with.
        bands: names of the arrays to read; None reads all.

    Raises:
        ConfigError: no dataset, no such split or band.
        ShardError: a shard is missing or has another size than the dataset says.
    """
    folder = Folder(root.resolve())
    dataset = load_dataset(folder.dataset)
    if split not in dataset.splits:
        raise ConfigError(f"{folder.dataset} has no split {split!r}; it has {', '.join(dataset.splits) or 'none'}")
    files = shard_files(dataset, folder.shards, [split])[split]
    parser = make_parser(dataset, bands)
    if seed is None:
        return plan_order_batches(files, parser, batch_size).skip(start)
    (lane,) = plan_epoch(files.records, seed=seed, epoch=epoch, lanes=1)
    batches = -(-len(lane) // batch_size) - start
    return _parsed(_padded(lane_records(files, lane, start * batch_size), parser, batch_size, batches), parser)


def _piece(path: tf.Tensor, offset: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
    """``count`` records of a shard from a byte on."""
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path], compression_type="", buffer_size=_BUFFER, byte_offsets=[offset]
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string)).take(count)


def _padded(records: tf.data.Dataset, parser: Parser, size: int, batches: int) -> tf.data.Dataset:
    """So many batches of exactly ``size`` serialised records, filled up with padding."""
    padding = tf.data.Dataset.from_tensors(parser.padding()).repeat()
    return records.concatenate(padding).batch(size, drop_remainder=True).take(batches)


def _parsed(batches: tf.data.Dataset, parser: Parser, ahead: int = 2) -> tf.data.Dataset:
    """Parse, a few batches ahead, on the cores this process may use rather than on all that the host has."""
    parsed = batches.map(parser, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(ahead)
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = cores()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return parsed.with_options(options)


__all__ = [
    "Batch",
    "Parser",
    "global_batches",
    "make_parser",
    "open_dataset",
    "plan_order_batches",
]
