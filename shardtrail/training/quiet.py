"""TensorFlow's start without its lines on standard error. Imports nothing of TensorFlow."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Hold back what native code writes to standard error inside the block; shown after all if the block fails.

    TensorFlow writes some lines before it has read its own log level, so only the file descriptor stops them.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors still show
    sys.stderr.flush()
    standard_error = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except Exception:
            held.seek(0)
            os.write(standard_error, held.read())
            raise
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)
