"""The split of samples that have none of their own: a seeded draw that later samples never change.

Each region's number in [0, 1) (``draw``) falls into the interval of one split: train first, then
validation, then test. It depends on the region's name and the seed alone. So one region more moves
no other, except while some split would be empty: then the region whose number lies nearest to the
empty split's interval is moved there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from shardtrail.config import SplitParams
from shardtrail.dataset import SPLITS
from shardtrail.samples import Sample
from shardtrail.validation.draw import draw


def draw_splits(
    samples: Sequence[Sample], params: SplitParams, say: Callable[[str], None] = lambda line: None
) -> list[Sample]:
    """The samples, each with a split; those that have one keep it.

    By region, so that neighbours do not leak from one split into another; a sample without region is a
    region of its own. With fewer regions than splits the draw is by sample, and with fewer samples than
    splits all go to train; both are said.
    """
    undecided = [sample for sample in samples if not sample.split]
    wanted = sum(1 for share in _shares(params).values() if share > 0)
    by_region = params.by == "region"
    if by_region and undecided and len({_region(sample) for sample in undecided}) < wanted:
        by_region = False
        if wanted <= len(undecided):
            say(f"splits: fewer regions than splits ({wanted}), so they are drawn by sample; neighbours may leak")
    key = _region if by_region else _id
    if 0 < len(undecided) < wanted:
        say(f"splits: too few samples ({len(undecided)}) for {wanted} splits; all go to train")
    splits = assign({key(sample) for sample in undecided}, params)
    return [sample if sample.split else replace(sample, split=splits[key(sample)]) for sample in samples]


def assign(keys: Collection[str], params: SplitParams) -> dict[str, str]:
    """A split for every key; each split with a share gets at least one, if there are keys enough."""
    shares = {split: share for split, share in _shares(params).items() if share > 0}
    if len(keys) < len(shares):
        return dict.fromkeys(keys, "train")
    bounds, low = {}, 0.0
    for split, share in shares.items():
        bounds[split] = (low, low + share)
        low += share
    last = list(shares)[-1]
    numbers = {key: draw("split", params.seed, key) for key in keys}
    splits = {
        key: next((split for split, (_, high) in bounds.items() if number < high), last)
        for key, number in numbers.items()
    }
    counts = {split: sum(1 for value in splits.values() if value == split) for split in shares}
    for split in shares:
        if not counts[split]:
            movable = [key for key in keys if counts[splits[key]] > 1]
            nearest = min(movable, key=lambda key: (_distance(numbers[key], bounds[split]), key))
            counts[splits[nearest]] -= 1
            counts[split] += 1
            splits[nearest] = split
    return splits


def _distance(number: float, interval: tuple[float, float]) -> float:
    low, high = interval
    return max(low - number, number - high, 0.0)


def _shares(params: SplitParams) -> dict[str, float]:
    return dict(zip(SPLITS, (params.train, params.validation, params.test), strict=True))


def _region(sample: Sample) -> str:
    return sample.attributes.get("region") or _id(sample)


def _id(sample: Sample) -> str:
    return f"sample {sample.id}"
