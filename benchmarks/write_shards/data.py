"""The same patches for every writer: a made-up archive in the true v1 layout."""

from __future__ import annotations

from pathlib import Path

from shardtrail.sample_data import make_sample_data

S2_BANDS = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12")
S1_BANDS = ("VV", "VH")


def make(root: Path, patches: int) -> None:
    """Write ``patches`` pairs, none of them broken."""
    make_sample_data(root, samples=patches, seed=1, broken=0)
