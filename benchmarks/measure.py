"""Time and peak memory of a command and all its descendants."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. ``peak_mib`` is the largest sum of resident memory over the process tree, sampled every 20 ms."""

    seconds: float
    peak_mib: float
    largest_mib: float
    output: str


def measure(module: str, *arguments: str) -> Measured:
    """Run ``python -m module arguments`` from the repository's root.

    Raises:
        RuntimeError: it failed; the text is its own.
    """
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    peaks = [0.0, 0.0]
    watcher = threading.Thread(target=_watch, args=(process.pid, peaks), daemon=True)
    watcher.start()
    output, errors = process.communicate()
    seconds = time.perf_counter() - began
    watcher.join()
    if process.returncode != 0:
        raise RuntimeError(f"{module} failed:\n{errors[-4000:]}")
    return Measured(seconds, peaks[0] / 2**20, peaks[1] / 2**20, output)


def _watch(pid: int, peaks: list[float]) -> None:
    try:
        root = psutil.Process(pid)
        while root.is_running() and root.status() != psutil.STATUS_ZOMBIE:
            sizes = []
            for process in (root, *root.children(recursive=True)):
                try:
                    sizes.append(process.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue
            peaks[0] = max(peaks[0], sum(sizes))
            peaks[1] = max(peaks[1], *sizes) if sizes else peaks[1]
            time.sleep(0.02)
    except psutil.NoSuchProcess:
        return
