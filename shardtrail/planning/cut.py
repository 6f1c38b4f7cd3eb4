"""Where ordered samples are cut into shards: by content (``stable``) or into equal parts (``exact``).

Sizes are bytes, or ones when shards are counted in samples; both cuts treat them alike. See
docs/decisions/0001-stable-cut.md for the rule and why it was chosen.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Sizes = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]


def stable_cuts(sizes: Sizes, keys: Keys, target: int) -> list[int]:
    """Cut where the samples themselves say, so that a change moves the cuts near it and no others.

    From the last cut on, every place that makes a shard of 0.8 to 1.2 ``target`` is a candidate, and the cut falls
    before the candidate with the smallest key. The end of the run is shared out so that no sliver remains:

    - up to 1.2 ``target``: one shard;
    - up to 1.6: two shards of at least 0.6 each;
    - more: the cut leaves at least 0.8 behind it.

    Whole samples blur these bounds. With few samples a shard, candidates reach one sample to either side of the target
    as long as that is 0.5 to 1.5 of it; a sample larger than that is a shard of its own.

    Args:
        sizes: [sample] of the ordered samples of one split and group.
        keys: [sample] the cut hash of each, independent of the order.
        target: aimed size of a shard, in the unit of ``sizes``.

    Returns:
        [shard] the sample after each shard's last, ascending; the last one is ``len(sizes)``.
    """
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    low, high, half = -(-4 * target // 5), 6 * target // 5, -(-3 * target // 5)
    stop = len(sizes)

    def at_least(size: int) -> int:
        return int(np.searchsorted(edges, size, side="left"))

    def at_most(size: int) -> int:
        return int(np.searchsorted(edges, size, side="right")) - 1

    ends: list[int] = []
    start = 0
    while start < stop:
        done, total = int(edges[start]), int(edges[stop])
        aim = max(at_most(done + target), start + 1)
        # Beside the window itself, the samples next to the target: a window narrower than a sample has no choice.
        first = min(at_least(done + low), aim, max(aim - 1, at_least(done + target - target // 2)))
        first = max(first, start + 1)
        last = max(at_most(done + high), aim, min(aim + 1, at_most(done + target + target // 2)))
        if last >= stop:
            start = stop
        else:
            last = min(last, at_most(total - low))
            if first > last:
                first, last = at_least(done + half), at_most(total - half)
            if first > last:
                first = last = min(max(at_least((done + total) // 2), start + 1), stop - 1)
            start = first + int(np.argmin(keys[first : last + 1]))
        ends.append(start)
    return ends


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
