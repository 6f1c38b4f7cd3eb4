"""Servers that show pages: what they print, and what others on the machine can read of them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

from working import job_in, numbers_folder

from flows.server import mlflow_pages, mlflow_server


def test_a_tracking_server_is_named_without_its_password(tmp_path, capsys):
    """Where tracking is a server, its address is printed, its user and password are not."""
    root = numbers_folder(tmp_path, tmp_path / "raw", tracking={"uri": "https://me:passw0rd@tracking.example:8443/ml"})
    mlflow_pages(job_in(root), 0)
    assert capsys.readouterr().out == "MLflow: https://***@tracking.example:8443/ml\n"


def test_no_command_line_holds_the_databases_address(tmp_path):
    """The address, which may hold a password, is on no command line; the server serves that database all the same."""
    database = tmp_path / "passw0rd.db"
    port = 20_000 + os.getpid() % 20_000
    command, environment = mlflow_server(f"sqlite:///{database}", tmp_path / "artifacts", port)
    server = subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | environment, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        await_answer(f"http://127.0.0.1:{port}/health", server)
        assert database.exists()
        family = [path.parent for path in Path("/proc").glob("[0-9]*/stat") if group_of(path) == server.pid]
        assert family
        assert not any(b"passw0rd" in (process / "cmdline").read_bytes() for process in family)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def group_of(stat: Path) -> int:
    """The process group of a process; 0 when it has ended meanwhile."""
    try:
        return int(stat.read_text().rpartition(")")[2].split()[2])
    except OSError:
        return 0


def await_answer(address: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers, or has ended."""
    deadline = time.monotonic() + 120
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the server did not come up")
