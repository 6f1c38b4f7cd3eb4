"""What the command shows: progress on a terminal or in a log file, tables, errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import (
    Progress as Bar,
)
from rich.table import Table

from shardtrail.progress import Lines, Progress

out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class Terminal:
    """Progress as one bar a stage: done, total, rate, time left; what it ended with stays as a line."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._what = ""

    def start(self, what: str, total: int | None, unit: str) -> None:
        self._stop()
        self._what = what
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description:9}"),
            BarColumn(32),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}, {task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=err,
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(what, total=total, unit=unit, rate="", note="")

    def advance(self, done: int = 1, note: str = "") -> None:
        if self._bar is None or self._task is None:
            return
        speed = self._bar.tasks[0].speed
        self._bar.update(self._task, advance=done, note=escape(note), rate=f"{speed:.0f}/s" if speed else "")

    def finish(self, result: str) -> None:
        self._stop()
        err.print(f"[green]✓[/] {self._what:9} {escape(result)}")

    def say(self, line: str) -> None:
        (self._bar.console if self._bar else err).print(escape(line))

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def progress() -> Progress:
    """A bar on a terminal; lines where the output goes to a file."""
    return Terminal() if sys.stderr.isatty() else Lines()


def table(rows: Sequence[dict[str, Any]], title: str = "") -> None:
    """Print rows as a table; numbers to the right."""
    if not rows:
        return
    grid = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for key in rows[0]:
        numeric = all(isinstance(row[key], int | float) for row in rows)
        grid.add_column(key, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(_cell(value) for value in row.values()))
    out.print(grid)


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return escape(", ".join(map(str, value)))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else escape(str(value))


def size(count: float) -> str:
    """Bytes for people: ``276.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
