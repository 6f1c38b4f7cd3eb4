"""Time and peak memory of a command and all its descendants, and what machine this is.

Linux: memory is read in /proc.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]

_EVERY = 0.05
"""Seconds between looks; often enough for what grows over seconds, and too rare to be felt by what is measured."""

_RESCAN = 5
"""Looks between searches for new processes."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run.

    Attributes:
        seconds: from start to end, imports included.
        peak_mib: largest sum of resident memory over the process tree, looked at every 50 ms. Pages that processes
            share count in each.
        largest_mib: peak of the largest process.
        worker_mib: peak of the largest process but the first; 0 if there was none.
        output: what it printed.
        processor_seconds: of all its processes that were waited for.
    """

    seconds: float
    peak_mib: float
    largest_mib: float
    worker_mib: float
    output: str
    processor_seconds: float = 0.0


def measure(module: str, *arguments: str, environment: str = ".venv") -> Measured:
    """Run ``python -m module arguments`` from the repository's root.

    Args:
        environment: folder of the virtual environment whose Python is taken.

    Raises:
        RuntimeError: it failed; the text is its own.
    """
    return measure_command([str(ROOT / environment / "bin" / "python"), "-m", module, *arguments])


def measure_command(command: Sequence[str]) -> Measured:
    """Run a command from the repository's root.

    Raises:
        RuntimeError: it failed; the text is its own.
    """
    variables = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    before, began = _processor_seconds(), time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    memory = _Memory(process.pid)
    watcher = threading.Thread(target=memory.watch, daemon=True)
    watcher.start()
    output, errors = process.communicate()
    seconds = time.perf_counter() - began
    memory.ended.set()
    watcher.join()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{errors[-4000:]}")
    largest = max(memory.peaks.values(), default=0)
    worker = max((peak for pid, peak in memory.peaks.items() if pid != process.pid), default=0)
    processor = _processor_seconds() - before
    return Measured(seconds, memory.peak / 1024, largest / 1024, worker / 1024, output, processor)


def _processor_seconds() -> float:
    """Of all children that were waited for, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Memory:
    """Resident memory of a process tree, in KiB."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended = threading.Event()
        self.peak = 0
        self.peaks: dict[int, int] = {}

    def watch(self) -> None:
        """Look until the first process ended."""
        pids = [self.pid]
        looks = 0
        while not self.ended.wait(_EVERY):
            if looks % _RESCAN == 0:
                pids = [self.pid, *_descendants(self.pid)]
            looks += 1
            total = 0
            for pid in pids:
                now, most = _resident(pid)
                total += now
                self.peaks[pid] = max(self.peaks.get(pid, 0), most)
            self.peak = max(self.peak, total)


def _descendants(pid: int) -> list[int]:
    try:
        return [process.pid for process in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _resident(pid: int) -> tuple[int, int]:
    """KiB now and at most so far, as the kernel counts; 0 for a process that ended."""
    try:
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
    except OSError:
        return 0, 0
    found = {
        name: int(value.split()[0])
        for name, _, value in (line.partition(":") for line in lines)
        if "VmRSS" in name or "VmHWM" in name
    }
    return found.get("VmRSS", 0), found.get("VmHWM", 0)


def machine(scratch: Path) -> dict[str, Any]:
    """What figures were measured on; ``load``, the average of the minute before, is near 0 on a quiet machine."""
    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    disk = _mount(scratch)
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "disk": f"{disk.device}, {disk.fstype}",
        "disk_mib_per_second": round(_written_per_second(scratch)),
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": _commit(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def _mount(path: Path) -> Any:
    """The mount that ``path`` lies on."""
    mounts = [disk for disk in psutil.disk_partitions(all=True) if path.resolve().is_relative_to(disk.mountpoint)]
    return max(mounts, key=lambda disk: len(disk.mountpoint))


def _written_per_second(scratch: Path) -> float:
    """MiB a second of one writer that syncs at the end: 512 MiB that do not compress."""
    block = os.urandom(8 * 2**20)
    path = scratch / "disk.probe"
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(64):
            file.write(block)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return 512 / seconds


def _commit() -> str:
    """Short hash of what was measured; ``-dirty`` if the library is not as committed."""
    commit = _git("rev-parse", "--short", "HEAD")
    return f"{commit}-dirty" if _git("status", "--porcelain", "--", "shardtrail") else commit


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()
