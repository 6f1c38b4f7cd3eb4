"""Samples with the same bytes, found by the digest of their files."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

from shardtrail.dataset import SPLITS
from shardtrail.packed import columns
from shardtrail.samples import Finding, Rejected, Sample, SourceFile


def sample_digest(files: Sequence[SourceFile]) -> str:
    """md5 over the lines ``role<TAB>size<TAB>md5<NL>`` of a sample's files, in their order."""
    roles, _, sizes, md5s = columns(files)
    lines = "".join([f"{role}\t{size}\t{md5}\n" for role, size, md5 in zip(roles, sizes, md5s, strict=True)])
    return hashlib.md5(lines.encode(), usedforsecurity=False).hexdigest()


def drop_duplicates(
    samples: Sequence[Sample],
) -> tuple[list[Sample], list[Rejected], list[tuple[str, Finding]]]:
    """Keep one of several samples with the same files where keeping all would spoil training or its figures.

    Of equal samples the first stays, by split (train, validation, test) and then by id, whatever order they
    come in. Another one with other labels is quarantined as ``label_conflict``, one in another split as
    ``duplicate_across_splits``; one in the same split stays, with the warning ``duplicate``.

    Returns:
        Samples kept, samples quarantined, and ``(sample id, warning)``.
    """
    alike: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        alike[sample_digest(sample.files)].append(sample)
    rejected: list[Rejected] = []
    warnings: list[tuple[str, Finding]] = []
    for group in alike.values():
        first, *others = sorted(group, key=lambda sample: (SPLITS.index(sample.split), sample.id))
        for other in others:
            where = f"same bytes as {first.id} ({first.split})"
            if other.labels != first.labels:
                detail = f"{where}, which is labelled {_names(first)} and not {_names(other)}"
                rejected.append(Rejected(other.id, Finding("label_conflict", _path(other), detail)))
            elif other.split != first.split:
                detail = f"{where}, and would be in {other.split}"
                rejected.append(Rejected(other.id, Finding("duplicate_across_splits", _path(other), detail)))
            else:
                warnings.append((other.id, Finding("duplicate", _path(other), where)))
    gone = {entry.id for entry in rejected}
    return [sample for sample in samples if sample.id not in gone], rejected, warnings


def _path(sample: Sample) -> str:
    """The first of its files: where to look."""
    return sample.files[0].path if sample.files else sample.id


def _names(sample: Sample) -> str:
    return " + ".join(sample.labels) or "nothing"
