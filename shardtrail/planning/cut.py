"""Where ordered samples are cut into shards: by content (``stable``) or into equal parts (``exact``).

    keys = landmark_keys(draws, sizes, target)
    ends = stable_cuts(sizes, keys, target)

Sizes are bytes, or ones when shards are counted in samples; both cuts treat them alike. See
docs/decisions/0001-stable-cut.md for the rule, why it was chosen, and what other rules came to.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Sizes = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

NO_KEY = np.uint64(2**64 - 1)
"""Of a place that no landmark marks: the last to be cut."""

_LANDMARKS = 32
"""Of each shard's worth of samples: a window of half a target without any has a chance of e^-16."""

_AT_ONCE = 1 << 20


def landmark_keys(draws: Keys, sizes: Sizes, target: int) -> Keys:
    """Keys for ``stable_cuts`` that stay where they are when a sample comes or goes.

    Samples lie on the line of 64-bit numbers, each at its draw. Landmarks are an endless list of random points on that
    line, the same for every set; a landmark's key is its number in the list, and it marks the gap it falls into. Losing
    the sample beside a gap leaves the landmark there, in the wider gap; a new sample leaves it in one of the halves.
    Would the key belong to a sample, its loss would move the cut, and with it others.

    Args:
        draws: [sample] uint64, ascending: what the samples are ordered by.
        sizes: [sample] their sizes.
        target: aimed size of a shard, in the unit of ``sizes``.

    Returns:
        [sample] key of the gap before each sample. The list is read so far as is worth while for this many shards:
        reading on adds larger keys only.

    Source:
        Philox counter-based random numbers (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), whose
        stream numpy keeps the same over its versions.
    """
    keys = np.full(len(draws) + 1, NO_KEY)
    count = min(_LANDMARKS * int(sizes.sum()) // target, 4 * len(draws)) + 1
    points = np.random.Philox(key=0)
    for first in range(0, count, _AT_ONCE):
        numbers = np.arange(first, min(first + _AT_ONCE, count), dtype=np.uint64)
        gaps = np.searchsorted(draws, points.random_raw(len(numbers)))
        # Of landmarks in one gap the first in the list is to stay: assignment keeps the last.
        keys[gaps[::-1]] = np.minimum(keys[gaps], numbers)[::-1]
    return keys[:-1]


def stable_cuts(sizes: Sizes, keys: Keys, target: int) -> list[int]:
    """Cut where the samples themselves say, so that a change moves the cuts near it and no others.

    A run of samples is cut at the place with the smallest key of all that leave, on either side, something that shards
    of 0.75 to 1.25 ``target`` can make up; then each side for itself, until it is no more than 1.25. A cut thus depends
    on what lies between two cuts of smaller keys, not on how the walk from the start went: there is no walk.

    Only a whole run of 1.25 to 1.5 cannot be made up so: it gives two shards of at least 0.625. Where the mean sample
    is larger than 0.25 ``target``, sizes may be off by that much, up to half the target. Unequal samples blur the lower
    bounds by a sample; one that is larger than the upper bound is a shard of its own.

    Args:
        sizes: [sample] of the ordered samples of one split and group.
        keys: [sample] of the gap before each, independent of the order.
        target: aimed size of a shard, in the unit of ``sizes``.

    Returns:
        [shard] the sample after each shard's last, ascending; the last one is ``len(sizes)``.
    """
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    ends: list[int] = []
    runs = [(0, len(sizes))] if len(sizes) else []
    while runs:
        start, stop = runs.pop()
        done, size = int(edges[start]), int(edges[stop] - edges[start])
        off = max(target // 4, min(size // (stop - start), target // 2))
        if size <= target + off or stop - start == 1:
            ends.append(stop)
            continue
        best = -1
        for least, most in _allowed(size, target - off, target + off):
            first = max(int(np.searchsorted(edges, done + least, side="left")), start + 1)
            last = min(int(np.searchsorted(edges, done + most, side="right")) - 1, stop - 1)
            if first <= last:
                place = first + int(np.argmin(keys[first : last + 1]))
                if best < 0 or keys[place] < keys[best]:
                    best = place
        if best < 0:  # samples too unequal for any allowed size: as near to the middle as they let
            best = min(max(int(np.searchsorted(edges, done + size // 2)), start + 1), stop - 1)
        runs += [(best, stop), (start, best)]
    return ends


def _allowed(size: int, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Ranges of the left part's size, of a run of ``size``, such that shards of low to high make up both parts.

    One shard is low to high, two and more are anything from twice low on, since 3 low <= 2 high.
    """
    if size < 2 * low:
        yield high // 2, size - high // 2
        return
    parts = ((low, high), (2 * low, size))
    for left_low, left_high in parts:
        for right_low, right_high in parts:
            least, most = max(left_low, size - right_high), min(left_high, size - right_low)
            if least <= most:
                yield least, most


def exact_cuts(sizes: Sizes, target: int) -> list[int]:
    """Cut into equal parts of about ``target``; counted in samples they differ by one at most.

    The number of parts is the nearest to size / ``target``, or one more where the parts would exceed 1.2 ``target``.

    Args:
        sizes: [sample] of the ordered samples of one split and group.
        target: aimed size of a shard, in the unit of ``sizes``.

    Returns:
        [shard] the sample after each shard's last, ascending; the last one is ``len(sizes)``.
    """
    if not len(sizes):
        return []
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    total = int(edges[-1])
    parts = max(1, (2 * total + target) // (2 * target))
    parts = min(parts + (5 * total > 6 * target * parts), len(sizes))
    aims = np.arange(1, parts, dtype=np.int64) * total // parts
    above = np.searchsorted(edges, aims)
    nearest = above - (aims - edges[above - 1] < edges[above] - aims)
    inner = np.unique(nearest[(nearest > 0) & (nearest < len(sizes))])
    return [*inner.tolist(), len(sizes)]
