"""Reading a sharded dataset: the order of an epoch, and tf.data pipelines that follow it."""

from shardtrail.reading.pipeline import Batch, open_dataset

__all__ = ["Batch", "open_dataset"]
