"""Units of work for tests of the pool; at module level, as workers need them."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """What a worker shall do."""

    what: str
    mark: str = ""


class Unpicklable(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def work(task: Task) -> int:
    """Do it."""
    if task.what == "raise":
        raise Unpicklable("no")
    if task.what == "die":
        os._exit(9)
    if task.what == "die once" and not Path(task.mark).exists():
        Path(task.mark).touch()
        os._exit(9)
    if task.what == "sleep":
        time.sleep(60)
    if task.what == "nap":
        time.sleep(0.1)
    if task.what == "log":
        logging.getLogger("a.library").info("a line of %d", 1)
        for _ in range(3):
            warnings.warn("odd", stacklevel=1)
    return os.getpid()


def loaded(_: None) -> list[str]:
    """Top-level packages that this worker has imported."""
    return sorted({name.partition(".")[0] for name in sys.modules})
