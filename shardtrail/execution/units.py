"""What a stage hands out and gets back, and the executors that its units run on."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from shardtrail.errors import PipelineError, StoreUnavailable
from shardtrail.execution.listen import Line, listening

U = TypeVar("U")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """What came of one unit: a value, or the text of what went wrong."""

    label: str
    value: R | None
    error: str = ""
    transient: bool = False
    """Time may mend the error: an unavailable store, a worker that was killed."""
    log: tuple[Line, ...] = ()
    """What the unit logged in its worker: ``(level, text)``."""


class Mapper(Protocol):
    """Runs ``function`` on every ``(label, unit)`` and yields outcomes as they come, in any order.

    ``function`` is at module level; it and the units pickle. A unit that fails gives an
    outcome with ``error``; the others are still tried.
    """

    def __call__(
        self, stage: str, function: Callable[[U], R], units: Sequence[tuple[str, U]]
    ) -> Iterator[Outcome[R]]: ...


class Workers(Executor):
    """An executor over worker processes, which may die.

    Attributes:
        size: units that run at a time.
        deadly: what the future of a unit raises whose worker died under it.
        cut_off: what a cancelled future means where its worker need not have died: the way to it is lost.
        killed: it was ended while units were in flight.
        lone: the workers that a unit runs on a second time, alone; killed with these. ``turn`` is held meanwhile.
    """

    deadly: tuple[type[BaseException], ...]
    cut_off = ""

    def __init__(self, size: int) -> None:
        self.size = size
        self.killed = False
        self.lone: Workers | None = None
        self.turn = threading.Lock()

    def kill(self) -> None:
        """End at once, whatever the workers are doing; later submissions raise ``WorkersKilled``."""
        self.killed = True
        if self.lone is not None:
            self.lone.kill()


class WorkersKilled(PipelineError, RuntimeError):
    """The workers were ended while units were in flight: these were interrupted, not at fault."""

    def __init__(self) -> None:
        super().__init__("interrupted")


def guarded(function: Callable[[U], R], label: str, unit: U) -> Outcome[R]:
    """Run one unit in a worker. Never raises: an exception may not survive pickling, its text does."""
    with listening() as lines:
        outcome = attempt(function, label, unit)
    return dataclasses.replace(outcome, log=tuple(lines)) if lines else outcome


def attempt(function: Callable[[U], R], label: str, unit: U) -> Outcome[R]:
    """Run one unit here."""
    try:
        return Outcome(label, function(unit))
    except Exception as error:
        return failure(label, error)


def failure(label: str, error: BaseException) -> Outcome[Any]:
    """The outcome of a unit that raised. Our own errors speak for themselves; of others the type is told too."""
    text = str(error) if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"
    return Outcome(label, None, text, isinstance(error, StoreUnavailable))
