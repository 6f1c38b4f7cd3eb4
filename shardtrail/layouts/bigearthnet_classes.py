"""The two nomenclatures of BigEarthNet, in the index order of its authors' ``label_indices.json``.

An index means nothing without its vocabulary, and other libraries sort the names alphabetically:
labels are mapped by name only.
"""

from __future__ import annotations

from typing import Final

_TO_19: Final[tuple[tuple[str, str], ...]] = (
    ("Continuous urban fabric", "Urban fabric"),
    ("Discontinuous urban fabric", "Urban fabric"),
    ("Industrial or commercial units", "Industrial or commercial units"),
    ("Road and rail networks and associated land", ""),
    ("Port areas", ""),
    ("Airports", ""),
    ("Mineral extraction sites", ""),
    ("Dump sites", ""),
    ("Construction sites", ""),
    ("Green urban areas", ""),
    ("Sport and leisure facilities", ""),
    ("Non-irrigated arable land", "Arable land"),
    ("Permanently irrigated land", "Arable land"),
    ("Rice fields", "Arable land"),
    ("Vineyards", "Permanent crops"),
    ("Fruit trees and berry plantations", "Permanent crops"),
    ("Olive groves", "Permanent crops"),
    ("Pastures", "Pastures"),
    ("Annual crops associated with permanent crops", "Permanent crops"),
    ("Complex cultivation patterns", "Complex cultivation patterns"),
    (
        "Land principally occupied by agriculture, with significant areas of natural vegetation",
        "Land principally occupied by agriculture, with significant areas of natural vegetation",
    ),
    ("Agro-forestry areas", "Agro-forestry areas"),
    ("Broad-leaved forest", "Broad-leaved forest"),
    ("Coniferous forest", "Coniferous forest"),
    ("Mixed forest", "Mixed forest"),
    ("Natural grassland", "Natural grassland and sparsely vegetated areas"),
    ("Moors and heathland", "Moors, heathland and sclerophyllous vegetation"),
    ("Sclerophyllous vegetation", "Moors, heathland and sclerophyllous vegetation"),
    ("Transitional woodland/shrub", "Transitional woodland, shrub"),
    ("Beaches, dunes, sands", "Beaches, dunes, sands"),
    ("Bare rock", ""),
    ("Sparsely vegetated areas", "Natural grassland and sparsely vegetated areas"),
    ("Burnt areas", ""),
    ("Inland marshes", "Inland wetlands"),
    ("Peatbogs", "Inland wetlands"),
    ("Salt marshes", "Coastal wetlands"),
    ("Salines", "Coastal wetlands"),
    ("Intertidal flats", ""),
    ("Water courses", "Inland waters"),
    ("Water bodies", "Inland waters"),
    ("Coastal lagoons", "Marine waters"),
    ("Estuaries", "Marine waters"),
    ("Sea and ocean", "Marine waters"),
)

CLASSES_43: Final = tuple(name for name, _ in _TO_19)
"""CORINE Land Cover level 3, in the order of its codes."""

CLASSES_19: Final = (
    "Urban fabric",
    "Industrial or commercial units",
    "Arable land",
    "Permanent crops",
    "Pastures",
    "Complex cultivation patterns",
    "Land principally occupied by agriculture, with significant areas of natural vegetation",
    "Agro-forestry areas",
    "Broad-leaved forest",
    "Coniferous forest",
    "Mixed forest",
    "Natural grassland and sparsely vegetated areas",
    "Moors, heathland and sclerophyllous vegetation",
    "Transitional woodland, shrub",
    "Beaches, dunes, sands",
    "Inland wetlands",
    "Coastal wetlands",
    "Inland waters",
    "Marine waters",
)

TO_19: Final = dict(_TO_19)
"""43-class name -> 19-class name; empty for the eleven classes that the nomenclature of 19 drops."""
