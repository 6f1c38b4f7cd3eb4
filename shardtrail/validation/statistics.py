"""Statistics of the accepted samples, added up exactly: no order of adding and no worker count changes a digit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from shardtrail.dataset import SPLITS
from shardtrail.samples import BandSums, Sample

_BITS = 1074  # every float64 is a whole multiple of 2**-1074


class ExactSum:
    """A sum of integers and float64 values without rounding."""

    def __init__(self) -> None:
        self._units = 0
        self._whole = 0

    def add(self, value: float | int) -> None:
        """Add a finite value."""
        if isinstance(value, int):
            self._whole += value
            return
        numerator, denominator = value.as_integer_ratio()
        self._units += numerator << (_BITS - denominator.bit_length() + 1)

    @property
    def value(self) -> Fraction:
        """The sum."""
        return self._whole + Fraction(self._units, 1 << _BITS)


class _Band:
    def __init__(self) -> None:
        self.count = 0
        self.total, self.squares = ExactSum(), ExactSum()
        self.low, self.high = math.inf, -math.inf

    def add(self, sums: BandSums) -> None:
        self.count += sums.count
        self.total.add(sums.total)
        self.squares.add(sums.squares)
        self.low, self.high = min(self.low, sums.low), max(self.high, sums.high)

    def figures(self) -> dict[str, float]:
        mean = self.total.value / self.count
        # Population variance E[x²] - E[x]²; exact up to here, so that nothing cancels.
        variance = max(self.squares.value / self.count - mean**2, Fraction(0))
        return {
            "count": self.count,
            "mean": float(mean),
            "std": math.sqrt(variance),
            "min": self.low,
            "max": self.high,
        }


def band_statistics(sums: Iterable[Mapping[str, BandSums]], order: Sequence[str]) -> dict[str, dict[str, float]]:
    """``{band: {count, mean, std, min, max}}`` in the unit that the files store; std of the population.

    Args:
        sums: one mapping a unit; only bands in it are counted.
        order: names in the order that the result shall have.
    """
    bands: dict[str, _Band] = {}
    for unit in sums:
        for name, values in unit.items():
            if values.count:
                bands.setdefault(name, _Band()).add(values)
    return {name: bands[name].figures() for name in order if name in bands}


def class_statistics(samples: Iterable[Sample], vocabulary: Sequence[str]) -> dict[str, dict[str, int]]:
    """``{split: {class: samples}}`` over the whole vocabulary; a sample counts for each of its labels."""
    counts: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
    for sample in samples:
        counts[sample.split].update(sample.labels)
    return {split: {name: counts[split][name] for name in vocabulary} for split in SPLITS}
