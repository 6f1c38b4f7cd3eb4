"""Cells of a grid of longitude and latitude, as groups."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardtrail.errors import ConfigError

COORDINATES = ("longitude", "latitude")
"""The manifest's columns: decimal degrees, WGS 84, as text; empty where unknown."""

_STEPS = 10_000_000
"""Per degree: 1 cm on the ground. In whole steps, no cell's edge is a matter of rounding."""


def cells(ids: pa.Array, longitude: pa.Array, latitude: pa.Array, degrees: float) -> pa.Array:
    """The cell that each sample lies in.

    Args:
        ids: [sample] what samples are called in errors.
        longitude: [sample] decimal degrees as text, -180 to 180; 180 is -180. Empty or null: unknown.
        latitude: [sample] -90 to 90. A cell holds its southern and western edge, and the northernmost its northern.
        degrees: side of a cell; cells start at -180 and -90, and the last may be narrower.

    Returns:
        [sample] string: the cell's south-western corner, such as ``+47.000+013.000``; empty where either is unknown.

    Raises:
        ConfigError: a text that is no such number; the sample is named.
    """
    x, known_x = _steps(ids, longitude, "longitude", 180)
    y, known_y = _steps(ids, latitude, "latitude", 90)
    side = round(degrees * _STEPS)
    x[x == 360 * _STEPS] = 0
    column, row = x // side, np.minimum(y, 180 * _STEPS - 1) // side
    rows = -(-180 * _STEPS // side)
    cell, names = np.unique(np.where(known_x & known_y, column * rows + row, -1), return_inverse=True)
    corners = [_corner(number // rows * side, number % rows * side) if number >= 0 else "" for number in cell.tolist()]
    return pa.array(corners, pa.string()).take(pa.array(names))


def _corner(x: int, y: int) -> str:
    """``+47.000+013.000`` of steps from -180 and -90."""
    return f"{y / _STEPS - 90:+07.3f}{x / _STEPS - 180:+08.3f}"


def _steps(
    ids: pa.Array, texts: pa.Array, name: str, limit: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Steps from -limit degrees, 0 where unknown, and whether they are known."""
    texts = texts.fill_null("")
    known = pc.not_equal(texts, "").to_numpy(zero_copy_only=False)
    try:
        values = np.nan_to_num(pc.if_else(known, texts, "0").cast(pa.float64()).to_numpy(), nan=np.inf)
    except pa.ArrowInvalid:
        values = np.array([_number(text) if text else 0.0 for text in texts.to_pylist()])
    wrong = np.flatnonzero(np.abs(values) > limit)
    if len(wrong):
        row = int(wrong[0])
        raise ConfigError(
            f"shard.group: grid: sample {ids[row]} has the {name} {texts[row].as_py()!r}; expected decimal degrees "
            f"from -{limit} to {limit}, or nothing where it is unknown"
        )
    return np.round((values + limit) * _STEPS).astype(np.int64), known


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return np.inf
    return value if value == value else np.inf
