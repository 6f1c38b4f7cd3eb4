"""Where on Earth a patch lies: from UTM to longitude and latitude, and the corners of Sentinel-2's tiles.

longitude, latitude = to_degrees(32633, 404_380, 5_295_620)
epsg, ulx, uly = tile_corner("33UUP")
"""

from __future__ import annotations

import math
from typing import Final

_A: Final = 6_378_137.0
_F: Final = 1 / 298.257223563
"""WGS 84: semi-major axis in metres, flattening."""

_SCALE: Final = 0.9996
_EASTING: Final = 500_000
_NORTHING: Final = 10_000_000
"""UTM: scale on the central meridian, false easting, false northing of the southern zones."""

_N: Final = _F / (2 - _F)
_RADIUS: Final = _A / (1 + _N) * (1 + _N**2 / 4 + _N**4 / 64)
_BETA: Final = (
    _N / 2 - 2 / 3 * _N**2 + 37 / 96 * _N**3 - _N**4 / 360,
    _N**2 / 48 + _N**3 / 15 - 437 / 1440 * _N**4,
    17 / 480 * _N**3 - 37 / 840 * _N**4,
    4397 / 161280 * _N**4,
)
_DELTA: Final = (
    2 * _N - 2 / 3 * _N**2 - 2 * _N**3 + 116 / 45 * _N**4,
    7 / 3 * _N**2 - 8 / 5 * _N**3 - 227 / 45 * _N**4,
    56 / 15 * _N**3 - 136 / 35 * _N**4,
    4279 / 630 * _N**4,
)

_COLUMNS: Final = ("STUVWXYZ", "ABCDEFGH", "JKLMNPQR")
"""Letters of the 100 km squares from 100 km east on; the zone modulo 3 says which."""

_ROWS: Final = "ABCDEFGHJKLMNPQRSTUV"
"""Letters of the 100 km squares from the equator on, repeated every 2,000 km; in even zones they start at F."""

_BANDS: Final = "CDEFGHJKLMNPQRSTUVWX"
"""Bands of 8 degrees from 80 degrees south on."""

_SQUARE: Final = 100_000
_PIXEL: Final = 60
"""Sentinel-2's coarsest pixel in metres: tiles start at a multiple of it."""


def to_degrees(epsg: int, easting: float, northing: float) -> tuple[float, float]:
    """Longitude and latitude of a place in a UTM zone.

    Args:
        epsg: 32601 to 32660 for the northern zones, 32701 to 32760 for the southern.
        easting: metres, false easting included; 0 to 1,000 km, which is the zone and some of its neighbours.
        northing: metres, false northing included.

    Returns:
        Decimal degrees, WGS 84, longitude from -180 up to 180; good to a millimetre.

    Raises:
        ValueError: no such zone, or a place far out of it.

    Source:
        L. Krueger, "Konforme Abbildung des Erdellipsoids in der Ebene" (1912), as series to the fourth order by
        C. F. F. Karney, "Transverse Mercator with an accuracy of a few nanometers" (2011).
    """
    south, zone = divmod(epsg - 32600, 100)
    if south not in (0, 1) or not 1 <= zone <= 60:
        raise ValueError(f"EPSG:{epsg} is no UTM zone of WGS 84")
    if not 0 <= easting <= 2 * _EASTING:
        raise ValueError(f"an easting of {easting} m lies far out of zone {zone}")
    xi = (northing - south * _NORTHING) / (_SCALE * _RADIUS)
    eta = (easting - _EASTING) / (_SCALE * _RADIUS)
    xi_, eta_ = xi, eta
    for order, beta in enumerate(_BETA, 1):
        xi_ -= beta * math.sin(2 * order * xi) * math.cosh(2 * order * eta)
        eta_ -= beta * math.cos(2 * order * xi) * math.sinh(2 * order * eta)
    conformal = math.asin(math.sin(xi_) / math.cosh(eta_))
    latitude = conformal + sum(delta * math.sin(2 * order * conformal) for order, delta in enumerate(_DELTA, 1))
    longitude = 6 * zone - 183 + math.degrees(math.atan2(math.sinh(eta_), math.cos(xi_)))
    return (longitude + 180) % 360 - 180, math.degrees(latitude)


def tile_corner(tile: str) -> tuple[int, int, int]:
    """The upper left corner of a Sentinel-2 tile, such as ``33UUP``.

    Returns:
        EPSG code of its zone, and easting and northing in metres.

    Raises:
        ValueError: there is no such square.

    Source:
        The Military Grid Reference System (NGA.SIG.0012, 2014). Tiles are its 100 km squares, started at the multiple
        of 60 m that lies outside.
    """
    zone, band, column, row = int(tile[:2]), tile[2], tile[3], tile[4]
    columns = _COLUMNS[zone % 3]
    if not 1 <= zone <= 60 or band not in _BANDS or column not in columns or row not in _ROWS:
        raise ValueError(f"{tile} is no square of the Military Grid Reference System")
    west = (columns.index(column) + 1) * _SQUARE
    # Which of the rows of this letter: the one nearest to the middle of the band, since a band is narrower than a turn.
    middle = (-80 + 8 * _BANDS.index(band) + 4) * 10_000_000 / 90 + _SQUARE
    south_edge = (_ROWS.index(row) - (0 if zone % 2 else 5)) % 20 * _SQUARE
    south_edge += round((middle - south_edge) / (20 * _SQUARE)) * 20 * _SQUARE
    north = south_edge + _SQUARE
    south = band < "N"
    northing = -(-north // _PIXEL) * _PIXEL
    if south:
        northing = -(-(north + _NORTHING) // _PIXEL) * _PIXEL
    return 32600 + 100 * south + zone, west // _PIXEL * _PIXEL, northing
