"""Layers of our own. Importing ``shardtrail.models`` registers them, which is all that loading a model needs."""

from __future__ import annotations

from typing import Any

import keras


@keras.saving.register_keras_serializable(package="shardtrail")
class Standardize(keras.layers.Layer):  # type: ignore[misc]
    """``(x - mean) / std`` of one band, as float32 with a channel axis.

    Args:
        mean: of the band over the train split, in stored units.
        std: likewise; a band that never varies (0) is only centred.

    Call with [n, height, width] in the stored dtype; returns [n, height, width, 1] float32.
    """

    def __init__(self, mean: float, std: float, **kwargs: Any) -> None:
        # Stored integers are cast here: 16 bits of precision would be lost in a half-precision layer.
        super().__init__(dtype="float32", autocast=False, **{k: v for k, v in kwargs.items() if k != "dtype"})
        self.mean = mean
        self.std = std

    def call(self, stored: Any) -> Any:
        values = keras.ops.cast(stored, "float32")
        return keras.ops.expand_dims((values - self.mean) / (self.std or 1.0), -1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "mean": self.mean, "std": self.std}
