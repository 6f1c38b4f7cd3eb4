"""A Prefect server of the working folder's own, for commands that run a flow where none is up.

Nothing here imports prefect: its address must stand in the environment before that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from flows.console import err
from shardtrail.errors import PipelineError
from shardtrail.folder import Folder
from shardtrail.job import Job

_SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLI_PROMPT": "false",
    "DO_NOT_TRACK": "1",
}


class ServerError(PipelineError, RuntimeError):
    """A server could not be started; its log is named."""


@contextlib.contextmanager
def prefect_api(folder: Folder, *, port: int = 0) -> Iterator[str]:
    """The address of a Prefect API, set for this process; a server is started if the environment names none.

    If that server dies before the block ends, so does this process, as after ``kill -9``: Prefect would try for minutes
    to reach it, and what is built is kept either way.

    Args:
        folder: keeps the server's database and log under ``.shardtrail/``.
        port: 0 picks a free one.

    Raises:
        ServerError: the server did not come up.
    """
    os.environ.update(_SETTINGS)
    given = os.environ.get("PREFECT_API_URL")
    if given:
        yield given
        return
    home = folder.state / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    folder.logs.mkdir(parents=True, exist_ok=True)
    port = port or _free_port()
    address = f"http://127.0.0.1:{port}/api"
    os.environ.update({"PREFECT_HOME": str(home), "PREFECT_API_URL": address})
    log = folder.logs / "prefect-server.log"
    with log.open("ab") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "flows.watched_server", str(port)],
            env=os.environ | {"PREFECT_SERVER_UI_API_URL": address, "PREFECT_LOGGING_LEVEL": "WARNING"},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,  # so that Ctrl-C reaches the flow, which still has to report to the server
        )
    try:
        _await_health(server, address, log)
        ending = threading.Event()
        threading.Thread(target=_die_with, args=(server, ending, log), daemon=True).start()
        try:
            yield address
        finally:
            with contextlib.suppress(OSError, ValueError):
                _settle(address)
            ending.set()
    finally:
        os.environ.pop("PREFECT_API_URL", None)
        _stop(server)


def _die_with(server: subprocess.Popen[bytes], ending: threading.Event, log: Path) -> None:
    status = server.wait()
    if not ending.is_set():
        err.show_cursor()
        err.print(
            f"ServerError: the Prefect server of this command died ({_how(status)}); its log: {log}. What was built is "
            "kept: run the same command again, it goes on from there",
            markup=False,
        )
        os._exit(1)


def _how(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    hint = ", as where memory ran out" if status == -signal.SIGKILL else ""
    return f"{signal.Signals(-status).name}{hint}"


def prefect_pages(job: Job, port: int) -> None:
    """Serve Prefect's pages over the working folder's own database until Ctrl-C."""
    with prefect_api(job.folder, port=port) as address:
        print(f"Prefect: {address.removesuffix('/api')} (Ctrl-C ends it)", flush=True)
        _until_interrupted()


def mlflow_pages(job: Job, port: int) -> None:
    """Serve MLflow's pages over the working folder's own database until Ctrl-C."""
    from shardtrail.tracking.store import redact, resolve_uri

    uri = resolve_uri(job.config.tracking.uri, job.folder.root)
    if uri.startswith(("http://", "https://")):
        print(f"MLflow: {redact(uri)}")
        return
    port = port or _free_port()
    command, environment = mlflow_server(uri, job.folder.root / "mlartifacts", port)
    job.folder.logs.mkdir(parents=True, exist_ok=True)
    log = job.folder.logs / "mlflow-server.log"
    with log.open("ab") as output:
        server = subprocess.Popen(
            command,
            cwd=job.folder.root,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _await_health(server, f"http://127.0.0.1:{port}", log)
        print(f"MLflow: http://127.0.0.1:{port} (Ctrl-C ends it)", flush=True)
        _until_interrupted()
    finally:
        _stop(server)


def mlflow_server(uri: str, artifacts: Path, port: int) -> tuple[list[str], dict[str, str]]:
    """Command and environment of an MLflow server on loopback.

    Args:
        uri: of its database. It may hold a password, and every user of the machine can read a command line, so it
            goes by the environment.
        artifacts: where runs keep their files.
        port: to listen on.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--default-artifact-root", str(artifacts)]
    environment = {
        "MLFLOW_BACKEND_STORE_URI": uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    return command, environment


def _until_interrupted() -> None:
    """Wait for Ctrl-C or SIGTERM; both end the server in an orderly way."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


def _settle(address: str, patience_seconds: float = 15) -> None:
    """Wait until the server has recorded the task runs it was told of: their number stands still.

    A server stopped at once after a fast flow forgets those still in its queue.
    """
    deadline = time.monotonic() + patience_seconds
    before = -1
    while time.monotonic() < deadline:
        request = urllib.request.Request(
            f"{address}/task_runs/count", b"{}", {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            count = int(answer.read())
        if count == before:
            return
        before = count
        time.sleep(0.5)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _await_health(server: subprocess.Popen[bytes], address: str, log: Path, patience_seconds: float = 120) -> None:
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise ServerError(f"the server did not start; its log: {log}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
