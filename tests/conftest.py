from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from patches import let_settle, write_s1, write_s2

pytest_plugins = ["builds"]

settings.register_profile("shardtrail", deadline=None)
settings.load_profile("shardtrail")


@pytest.fixture(scope="session")
def sample_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine pairs in BigEarthNet v1's true format over three regions, two more patches broken; read-only.

    Patch 9 lacks its band B11, patch 10 its Sentinel-1 partner.
    """
    root = tmp_path_factory.mktemp("archive")
    for number in range(11):
        folder = write_s2(root, number)
        if number == 9:
            (folder / f"{folder.name}_B11.tif").unlink()
        if number != 10:
            write_s1(root, number)
    let_settle(root)
    return root
