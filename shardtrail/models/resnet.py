"""A small residual network over all bands at once.

Source: He et al., Identity Mappings in Deep Residual Networks (2016), with group normalisation (Wu and He, 2018),
which does not look across the batch, so that a batch may be computed in parts on any number of devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from shardtrail.models.layers import Standardize
from shardtrail.samples import Schema

_WIDTHS = (32, 64, 128)
_GROUPS = 8
_LAYOUT = "channels_last"


def resnet_small(schema: Schema, bands: Mapping[str, Mapping[str, float]]) -> keras.Model:
    """About 0.3 million weights; one image of 120 x 120 pixels costs some 0.2 GFLOP.

    Args:
        schema: gives the inputs, the grid (that of the largest band) and the classes.
        bands: statistics of the train split; ``mean`` and ``std`` of each band in stored units.

    Returns:
        A model from {band: [n, height, width] in the stored dtype, at native resolution} to
        logits [n, classes] float32.
    """
    height, width = max(feature.fixed_shape[:2] for feature in schema.features)
    inputs, channels = {}, []
    for feature in schema.features:
        name = feature.name
        inputs[name] = keras.Input(feature.shape, dtype=feature.dtype, name=name)
        x = Standardize(bands[name]["mean"], bands[name]["std"], name=f"{name}_standardized")(inputs[name])
        if feature.shape != (height, width):
            resample = keras.layers.Resizing(height, width, "bilinear", data_format=_LAYOUT, name=f"{name}_resampled")
            x = resample(x)
        channels.append(x)
    x = keras.layers.Concatenate(name="bands")(channels) if len(channels) > 1 else channels[0]

    x = _conv(x, _WIDTHS[0], 3, strides=2, name="stem_1")
    x = keras.layers.Activation("relu", name="stem_1_relu")(x)
    x = _conv(x, _WIDTHS[0], 3, strides=2, name="stem_2")
    for stage, filters in enumerate(_WIDTHS, start=1):
        x = _residual(x, filters, strides=1 if stage == 1 else 2, name=f"stage_{stage}")
    # Not normalised once more: that would level out how bright the bands of a sample are.
    x = keras.layers.Activation("relu", name="head_relu")(x)
    x = keras.layers.GlobalAveragePooling2D(data_format=_LAYOUT, name="pool")(x)
    logits = keras.layers.Dense(len(schema.vocabulary), dtype="float32", name="logits")(x)
    return keras.Model(inputs, logits, name="resnet_small")


def _residual(x: Any, filters: int, strides: int, name: str) -> Any:
    """Normalise, activate, convolve, twice; added to the input, which is projected where its shape changes."""
    y = _normalized(x, f"{name}_1")
    shortcut = x if strides == 1 else _conv(y, filters, 1, strides=strides, name=f"{name}_shortcut")
    y = _conv(y, filters, 3, strides=strides, name=f"{name}_conv_1")
    y = _conv(_normalized(y, f"{name}_2"), filters, 3, strides=1, name=f"{name}_conv_2")
    return keras.layers.Add(name=f"{name}_sum")([shortcut, y])


def _normalized(x: Any, name: str) -> Any:
    x = keras.layers.GroupNormalization(_GROUPS, axis=-1, name=f"{name}_norm")(x)
    return keras.layers.Activation("relu", name=f"{name}_relu")(x)


def _conv(x: Any, filters: int, size: int, *, strides: int, name: str) -> Any:
    convolution = keras.layers.Conv2D(
        filters, size, strides, "same", data_format=_LAYOUT, use_bias=False, kernel_initializer="he_normal", name=name
    )
    return convolution(x)
