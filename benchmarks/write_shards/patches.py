"""BigEarthNet v1 pairs as the peers read them: the list of their files, and their bands decoded by imagecodecs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.sample import Row, Sample

S2_BANDS = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12")
S1_BANDS = ("VV", "VH")


def pairs(raw: Path) -> Iterator[Row]:
    """Every Sentinel-1 patch with its Sentinel-2 partner: 14 bands and two label files."""
    for s1 in sorted((raw / "BigEarthNet-S1-v1.0").iterdir()):
        labels = s1 / f"{s1.name}_labels_metadata.json"
        described = json.loads(labels.read_text())
        s2 = raw / "BigEarthNet-v1.0" / described["corresponding_s2_patch"]
        files = {band: str(s2 / f"{s2.name}_{band}.tif") for band in S2_BANDS}
        files |= {band: str(s1 / f"{s1.name}_{band}.tif") for band in S1_BANDS}
        files |= {"metadata": str(s2 / f"{s2.name}_labels_metadata.json"), "metadata_s1": str(labels)}
        yield Row(s1.name, described["labels"], files)


def read(row: Row) -> Sample:
    """Decode the 14 bands."""
    from imagecodecs import tiff_decode

    bands = (*S2_BANDS, *S1_BANDS)
    return Sample(row.id, row.labels, arrays={band: tiff_decode(Path(row.files[band]).read_bytes()) for band in bands})
