"""Models by name. Importing this package registers the layers that stored models are made of.

keras.saving.load_model("models/shardtrail/model.keras")
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

import keras

from shardtrail.errors import ConfigError
from shardtrail.models.layers import Standardize
from shardtrail.models.resnet import resnet_small
from shardtrail.samples import Schema

ModelFunction = Callable[[Schema, Mapping[str, Mapping[str, float]]], keras.Model]

_KNOWN: Mapping[str, ModelFunction] = {"resnet_small": resnet_small}


def get_model_function(name: str) -> ModelFunction:
    """The function that ``train.model`` names.

    Raises:
        ConfigError: no such model, or the user's function cannot be imported.
    """
    if name in _KNOWN:
        return _KNOWN[name]
    module, _, function = name.partition(":")
    if not function:
        raise ConfigError(
            f"train.model: no model is called {name!r}; known: {', '.join(_KNOWN)}, or your own as package.module:name"
        )
    try:
        found: ModelFunction = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"train.model: {name} cannot be imported: {error}") from error
    return found


def build_model(name: str, schema: Schema, bands: Mapping[str, Mapping[str, float]]) -> keras.Model:
    """Build the model that ``train.model`` names and check that it takes what the records hold.

    Args:
        name: ``resnet_small``, or ``package.module:name``.
        schema: of the dataset.
        bands: its statistics.

    Raises:
        ConfigError: inputs are not bands of the dataset in stored dtype and shape, or the output
            is not one logit a class.
    """
    model = get_model_function(name)(schema, bands)
    if not isinstance(model, keras.Model) or not isinstance(model.input, dict):
        raise ConfigError(f"train.model: {name} must return a keras.Model whose inputs are a dict by band name")
    features = {feature.name: feature for feature in schema.features}
    missing = sorted(set(model.input) - set(features))
    if missing:
        raise ConfigError(
            f"train.model: {name} asks for {', '.join(missing)}, which data/dataset.json does not hold "
            f"(it holds {', '.join(features)}); use another model, or build a dataset with these bands"
        )
    for band, tensor in model.input.items():
        feature = features[band]
        if (tensor.dtype, tuple(tensor.shape[1:])) != (feature.dtype, feature.shape):
            raise ConfigError(
                f"train.model: {name} takes {band} as {tensor.dtype} {list(tensor.shape[1:])}, "
                f"data/dataset.json holds it as {feature.dtype} {list(feature.shape)}"
            )
    if tuple(model.output.shape) != (None, len(schema.vocabulary)):
        raise ConfigError(
            f"train.model: {name} gives {list(model.output.shape)}; expected logits of shape "
            f"[None, {len(schema.vocabulary)}], one a class of data/dataset.json"
        )
    return model


__all__ = ["ModelFunction", "Standardize", "build_model", "get_model_function", "resnet_small"]
