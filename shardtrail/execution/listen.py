"""What a unit logs or warns of in its worker is kept, to be told where the run is watched."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Iterator

Line = tuple[int, str]
"""``(level, text)``, as of Python's ``logging``."""

MOST_LINES = 50
"""Of one unit; a warning for each of ten thousand pixels tells no more than the first."""

_LONGEST = 500  # characters of a line


class _Collector(logging.Handler):
    """Keeps what the thread that runs a unit logs meanwhile; of lines that repeat, how often."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._unit = threading.local()

    @contextlib.contextmanager
    def unit(self) -> Iterator[list[Line]]:
        counts: dict[Line, int] = {}
        lines: list[Line] = []
        self._unit.counts = counts
        try:
            yield lines
        finally:
            self._unit.counts = None
            lines += [(level, text if n == 1 else f"{text} ({n} times)") for (level, text), n in counts.items()]

    def emit(self, record: logging.LogRecord) -> None:
        counts = getattr(self._unit, "counts", None)
        if counts is None:
            return
        try:
            text = record.getMessage().strip()
        except Exception as error:  # a wrong format string must not fail the unit
            text = f"{record.msg} ({error})"
        if record.name == "py.warnings":
            text = text.partition("\n")[0]  # without the line of source below it
        line = (record.levelno, text[:_LONGEST])
        if line not in counts and len(counts) == MOST_LINES:
            line = (logging.WARNING, "further lines are left out")
        counts[line] = counts.get(line, 0) + 1


_collector = _Collector()
_lock = threading.Lock()


@contextlib.contextmanager
def listening() -> Iterator[list[Line]]:
    """Collect the lines of one unit; they are in the list when the block ends.

    For worker processes: the first use sets up the process's logging, for good.
    """
    root = logging.getLogger()
    with _lock:
        if _collector not in root.handlers:
            root.addHandler(_collector)
            if root.level > logging.INFO:
                root.setLevel(logging.INFO)
            logging.captureWarnings(True)
            # Python tells a warning once a process; here, each unit has its own.
            warnings.simplefilter("always", append=True)
    with _collector.unit() as lines:
        yield lines
