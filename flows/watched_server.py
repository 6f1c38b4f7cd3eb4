"""``python -m flows.watched_server PORT``: a Prefect server that ends when its standard input does.

Its parent holds the other end, so the server is gone with it, however the parent went.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import uvicorn


def _leave_with_parent() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    os._exit(1)


def main() -> None:
    """Serve on loopback until told to stop."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    uvicorn.run(
        "prefect.server.api.server:create_app",
        factory=True,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="warning",
        timeout_keep_alive=5,
    )


if __name__ == "__main__":
    main()
