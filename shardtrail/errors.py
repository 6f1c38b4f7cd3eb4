"""Every error a user may meet. They share one base and keep their builtin kind."""

from __future__ import annotations

from collections.abc import Sequence


class PipelineError(Exception):
    """Base of all errors of this library; its text says what, where and how to mend it."""


class ConfigError(PipelineError, ValueError):
    """A parameter or a command line cannot be used (exit status 2)."""


class SourceError(PipelineError, OSError):
    """The raw data cannot be read: absent, unreadable, refused by its server. Time does not mend it."""


class SourceChanged(PipelineError, RuntimeError):
    """Raw files differ from what was recorded or validated; the text names them."""


class InputRejected(PipelineError, ValueError):
    """Too much of the raw data was found unusable to go on with the rest."""


class StoreUnavailable(PipelineError, ConnectionError):
    """A store or server did not answer; a later attempt may succeed."""


class ShardError(PipelineError, ValueError):
    """A shard's bytes are not what its receipt and plan say."""


class LeaseHeld(PipelineError, RuntimeError):
    """Another live process builds in this working folder."""


class StageFailed(PipelineError, RuntimeError):
    """Some units of a stage failed after all of them were tried.

    Attributes:
        stage: the stage's name.
        failures: ``(unit, error text)`` of every unit that failed.
    """

    def __init__(self, stage: str, failures: Sequence[tuple[str, str]], hint: str = "") -> None:
        self.stage = stage
        self.failures = tuple(failures)
        self.hint = hint
        lines = [f"{stage}: {len(failures)} failed"]
        lines += [f"  {unit}: {error}" for unit, error in failures]
        if hint:
            lines.append(hint)
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.stage, self.failures, self.hint))
