"""Models take what the shards hold, and their files depend on the weights alone."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from tiny_dataset import SCHEMA, arrays

from shardtrail.errors import ConfigError
from shardtrail.models import build_model
from shardtrail.samples import Feature, Schema
from shardtrail.training.export import export_model, model_bytes

BANDS = {
    "B02": {"mean": 1500.0, "std": 500.0},
    "B05": {"mean": 1500.0, "std": 0.0},
    "VV": {"mean": -5.0, "std": 3.0},
}


def seeded_model() -> keras.Model:
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    return build_model("resnet_small", SCHEMA, BANDS)


def stacked(samples: range) -> dict[str, np.ndarray]:
    values = [arrays(sample)[0] for sample in samples]
    return {feature.name: np.stack([value[feature.name] for value in values]) for feature in SCHEMA.features}


def test_resnet_small_takes_what_the_shards_hold():
    """Bands go in as stored, each at its own resolution; one finite logit a class comes out, for any batch."""
    model = seeded_model()

    assert {name: (t.dtype, t.shape[1:]) for name, t in model.input.items()} == {
        feature.name: (feature.dtype, feature.shape) for feature in SCHEMA.features
    }
    logits = model(stacked(range(5))).numpy()
    assert logits.shape == (5, 4)
    assert logits.dtype == np.float32
    assert np.isfinite(logits).all()


def test_a_sample_is_judged_alone():
    """A sample's logits do not depend on its neighbours in the batch, so a batch may be computed in parts."""
    model = seeded_model()

    whole = model(stacked(range(6))).numpy()
    np.testing.assert_allclose(whole[2:4], model(stacked(range(2, 4))).numpy(), rtol=1e-4, atol=1e-5)


def test_bands_are_standardised_with_the_statistics():
    """Shifting and scaling a band together with its statistics changes nothing."""
    inputs = stacked(range(3))
    keras.utils.set_random_seed(7)
    scaled = build_model("resnet_small", SCHEMA, BANDS | {"VV": {"mean": -50.0, "std": 30.0}})

    expected = seeded_model()(inputs).numpy()
    np.testing.assert_allclose(scaled(inputs | {"VV": inputs["VV"] * 10}).numpy(), expected, rtol=1e-3, atol=1e-4)


def test_size_on_bigearthnet_bands():
    """On BigEarthNet's 14 bands the model has some 0.3 million weights."""
    shapes = {"B02": 120, "B05": 60, "B09": 20, "VV": 120}
    schema = Schema(tuple(Feature(n, "float32", (s, s)) for n, s in shapes.items()), (), tuple("abc"))
    model = build_model("resnet_small", schema, {name: {"mean": 0.0, "std": 1.0} for name in shapes})

    assert 200_000 < model.count_params() < 350_000


def model_of_our_own(schema, bands):
    """Takes one band and is linear."""
    band = keras.Input((6, 6), dtype="uint16", name="B05")
    flat = keras.layers.Flatten()(keras.layers.Rescaling(1 / 1000)(band))
    return keras.Model({"B05": band}, keras.layers.Dense(len(schema.vocabulary))(flat))


def model_with_another_band(schema, bands):
    band = keras.Input((6, 6), name="B11")
    return keras.Model({"B11": band}, keras.layers.Dense(4)(keras.layers.Flatten()(band)))


def model_of_wrong_type(schema, bands):
    band = keras.Input((6, 6), dtype="float32", name="B05")
    return keras.Model({"B05": band}, keras.layers.Dense(4)(keras.layers.Flatten()(band)))


def model_with_one_output(schema, bands):
    band = keras.Input((6, 6), dtype="uint16", name="B05")
    return keras.Model({"B05": band}, keras.layers.Dense(1)(keras.layers.Flatten()(band)))


def no_model(schema, bands):
    return list(bands)


def test_a_model_of_ones_own():
    """``package.module:name`` names a function of the user's own, which may take some of the bands."""
    assert list(build_model("test_models:model_of_our_own", SCHEMA, BANDS).input) == ["B05"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet_large", "no model is called 'resnet_large'; known: resnet_small"),
        ("test_models:absent", "cannot be imported"),
        ("nowhere.at_all:model", "cannot be imported"),
        ("test_models:model_with_another_band", r"asks for B11, which data/dataset\.json does not hold"),
        ("test_models:model_of_wrong_type", r"takes B05 as float32 \[6, 6\].*holds it as uint16"),
        ("test_models:model_with_one_output", r"gives \[None, 1\]; expected logits of shape \[None, 4\]"),
        ("test_models:no_model", "must return a keras.Model"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(name, message):
    """What does not fit the dataset is named before training, by parameter, band and expectation."""
    with pytest.raises(ConfigError, match=message):
        build_model(name, SCHEMA, BANDS)


LOADER = """
import hashlib, sys
import keras, numpy as np
import shardtrail.models
sys.path.insert(0, sys.argv[2])
from test_models import stacked

model = keras.saving.load_model(sys.argv[1], safe_mode=True)
print(np.asarray(model(stacked(range(4)))).tobytes().hex())

from test_models import model_bytes, model_of_our_own, seeded_model, SCHEMA, BANDS
model_of_our_own(SCHEMA, BANDS)  # other layers were made before in this process
print(hashlib.sha256(model_bytes(seeded_model())).hexdigest())
"""


def test_the_file_is_a_function_of_the_weights_and_loads_anywhere(tmp_path):
    """Another process, seconds later, writes the same bytes; and it loads the file with our layers alone."""
    model = seeded_model()
    export_model(model, tmp_path, {"name": "m"})
    content = (tmp_path / "model.keras").read_bytes()
    time.sleep(2.1)  # a zip's times have a grain of two seconds

    tests = Path(__file__).parent
    script = textwrap.dedent(LOADER)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "model.keras"), str(tests)],
        capture_output=True,
        text=True,
        cwd=tests.parent,
    )

    assert done.returncode == 0, done.stderr
    outputs, digest = done.stdout.split()
    assert outputs == model(stacked(range(4))).numpy().tobytes().hex()
    assert digest == hashlib.sha256(content).hexdigest()
    assert model_bytes(model) == content
    assert digest in (tmp_path / "model.json").read_text()


def test_other_weights_give_another_file():
    """One changed weight changes the file."""
    model = seeded_model()
    before = model_bytes(model)
    model.trainable_variables[-1].assign_add([0, 0, 1e-3, 0])

    assert model_bytes(model) != before
