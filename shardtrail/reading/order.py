"""Which record comes when: the order of an epoch as a pure function.

An epoch permutes *blocks* (a few consecutive records of one shard), lays them end to end, and cuts that line of
records into as many *lanes* as a global batch has micro-batches. Within a lane a few pieces at a time form a
*window*, whose records are permuted. Micro-batch ``lane`` of step ``s`` holds the records ``s * size`` to
``(s + 1) * size`` of its lane, whoever computes it:

    lanes = plan_epoch([4096, 4096, 1234], seed=0, epoch=3, lanes=2)
    lanes[0].records(start=1024)    # from any position: the past is not drawn again

Randomness is raw Philox output, a published counter-based generator: a draw depends on its key alone, not on
draws before it, and stays the same over versions of numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

BLOCK = 16
"""Records read in one go. Longer blocks read faster and mix less."""
WINDOW = 8
"""Pieces open at once in a lane. A lane holds ``BLOCK * WINDOW`` records in memory."""

_BLOCKS, _RECORDS = 0, 1


@dataclass(frozen=True, slots=True)
class Window:
    """A few pieces that are read together.

    Attributes:
        shard: [pieces] int64, place of each piece's shard in the list that was planned.
        first: [pieces] int64, first record of each piece in its shard.
        count: [pieces] int64, records of each piece.
        order: [records] int64: the window yields its pieces' records, laid end to end, in this order.
            Shorter than the sum of ``count`` where reading starts inside the window.
    """

    shard: Ints
    first: Ints
    count: Ints
    order: Ints

    def records(self) -> Ints:
        """[records, 2] int64: (shard, record) of everything the window yields, in order."""
        shard = np.repeat(self.shard, self.count)
        within = np.arange(self.count.sum()) - np.repeat(np.cumsum(self.count) - self.count, self.count)
        return np.stack([shard, np.repeat(self.first, self.count) + within], axis=1)[self.order]


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of an epoch: its pieces in order; see ``Window`` for ``shard``, ``first`` and ``count``."""

    seed: int
    epoch: int
    number: int
    window: int
    shard: Ints
    first: Ints
    count: Ints

    def __len__(self) -> int:
        return int(self.count.sum())

    def locate(self, record: int) -> tuple[int, int]:
        """The window that a record of the lane is in, and how many of that window's records come before it."""
        starts = (np.cumsum(self.count) - self.count)[:: self.window]
        number = max(int(np.searchsorted(starts, record, side="right")) - 1, 0)
        return number, record - int(starts[number]) if len(starts) else 0

    @property
    def windows(self) -> int:
        """Windows of the lane."""
        return -(-len(self.count) // self.window)

    def read_window(self, number: int, skip: int = 0) -> Window:
        """One window, without the first ``skip`` records it would yield."""
        pieces = slice(number * self.window, (number + 1) * self.window)
        size = int(self.count[pieces].sum())
        order = _permutation(size, self.seed, _RECORDS, self.epoch, self.number, number)
        return Window(self.shard[pieces], self.first[pieces], self.count[pieces], order[skip:])

    def records(self, start: int = 0) -> Ints:
        """[records, 2] int64: (shard, record) of the lane's records from ``start`` on, in order."""
        begin, skip = self.locate(start)
        windows = [self.read_window(n, skip if n == begin else 0) for n in range(begin, self.windows)]
        return np.concatenate([np.empty((0, 2), np.int64), *(window.records() for window in windows)])


def plan_epoch(
    shards: Sequence[int], *, seed: int, epoch: int, lanes: int, block: int = BLOCK, window: int = WINDOW
) -> tuple[Lane, ...]:
    """The order of one epoch: every record once.

    Args:
        shards: records of each shard, in plan order.
        seed: of the run.
        epoch: number of the epoch, from 0.
        lanes: micro-batches of a global batch.
        block: records of a block.
        window: pieces of a window.

    Returns:
        ``lanes`` lanes whose lengths differ by one record at most.
    """
    counts = np.asarray(shards, np.int64).reshape(-1)
    blocks = -(-counts // block)
    shard = np.repeat(np.arange(len(counts)), blocks)
    first = block * (np.arange(len(shard)) - np.repeat(np.cumsum(blocks) - blocks, blocks))
    count = np.minimum(block, counts[shard] - first)

    shuffled = _permutation(len(shard), seed, _BLOCKS, epoch)
    shard, first, count = shard[shuffled], first[shuffled], count[shuffled]
    ends = np.cumsum(count)
    starts, total = ends - count, int(count.sum())

    result = []
    for lane in range(lanes):
        low, high = lane * total // lanes, (lane + 1) * total // lanes
        inside = slice(np.searchsorted(ends, low, side="right"), np.searchsorted(starts, high, side="left"))
        begin = np.maximum(starts[inside], low)
        length = np.minimum(ends[inside], high) - begin
        piece_first = first[inside] + begin - starts[inside]
        result.append(Lane(seed, epoch, lane, window, shard[inside], piece_first, length))
    return tuple(result)


def steps_per_epoch(records: int, batch_size: int, lanes: int) -> int:
    """Global batches of an epoch: as many as the longest lane has micro-batches."""
    longest_lane = -(-records // lanes)
    return -(-longest_lane // (batch_size // lanes))


def _permutation(size: int, seed: int, purpose: int, *counter: int) -> Ints:
    """A permutation of ``size`` things: the order that sorts 64-bit draws keyed by the arguments."""
    key = np.array([seed % 2**64, purpose], np.uint64)
    # The generator counts in the first word, so draws with different keys never overlap.
    start = np.array([0, *counter, *[0] * (3 - len(counter))], np.uint64)
    draws = np.random.Philox(key=key, counter=start).random_raw(size)
    return np.argsort(draws, kind="stable").astype(np.int64)
