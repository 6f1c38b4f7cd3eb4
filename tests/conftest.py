from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from working import let_settle

from shardtrail.sample_data import SampleData, make_sample_data

settings.register_profile("shardtrail", deadline=None)
settings.load_profile("shardtrail")


@pytest.fixture(scope="session")
def sample_data(tmp_path_factory: pytest.TempPathFactory) -> SampleData:
    """30 pairs in BigEarthNet v1's format over 14 tiles, two of them broken; read-only."""
    made = make_sample_data(tmp_path_factory.mktemp("archive"), samples=30, broken=2, workers=1)
    let_settle(made.root)
    return made


@pytest.fixture(scope="session")
def sample_archive(sample_data: SampleData) -> Path:
    """The folder of ``sample_data``."""
    return sample_data.root
