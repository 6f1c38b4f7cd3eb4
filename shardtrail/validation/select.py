"""Which of the usable samples are used; the rest is counted as excluded."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from shardtrail.config import SelectParams
from shardtrail.errors import ConfigError
from shardtrail.samples import Finding, Rejected, Sample
from shardtrail.validation.draw import draw


def select(
    samples: Sequence[Sample], params: SelectParams, vocabulary: Sequence[str]
) -> tuple[list[Sample], list[Rejected]]:
    """Split samples into those that are used and those that ``validate.select`` leaves out (``not_selected``).

    A sample's draw depends on its id and the seed alone: more samples never change who is in, and a larger
    share holds every sample of a smaller one.

    Raises:
        ConfigError: a class is not in the vocabulary, or no sample has the attribute that is asked for.
    """
    _check(samples, params, vocabulary)
    kept: list[Sample] = []
    excluded: list[Rejected] = []
    for sample in samples:
        reason = _why_not(sample, params)
        if reason:
            excluded.append(Rejected(sample.id, Finding("not_selected", sample.id, reason), excluded=True))
        else:
            kept.append(sample)
    return kept, excluded


def _why_not(sample: Sample, params: SelectParams) -> str:
    """Why a sample is left out; empty if it is not."""
    country = sample.attributes.get("country", "")
    acquired = sample.attributes.get("acquired", "")
    if params.classes and not set(params.classes) & set(sample.labels):
        return "has none of the selected classes"
    if params.countries and country not in params.countries:
        return f"country {country or 'unknown'} is not selected"
    if (params.date_from or params.date_to) and not acquired:
        return "its day of acquisition is unknown"
    if params.date_from and acquired < params.date_from.isoformat():
        return f"acquired {acquired}, before {params.date_from}"
    if params.date_to and acquired > params.date_to.isoformat():
        return f"acquired {acquired}, after {params.date_to}"
    if params.share < 1 and draw("select", params.seed, sample.id) >= params.share:
        return f"not in the drawn share of {params.share:g}"
    return ""


def _check(samples: Sequence[Sample], params: SelectParams, vocabulary: Sequence[str]) -> None:
    for name in params.classes:
        if name not in vocabulary:
            near = difflib.get_close_matches(name, vocabulary, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(vocabulary)}"
            raise ConfigError(f"validate.select.classes: there is no class {name!r}{hint}")
    if params.countries:
        present = {sample.attributes.get("country", "") for sample in samples} - {""}
        unknown = sorted(set(params.countries) - present)
        if unknown and samples:
            known = ", ".join(sorted(present)) or "none: the samples do not say their country"
            raise ConfigError(f"validate.select.countries: no sample is of {', '.join(unknown)}; known: {known}")
    dated = any(sample.attributes.get("acquired") for sample in samples)
    if (params.date_from or params.date_to) and samples and not dated:
        raise ConfigError("validate.select: no sample says its day of acquisition, so none can be selected by date")
