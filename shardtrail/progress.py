"""Progress of long work over its whole: done, total, rate, time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """What a stage reports to. One bar is open at a time."""

    def start(self, what: str, total: int | None, unit: str) -> None:
        """Begin ``what`` (such as ``validate``) over ``total`` units (such as ``patches``)."""
        ...

    def advance(self, done: int = 1, note: str = "") -> None:
        """``done`` more units are through; ``note`` is shown beside the figures."""
        ...

    def finish(self, result: str) -> None:
        """End with one line that says what came of it and where it lies."""
        ...

    def say(self, line: str) -> None:
        """A line of its own, such as a warning."""
        ...


class Silent:
    """Reports nothing."""

    def start(self, what: str, total: int | None, unit: str) -> None: ...

    def advance(self, done: int = 1, note: str = "") -> None: ...

    def finish(self, result: str) -> None: ...

    def say(self, line: str) -> None: ...


class Lines:
    """One plain line every few seconds, readable in a log file; ``write`` gets each line."""

    def __init__(self, write: Callable[[str], None] | None = None, every_seconds: float = 5.0) -> None:
        self._write = write or (lambda line: print(line, file=sys.stderr, flush=True))
        self._every = every_seconds
        self._what, self._unit, self._done = "", "", 0
        self._total: int | None = None

    def start(self, what: str, total: int | None, unit: str) -> None:
        self._what, self._total, self._unit, self._done = what, total, unit, 0
        self._began = self._last = time.monotonic()

    def advance(self, done: int = 1, note: str = "") -> None:
        self._done += done
        now = time.monotonic()
        if now - self._last >= self._every:
            self._last = now
            self._write(f"{self._what}: {self._figures(now)}{' ' + note if note else ''}")

    def _figures(self, now: float) -> str:
        rate = self._done / max(now - self._began, 1e-9)
        if self._total is None:
            return f"{self._done} {self._unit}, {rate:.0f}/s"
        left = (self._total - self._done) / rate if rate else 0
        return f"{self._done} / {self._total} {self._unit}, {rate:.0f}/s, {clock(left)} left"

    def finish(self, result: str) -> None:
        self._write(f"{self._what}: {result}")

    def say(self, line: str) -> None:
        self._write(line)


def clock(seconds: float) -> str:
    """A duration as ``1:02:03`` or ``2:03``."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
