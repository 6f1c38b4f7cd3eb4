"""Run one writer in two processes and time it: ``python -m benchmarks.peers.contestant WRITER READER LIST OUT``.

WRITER and READER are ``package.module:function``. The clock starts when both processes have imported everything and
stops when both have closed their files (and, with ``--merge``, when the parts are one data set).
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import platform
import time
from collections.abc import Callable
from importlib.metadata import distributions
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks.peers.sample import read_list

PROCESSES = 2

_PATIENCE = 300
"""Seconds for the imports."""

_PACKAGES = {
    "array_record",
    "imagecodecs",
    "mosaicml-streaming",
    "numpy",
    "rasterio",
    "tensorflow",
    "tensorflow-datasets",
    "torch",
    "webdataset",
}


def main() -> None:
    """Measure; print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("writer")
    parser.add_argument("reader")
    parser.add_argument("list", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--merge", default="")
    options = parser.parse_args()
    merge = _load(options.merge) if options.merge else None
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(PROCESSES + 1), context.SimpleQueue()
    fixed = (options.writer, options.reader, options.list, options.out, barrier, results)
    children = [context.Process(target=_write_part, args=(part, *fixed)) for part in range(PROCESSES)]
    for child in children:
        child.start()
    barrier.wait(_PATIENCE)
    began = time.perf_counter()
    records = sum(results.get() for _ in children)
    if merge:
        merge(options.out)
    seconds = time.perf_counter() - began
    for child in children:
        child.join()
    if any(child.exitcode for child in children):
        raise SystemExit("a process failed; its own text says why")
    print(json.dumps({"records": records, "seconds": seconds, "versions": versions()}))


def _write_part(part: int, writer: str, reader: str, listed: Path, out: Path, barrier: Barrier, results: Any) -> None:
    records = -1
    try:
        write, read = _load(writer), _load(reader)
        own = out / str(part)
        own.mkdir(parents=True)
        barrier.wait(_PATIENCE)
        records = write(read_list(listed, part, PROCESSES), read, own)
    finally:
        # The parent waits for an answer of every part; the exit status tells that this one failed.
        results.put(records)
        if records < 0:
            barrier.abort()


def _load(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return loaded


def versions() -> dict[str, str]:
    """What this environment holds of the packages that are compared."""
    wanted = {name.replace("_", "-"): name for name in _PACKAGES}
    found = {wanted.get(item.name.lower().replace("_", "-"), ""): item.version for item in distributions()}
    return {"python": platform.python_version()} | {name: found[name] for name in sorted(found) if name}


if __name__ == "__main__":
    main()
