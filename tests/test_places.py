"""Where patches lie: UTM to degrees against PROJ, and Sentinel-2's tiles against their real corners."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rasterio.warp import transform

from shardtrail.layouts.bigearthnet_patch import S2_NAME, place_of_tile
from shardtrail.layouts.utm import tile_corner, to_degrees

CORNERS = [
    ("33UUP", 32633, 300000, 5400000),
    ("29UPU", 32629, 600000, 5900040),
    ("34TEQ", 32634, 499980, 5000040),
    ("29SND", 32629, 499980, 4400040),
    ("35VPK", 32635, 600000, 7000020),
    ("35VLC", 32635, 300000, 6300000),
    ("35WPN", 32635, 600000, 7300020),
    ("33UVP", 32633, 399960, 5400000),
]
"""Of real tiles: as their GeoTIFFs and label files have them."""


@given(
    st.integers(1, 60),
    st.booleans(),
    st.floats(100_000, 900_000),
    st.floats(0, 9_300_000),
)
def test_utm_to_degrees_agrees_with_proj(zone, south, easting, northing):
    """Anywhere in any zone, both hemispheres: within 1e-9 degrees (0.1 mm) of what GDAL and PROJ say."""
    epsg = 32700 + zone if south else 32600 + zone
    northing = 10_000_000 - northing if south else northing
    longitude, latitude = to_degrees(epsg, easting, northing)
    (x,), (y,) = transform(f"EPSG:{epsg}", "EPSG:4326", [easting], [northing])
    assert latitude == pytest.approx(y, abs=1e-9)
    # Next to a pole a degree of longitude is short; across the antimeridian -180 and 180 are one.
    assert (longitude - x + 180) % 360 - 180 == pytest.approx(0, abs=1e-8)
    assert -180 <= longitude < 180


@pytest.mark.parametrize(("tile", "epsg", "ulx", "uly"), CORNERS)
def test_tiles_start_where_they_really_do(tile, epsg, ulx, uly):
    """A tile's name gives zone and upper left corner to the metre."""
    assert tile_corner(tile) == (epsg, ulx, uly)


@pytest.mark.parametrize(
    ("tile", "longitude", "latitude"),
    [
        ("21HUB", -59.2, -34.3),
        ("31NAA", -0.6, 0.9),
        ("31MAV", -0.6, 0.0),
        ("60XWR", 177.0, 82.0),
        ("01CCV", 177.2, -72),
    ],
)
def test_tiles_anywhere_on_earth(tile, longitude, latitude):
    """Southern zones, both sides of the equator and the antimeridian."""
    assert to_degrees(*tile_corner(tile)) == pytest.approx((longitude, latitude), abs=0.06)


def test_what_is_no_place_is_refused():
    """Zones that UTM has not, squares that the grid has not, eastings far out of a zone."""
    for epsg in (32600, 32661, 32700, 32761, 4326):
        with pytest.raises(ValueError, match=f"EPSG:{epsg} is no UTM zone"):
            to_degrees(epsg, 500_000, 0)
    with pytest.raises(ValueError, match="far out of zone 33"):
        to_degrees(32633, 5_000_000, 0)
    for tile in ("33UAP", "33IUP", "33UUZ", "61UUP", "00UUP"):
        with pytest.raises(ValueError, match="no square"):
            tile_corner(tile)
    match = S2_NAME.fullmatch("S2A_MSIL2A_20170613T101031_N9999_R022_T99UUP_75_43")
    assert place_of_tile(match) == {"longitude": "", "latitude": ""}
